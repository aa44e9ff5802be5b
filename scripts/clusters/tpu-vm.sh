#!/bin/bash
# ./tpu-vm.sh NAME ZONE: runs train.py, which must be in the home folder of each worker, on all workers
# of a Cloud TPU slice. xmp reads from the metadata server which worker this is, and who the others are.
# train.py needs an environment? --command=". venv/bin/activate && python3 train.py". A job's secret is
# a file on each worker: --command='XMP_JOB_SECRET=$(cat ~/.xmp-job) python3 train.py' (docs/guide/security.md).
# Ctrl-C ends gcloud, and may leave the programs on the workers running: there, `xmp stacks` finds them and
# `kill PID` ends one launcher, and with it the launch on all workers.
set -euo pipefail
: "${2:?usage: ./tpu-vm.sh NAME ZONE}"

gcloud compute tpus tpu-vm ssh "$1" --zone="$2" --worker=all --command="python3 train.py"
