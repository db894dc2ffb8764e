#!/usr/bin/env bash
# What dist_train.sh and dist_test.sh share: start a tool once for every GPU.
#
#     tools/torchrun.sh GPUS TOOL [arguments of the tool]
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 GPUS TOOL [arguments of the tool]" >&2
    exit 2
fi
gpus=$1
tool=$2
shift 2
if ! [[ $gpus =~ ^[1-9][0-9]*$ ]]; then
    echo "$0: GPUS is '$gpus', not a number of processes" >&2
    exit 2
fi
nnodes=${NNODES:-1}
if [ "$nnodes" = 1 ] && [ -z "${PORT:-}" ]; then
    rendezvous=(--standalone) # on a free port: several runs fit on one machine
elif [ "$nnodes" != 1 ] && { [ -z "${MASTER_ADDR:-}" ] || [ -z "${NODE_RANK:-}" ]; }; then
    echo "$0: NNODES=$nnodes needs NODE_RANK and MASTER_ADDR, the address of rank 0" >&2
    exit 2
else
    rendezvous=(
        --nnodes="$nnodes" --node_rank="${NODE_RANK:-0}"
        --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}"
    )
fi
# Otherwise processes that are started again find the addresses of those that died.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# A run that is stopped finishes its step or validation, and writes a checkpoint.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-120}"
exec "${PYTHON:-python3}" -m torch.distributed.run "${rendezvous[@]}" --nproc_per_node="$gpus" \
    --max-restarts="${MAX_RESTARTS:-0}" "$(dirname "$0")/$tool" "$@" --launcher pytorch
