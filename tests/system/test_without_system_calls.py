"""Launches where a sandbox (seccomp) forbids a system call: an optional one, or one needed."""

from __future__ import annotations

import errno

import pytest

from tests.support.stage import Stage
from xmp._processes.system import launch_conditions

PROGRAM = """
import ctypes, os, platform, struct, sys
import in_script, xmp

NUMBERS = {
    "x86_64": {"prlimit64": 302, "sched_getaffinity": 204, "setpgid": 109, "setsockopt": 54},
    "aarch64": {"prlimit64": 261, "sched_getaffinity": 123, "setpgid": 154, "setsockopt": 208},
}[platform.machine()]
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
LOAD, EQUALS, RETURN, ALLOW, ERRNO = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000

def forbid(number):
    '''A filter of BPF: seccomp(2).'''
    rules = [(LOAD, 0, 0, 0), (EQUALS, 0, 1, number)]
    rules += [(RETURN, 0, 0, ERRNO | 1), (RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, FILTER, program, 0, 0) == 0, ctypes.get_errno()

if __name__ == "__main__":
    forbid(NUMBERS[sys.argv[1]])
    try:
        in_script.say(results=list(xmp.spawn(abs, nprocs=2, runtime="cpu")))
    except xmp.StartError as error:
        in_script.say(refused=str(error))
"""


@pytest.mark.parametrize("call", ["prlimit64", "sched_getaffinity", "setsockopt"])
def test_what_is_optional_may_be_forbidden(call: str, stage: Stage) -> None:
    outcome = stage.run(PROGRAM, call)
    assert outcome.said == {"results": [0, 1]}
    assert outcome.err == ""


def test_what_is_needed_is_named_before_a_process_exists(stage: Stage) -> None:
    refused = stage.run(PROGRAM, "setpgid").said["refused"]
    assert refused.startswith("setpgid(2): Operation not permitted; a sandbox (seccomp) forbids it")


@pytest.mark.parametrize(
    ("code", "refuses"),
    [
        *((errno.EPERM, True), (errno.EACCES, True), (errno.ENOSYS, True)),
        *((errno.EINVAL, False), (errno.ESRCH, False), (0, False)),
    ],
)
def test_which_answers_of_setpgid_refuse(code: int, refuses: bool) -> None:
    assert bool(launch_conditions._forbidden(code)) == refuses
