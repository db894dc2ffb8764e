#!/usr/bin/env bash
# Evaluate on the GPUs of this machine, or of several: as dist_train.sh.
#
#     tools/dist_test.sh CONFIG CHECKPOINT GPUS [arguments of tools/test.py]
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 CONFIG CHECKPOINT GPUS [arguments of tools/test.py]" >&2
    exit 2
fi
config=$1
checkpoint=$2
gpus=$3
shift 3
exec "$(dirname "$0")/torchrun.sh" "$gpus" test.py "$config" "$checkpoint" "$@"
