"""What it takes to read the facts of a host once more, beside an interpreter that does nothing."""

import subprocess
import sys
import time

from measured import Meeting, serve, system

from xmp._os import probe

READINGS = 10


def once() -> float:
    began = time.perf_counter()
    if system() == "xmp":
        probe.facts()
    else:
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


def measure(meeting: Meeting) -> dict[str, float]:
    return {"seconds": min(once() for _ in range(READINGS))}


if __name__ == "__main__":
    serve(measure)
