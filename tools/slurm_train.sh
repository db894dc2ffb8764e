#!/usr/bin/env bash
# Train on a Slurm cluster.
#
#     GPUS=16 tools/slurm_train.sh PARTITION JOB_NAME CONFIG [arguments of tools/train.py]
#
# GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS, such as --quotatype=spot.
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 PARTITION JOB_NAME CONFIG [arguments of tools/train.py]" >&2
    exit 2
fi
partition=$1
job=$2
shift 2
exec "$(dirname "$0")/srun.sh" "$partition" "$job" train.py "$@"
