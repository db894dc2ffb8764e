#!/usr/bin/env bash
# What slurm_train.sh and slurm_test.sh share: start a tool once for every GPU.
#
#     tools/srun.sh PARTITION JOB_NAME TOOL [arguments of the tool]
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 PARTITION JOB_NAME TOOL [arguments of the tool]" >&2
    exit 2
fi
partition=$1
job=$2
tool=$3
shift 3
gpus=${GPUS:-8}
if ! [[ $gpus =~ ^[1-9][0-9]*$ ]]; then
    echo "$0: GPUS is '$gpus', not a number of processes" >&2
    exit 2
fi
gpus_per_node=${GPUS_PER_NODE:-8}
[ "$gpus_per_node" -le "$gpus" ] || gpus_per_node=$gpus
# SRUN_ARGS is split into words on purpose.
# shellcheck disable=SC2086
exec srun --partition="$partition" --job-name="$job" --gres=gpu:"$gpus_per_node" \
    --ntasks="$gpus" --ntasks-per-node="$gpus_per_node" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    "${PYTHON:-python3}" -u "$(dirname "$0")/$tool" "$@" --launcher slurm
