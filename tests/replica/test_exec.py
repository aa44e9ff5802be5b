"""What a program inherits that a replica, or a module of a template, starts by exec."""

from __future__ import annotations

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.failing

LIST = '''
import json, os, subprocess, sys

PROGRAM = """
import json, os
found = {}
for number in os.listdir("/proc/self/fd"):
    path = f"/proc/self/fd/{number}"
    if int(number) > 2 and os.path.lexists(path):  # the listing's own is closed by now
        found[number] = os.readlink(path)
print(json.dumps(found))
"""

def inherited():
    # As a C library's system() does it: what exec does not close is inherited.
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, close_fds=False, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)
'''
"""``inherited()``: the descriptors above 2 of a program that this process starts."""

REPLICA = f"""{LIST}
import in_script, xmp

def f(rank):
    return inherited()

if __name__ == "__main__":
    in_script.say(found=list(xmp.spawn(f, nprocs=2, runtime="cpu", start_method=sys.argv[1])))
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_program_that_a_replica_starts_has_no_descriptor_of_ours(
    stage: Stage, method: str
) -> None:
    assert stage.run(REPLICA, method).said["found"] == [{}, {}]


PRELOADING = """
import in_script, xmp

def f(rank):
    import starts_a_program
    return starts_a_program.found

if __name__ == "__main__":
    xmp.preload("starts_a_program")
    in_script.say(found=list(xmp.spawn(f, nprocs=1, join=True, timeout=60, runtime="cpu")))
"""


def test_a_program_that_a_preloaded_module_starts_has_none_either(stage: Stage) -> None:
    library = stage.folder / "library"  # a template does not look in the folder of the script
    library.mkdir()
    stage.write(f"{LIST}\nfound = inherited()\n", "library/starts_a_program.py")
    path = f"{library}:{stage.environment()['PYTHONPATH']}"
    assert stage.run(PRELOADING, env={"PYTHONPATH": path}).said["found"] == [{}]
