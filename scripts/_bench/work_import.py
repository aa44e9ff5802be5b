"""What an import adds to a bare interpreter: the best of several, alternating with bare ones."""

import os
import resource
import subprocess
import sys
import tempfile

from measured import Meeting, serve, system

PAIRS = 7


def seconds(code: str, cache: str) -> float:
    """Time of a processor, with bytecode cached as when a package is imported a second time."""
    cached = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **cached}, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(meeting: Meeting) -> dict[str, float]:
    code = f"import {system()}"
    with tempfile.TemporaryDirectory() as cache:
        seconds(code, cache)
        pairs = [(seconds(code, cache), seconds("pass", cache)) for _ in range(PAIRS)]
    return {"seconds": min(whole for whole, _ in pairs) - min(bare for _, bare in pairs)}


if __name__ == "__main__":
    serve(measure)
