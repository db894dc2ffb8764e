#!/usr/bin/env bash
# Evaluate on a Slurm cluster, with the variables of slurm_train.sh.
#
#     tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of tools/test.py]
set -euo pipefail
if [ $# -lt 4 ]; then
    echo "usage: $0 PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of tools/test.py]" >&2
    exit 2
fi
partition=$1
job=$2
shift 2
exec "$(dirname "$0")/srun.sh" "$partition" "$job" test.py "$@"
