#!/usr/bin/env bash
# Train on the GPUs of this machine, or of several (without a GPU: in processes on the CPU).
#
#     tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]
#
# On each of several machines, with NODE_RANK 0, 1, ... and the address of the first one:
#
#     NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 tools/dist_train.sh CONFIG GPUS
#
# With MAX_RESTARTS=3, a job with a process that dies is restarted up to three times, each time from
# the newest checkpoint.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG GPUS [arguments of tools/train.py]" >&2
    exit 2
fi
config=$1
gpus=$2
shift 2
exec "$(dirname "$0")/torchrun.sh" "$gpus" train.py "$config" "$@"
