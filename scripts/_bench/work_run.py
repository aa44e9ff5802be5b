"""A torch script on several replicas, as a command: from its start to the last all-reduce.

A fresh launcher each time; what an earlier one has left is in the kernel's page cache at most.
"""

import subprocess
import sys
import time
from pathlib import Path

from measured import Meeting, serve, system

SCRIPT = Path(__file__).with_name("run_reduce.py")
COMMANDS = {
    "xmp": ("xmp", "run", "--runtime", "cpu", "-n"),
    "torchrun": ("torch.distributed.run", "--standalone", "--nproc-per-node"),
}


def measure(meeting: Meeting) -> dict[str, float]:
    module, *options = COMMANDS[system()]
    command = [sys.executable, "-m", module, *options, str(meeting.count)]
    called = time.monotonic_ns()
    subprocess.run([*command, str(SCRIPT), meeting.path, str(meeting.count)], check=True)
    whole = time.monotonic_ns() - called
    return {"seconds": (max(meeting.times()) - called) / 1e9, "whole": whole / 1e9}


if __name__ == "__main__":
    serve(measure)
