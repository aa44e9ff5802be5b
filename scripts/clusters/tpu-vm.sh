#!/bin/bash
# ./tpu-vm.sh NAME ZONE: runs train.py, which must be in the home folder of each worker, on all workers
# of a Cloud TPU slice. xmp reads from the metadata server which worker this is, and who the others are.
set -euo pipefail
: "${2:?usage: ./tpu-vm.sh NAME ZONE}"

gcloud compute tpus tpu-vm ssh "$1" --zone="$2" --worker=all --command="python3 train.py"
