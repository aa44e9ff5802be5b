"""``sys.excepthook`` of the program in a replica: called once, after the report.

And interrupts that Python cannot raise where they come: ``sys.unraisablehook``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import failure
from tests.support.stage import Stage
from xmp._os.excepthook import interrupts_kept
from xmp._processes.replica.reports import call_hook

pytestmark = pytest.mark.failing


def sets_a_hook(rank: int, folder: str) -> None:
    def hook(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        with open(f"{folder}/{rank}", "a") as file:
            file.write(f"{kind.__name__} {error} {traceback.tb_frame.f_code.co_name}\n")
        raise SystemExit(7)  # of no effect on the report

    sys.excepthook = hook
    if rank == 1:
        raise ValueError("boom")


def test_the_functions_hook_is_called_once(method: str, tmp_path: Path) -> None:
    error = failure(method, sets_a_hook, str(tmp_path))
    assert isinstance(error, xmp.ReplicaRaised)
    assert (tmp_path / "1").read_text() == "ValueError boom sets_a_hook\n"
    assert not (tmp_path / "0").exists()


def called(hook: Any, inherited: Any) -> list[str]:
    seen: list[str] = []
    sys.excepthook = hook(seen)
    call_hook(ValueError("boom"), sys.excepthook if inherited else sys.__excepthook__)
    return seen


@pytest.mark.parametrize(
    ("hook", "inherited", "said"),
    [
        (lambda seen: lambda kind, error, traceback: seen.append(str(error)), False, ["boom"]),
        (lambda seen: lambda kind, error, traceback: seen.append(str(error)), True, []),
        (lambda seen: sys.__excepthook__, False, []),
        (lambda seen: None, False, []),
        (lambda seen: lambda: None, False, []),
    ],
    ids=["its own", "the launcher's", "Python's", "none", "one that raises"],
)
def test_which_hooks_are_called(
    hook: Any, inherited: bool, said: list[str], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    assert called(hook, inherited) == said
    assert "boom" not in capfd.readouterr().out


class Dropped:
    """Python prints what comes out of ``__del__`` and goes on."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def __del__(self) -> None:
        self.act()


def raises(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


def interrupts() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_in_a_finaliser_is_raised_at_the_end(capfd: pytest.CaptureFixture) -> None:
    before, done = sys.unraisablehook, []

    def block() -> None:
        with interrupts_kept():
            Dropped(interrupts)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done
    assert sys.unraisablehook is before
    assert capfd.readouterr().err == ""


def test_other_errors_in_finalisers_are_printed_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: printed.append(dropped.exc_type))
    with interrupts_kept():
        Dropped(raises(ValueError("boom")))
    assert printed == [ValueError]


def test_a_hook_that_the_block_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with interrupts_kept():
        sys.unraisablehook = own = lambda dropped: None
    assert sys.unraisablehook is own


IMPORTED = """
    import os, signal
    import xmp

    class Dropped:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)

    if __name__ != "__main__":
        Dropped()

    def returns(rank):
        return rank

    if __name__ == "__main__":
        try:
            print(xmp.spawn(returns, nprocs=2, runtime="cpu", start_method="spawn"))
        except xmp.ReplicaError as error:
            print(type(error).__name__, str(error).splitlines()[0])
"""


def test_an_interrupt_that_an_import_of_the_script_drops_ends_the_replica(stage: Stage) -> None:
    outcome = stage.run(IMPORTED)
    assert outcome.out.startswith("ReplicaDied rank ")
    assert "was interrupted (KeyboardInterrupt)" in outcome.out
    assert outcome.err == ""
