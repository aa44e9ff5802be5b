"""Signal handlers that raise in a program's first call, while xmp imports what the call needs."""

from __future__ import annotations

import pytest

from tests.support.stage import Stage

PROGRAM = """
import os, signal, sys
import in_script, xmp

XMP = os.path.dirname(xmp.__file__) + os.sep

def fn(rank):
    return rank

def fails(rank):
    raise ValueError(rank)

def over(*_):
    raise TimeoutError("now")

found = []

def note(event, given):
    '''Imports of xmp's while handlers run at once: importlib swallows an OSError of one.'''
    if event == "import" and signal.getsignal(signal.SIGALRM) is over:
        frame = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None and frame.f_code.co_filename.startswith(XMP):
            found.append(f"{given[0]} at {frame.f_code.co_filename}:{frame.f_lineno}")

HOSTS = {"hosts": 2, "engine": "local", "nprocs": 1, "runtime": "cpu", "grace": 1}

def of_a_world_of_one():
    xmp.barrier(), xmp.replica(), xmp.once_per_host(list), xmp.all_gather(object()), xmp.rank()
    xmp.preempted(), xmp.heartbeat(), xmp.MpModelWrapper([1]), xmp.MpSerialExecutor().run(list)

def of_plans():
    xmp.plan(2, runtime="cpu"), xmp.host_facts(), xmp.default_nprocs("cpu")
    xmp.spawn(fn, nprocs=1, runtime="cpu")

def of_a_handle(launch=xmp.spawn, **options):
    context = launch(fn, join=False, **options)
    context.pids(), context.stacks(), context.join(), context.results(), context.terminate()

def of_a_failure():
    try:
        xmp.spawn(fails, nprocs=2, runtime="cpu")
    except xmp.ReplicaRaised as error:
        str(error), error.locals

CALLS = {
    "world of one": of_a_world_of_one,
    "plans": of_plans,
    "spawn": lambda: of_a_handle(nprocs=2, runtime="cpu"),
    "failure": of_a_failure,
    "hosts": lambda: of_a_handle(xmp.launch, **HOSTS),
}

if __name__ == "__main__":
    signal.signal(signal.SIGALRM, over)
    sys.addaudithook(note)
    CALLS[sys.argv[1]]()
    xmp.shutdown()
    in_script.say(found=found)
"""


@pytest.mark.hosts
@pytest.mark.parametrize("calls", ["world of one", "plans", "spawn", "failure", "hosts"])
def test_no_import_of_a_first_call_swallows_what_a_handler_raises(calls: str, stage: Stage) -> None:
    assert stage.run(PROGRAM, calls).said == {"found": []}


HERE = """
import os, signal
import in_script, xmp

def over(*_):
    raise TimeoutError("now")

def fn(rank):
    handler = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGUSR1, over)
    try:
        os.kill(os.getpid(), signal.SIGALRM)
    except TimeoutError as error:
        return handler is over, str(error)

if __name__ == "__main__":
    signal.signal(signal.SIGALRM, over)
    (result,) = xmp.spawn(fn, nprocs=1, runtime="cpu")
    kept = signal.getsignal(signal.SIGUSR1) is over, signal.getsignal(signal.SIGALRM) is over
    in_script.say(result=result, kept=kept)
"""


def test_a_function_in_this_process_has_its_own_handlers(stage: Stage) -> None:
    said = stage.run(HERE).said
    assert said == {"result": [True, "now"], "kept": [True, True]}
