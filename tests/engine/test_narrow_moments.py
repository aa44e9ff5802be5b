"""What may come at the worst of moments: between two lines of ours, or twice at once."""

from __future__ import annotations

import subprocess
import sys

from _behaviour import BEGIN, Script

from xmp._processes import family


def test_a_launcher_never_kills_its_own_group(script: Script) -> None:
    source = BEGIN + (
        "import signal\n"
        "def fn(rank):\n    while True:\n        signal.pause()\n"
        "if __name__ == '__main__':\n"
        "    os.setpgid(0, 0)\n"
        "    context = start(fn, join=False)\n"
        "    context._launch._link.supervisor = 0  # as before it has told\n"
        "    context._launch.end_within(0)\n"
        "    print(context._launch.finished)\n"
    )
    done = script(source, "forkserver")
    assert done.out == "True\n", done


def test_what_has_ended_can_be_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    family.kill(process.pid)
    family.kill(0)
