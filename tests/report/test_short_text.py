"""The text of an error has the program's frames, and of libraries only where the error arose."""

from __future__ import annotations

import pytest

from xmp._processes.messages.order import Failure
from xmp._processes.report.short_text import short

TORCH = "/venv/lib/python3.11/site-packages/torch"
PYTHON = "/usr/lib/python3.11"


def frame(path: str, name: str, *below: str) -> str:
    return "\n".join([f'  File "{path}", line 7, in {name}', *(f"    {line}" for line in below)])


def traceback(*frames: str, ends: str = "KeyError: 'label'") -> str:
    return "\n".join(["Traceback (most recent call last):", *frames, ends])


STEP = frame("/home/u/train.py", "step", "loss(batch)", "^^^^^^^^^^^")
MODEL = frame("/home/u/model.py", "loss", "return table['label']")
CALL = frame(f"{TORCH}/nn/modules/module.py", "_call_impl", "return forward()", "^^^^^")
LINEAR = frame(f"{TORCH}/nn/functional.py", "linear", "return F()", "~~~^^")
POOL = frame(f"{PYTHON}/concurrent/futures/thread.py", "run", "self.fn()")
IMPORT = '  File "<frozen importlib._bootstrap>", line 1, in _load'

TRACEBACKS = {
    "a short one": ((STEP, MODEL), (STEP, MODEL)),
    "raised in a library": (
        (STEP, CALL, CALL, CALL, LINEAR),
        (STEP, "  … 3 frames of torch left out", LINEAR.replace("\n    ~~~^^", "")),
    ),
    "raised in the program, below a library": (
        (CALL, POOL, CALL, MODEL),
        ("  … 3 frames of torch, Python left out", MODEL),
    ),
    "one frame of a library": ((STEP, POOL, MODEL), (STEP, POOL, MODEL)),
    "an import": ((STEP, IMPORT, IMPORT, MODEL), (STEP, "  … 2 frames of Python left out", MODEL)),
    "many of the program": (
        (*[STEP] * 9, *[MODEL] * 9),
        (*[STEP] * 4, "  … 7 frames left out", *[MODEL] * 7),
    ),
}


@pytest.mark.parametrize("name", TRACEBACKS)
def test_frames_of_libraries(name: str) -> None:
    given, wanted = TRACEBACKS[name]
    assert short(traceback(*given)) == traceback(*wanted)


def test_the_first_line_says_where_all_of_it_is() -> None:
    text = short(traceback(CALL, CALL, MODEL, CALL, CALL, STEP), "error.whole")
    first, second = [line for line in text.splitlines() if "…" in line]
    assert first == "  … 2 frames of torch left out (error.whole has all)"
    assert second == "  … 2 frames of torch left out"


def test_a_group_keeps_its_margins() -> None:
    text = "\n".join(f"  | {line}" for line in traceback(CALL, CALL, MODEL).splitlines())
    assert "  |   … 2 frames of torch left out\n  |   File" in short(text)


def test_a_stack_with_the_innermost_frame_first() -> None:
    wait = '  File "/usr/lib/python3.11/threading.py", line 9 in wait'
    store = f'  File "{TORCH}/store.py", line 9 in get'
    fn = '  File "/home/u/train.py", line 9 in fn'
    shown = short("\n".join([wait, store, store, fn]), latest_last=False)
    assert shown == "\n".join([wait, "  … 2 frames of torch left out", fn])


def test_of_a_long_message_its_begin_and_end() -> None:
    sizes = [f"\tsize mismatch for layer{i}" for i in range(60)]
    text = short(traceback(STEP, ends="\n".join(["RuntimeError: state_dict:", *sizes])))
    assert len(text.splitlines()) < 20
    assert "RuntimeError: state_dict:\n\tsize mismatch for layer0\n" in text
    assert "\n  … 50 lines left out\n" in text
    assert text.endswith("layer59")


SAID = {
    "no such label\nin shard 3": "no such label",
    "": "",
    # As torch's DataLoader reports what its worker has raised (torch 2.13, _utils.py).
    f"Caught KeyError in DataLoader worker process 0.\nOriginal {traceback(CALL, MODEL)}\n": (
        "Caught KeyError in DataLoader worker process 0: KeyError: 'label'"
    ),
}


@pytest.mark.parametrize("message", SAID)
def test_the_first_line_has_what_a_worker_has_raised(message: str) -> None:
    failure = Failure(0, 0, 1, kind="raised", error_type="KeyError", message=message)
    wanted = f"raised KeyError{': ' + SAID[message] if SAID[message] else ''}"
    assert failure.what == wanted
