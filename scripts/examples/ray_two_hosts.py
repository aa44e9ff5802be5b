"""Train the digits of ddp_digits.py on two hosts of a Ray cluster, from this one program.

Needs ray, and what ddp_digits.py needs, on each host. One machine can be two hosts:
``ray start --head --port=6379``, then ``ray start --address=127.0.0.1:6379``, at last ``ray stop``.
"""

from pathlib import Path

from ddp_digits import train

import xmp

if __name__ == "__main__":
    code = {"working_dir": str(Path(__file__).parent)}  # ddp_digits.py, for the hosts
    options = {"nprocs": 2, "runtime": "cpu"}  # of each host; one replica per device without them
    for line in xmp.launch(train, hosts=2, engine="ray", runtime_env=code, **options):
        print(line)
