"""An exception of a replica arrives as itself where it can, and always as readable text."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from tests.support.launching import failure
from tests.support.stage import Script, Stage

OURS = f"{os.sep}xmp{os.sep}_processes{os.sep}"


class Labelled(Exception):
    """It takes what its ``args`` do not contain, and still pickles."""

    def __init__(self, code: int, label: str) -> None:
        super().__init__(code, label)
        self.label = label


class Lies(Exception):
    """It pickles, and comes back as something else."""

    def __reduce__(self) -> Any:
        return ValueError, ("another error",)


class Explodes(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit("not with me")


class Counted(Exception):
    """Its ``args``, with which pickle makes another one, are too few."""

    def __init__(self, *args: str) -> None:
        if len(args) == 1 and args[0] == "one":
            raise TypeError("two are needed")
        super().__init__("one")


class Shy(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


def raises(rank: int, error: type[BaseException]) -> None:
    raise error("in the seventh batch")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Lies, "TypeError: it unpickles as another class"),
        (Explodes, "SystemExit: not with me"),
        (Counted, "TypeError: two are needed"),
    ],
)
def test_one_that_does_not_travel_is_reported_as_text(
    method: str, kind: type[BaseException], why: str
) -> None:
    error = failure(method, raises, kind)
    assert error.__cause__ is None
    assert f"__cause__ is None: {__name__}.{kind.__name__} could not be sent ({why})." in str(error)
    assert f"{kind.__name__}: " in str(error)


def test_one_whose_text_raises(method: str) -> None:
    def fn(rank: int) -> None:
        raise Shy("x")

    assert "Shy" in str(failure(method, fn)).splitlines()[0]


def chained(rank: int) -> None:
    try:
        try:
            raise OSError(5, "disk")
        except OSError as error:
            raise Labelled(3, "tiles") from error
    except Labelled:
        raise RuntimeError("epoch failed")  # noqa: B904 - a context, not a cause


@pytest.mark.each_method
def test_the_chain_of_causes_travels(method: str) -> None:
    error = failure(method, chained)
    outer = error.__cause__
    assert type(outer) is RuntimeError
    assert outer.__cause__ is None
    middle = outer.__context__
    assert type(middle) is Labelled
    assert (middle.args, middle.label) == ((3, "tiles"), "tiles")
    assert type(middle.__cause__) is OSError
    assert middle.__cause__.errno == 5


def test_a_chain_that_does_not_travel_whole_travels_in_part() -> None:
    def fn(rank: int) -> None:
        raise ValueError("outer") from Lies("inner")

    error = failure("forkserver", fn)
    assert type(error.__cause__) is ValueError
    assert error.__cause__.__cause__ is None
    assert "Lies: inner" in str(error)


def test_a_hidden_context_stays_hidden() -> None:
    def fn(rank: int) -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer") from None

    error = failure("forkserver", fn)
    assert type(error.__cause__) is ValueError
    assert error.__cause__.__context__ is None
    assert "inner" not in str(error)


def test_a_class_that_only_the_replica_has_is_reported_as_text(method: str) -> None:
    def fn(rank: int) -> None:
        class Hidden(Exception):
            pass

        raise Hidden("made here")

    error = failure(method, fn)
    assert error.__cause__ is None
    assert "Hidden: made here" in str(error)


@pytest.mark.each_method
@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_a_class_that_went_there_from_here_is_the_same_one(start: str) -> None:
    class Ours(Exception):
        pass

    def fn(rank: int) -> None:
        raise Ours("made there")

    assert type(failure(start, fn).__cause__) is Ours


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with Python 3.11")
def test_a_group_travels_with_its_members_and_notes(method: str) -> None:
    def fn(rank: int) -> None:
        group = ExceptionGroup("two", [Labelled(1, "a"), ValueError("b")])  # noqa: F821
        group.exceptions[0].add_note("seen first")
        group.add_note("of the whole")
        raise group

    error = failure(method, fn)
    group: Any = error.__cause__
    assert [type(each) for each in group.exceptions] == [Labelled, ValueError]
    assert (group.__notes__, group.exceptions[0].__notes__) == (["of the whole"], ["seen first"])
    assert "seen first" in str(error)
    assert "of the whole" in str(error)


def ping(rank: int) -> None:
    pong(rank)


def pong(rank: int) -> None:
    ping(rank)


def test_functions_that_call_each_other_for_ever_are_folded(method: str) -> None:
    text = str(failure(method, ping))
    assert text.count("in pong") < 6
    assert "[Previous 2 lines repeated 4" in text
    assert len(text.splitlines()) < 60


def test_a_stack_of_many_functions_is_cut_in_its_middle() -> None:
    def fn(rank: int) -> None:
        call: Any = None
        for depth in range(200):
            names: dict[str, Any] = {"call": call}
            body = "call()" if depth else "raise ValueError('bottom')"
            exec(f"def level_{depth}():\n    {body}\n", names)
            call = names[f"level_{depth}"]
        call()

    text = str(failure("forkserver", fn))
    assert "in level_199" in text
    assert "in level_0" in text
    assert "… 151 frames left out …" in text
    assert "in level_100\n" not in text


def test_a_long_message_is_cut_and_says_how_much(method: str) -> None:
    def fn(rank: int) -> None:
        raise ValueError("begin " + "x" * 1_000_000 + " end")

    error = failure(method, fn)
    text = str(error)
    assert len(text) < 30_000
    assert "ValueError: begin xxx" in text
    assert "xxx end" in text
    assert " 991,818 characters left out " in text
    first = text.splitlines()[0]
    assert first.endswith(8 * "x" + " [XMP-R01]")
    assert len(first) > 10_000, "what goes to a log is not cut"
    assert len(str(error.__cause__)) == 1_000_010, "the exception itself is whole"


def test_none_of_our_frames_stands_above_the_users(method: str) -> None:
    assert OURS not in str(failure(method, chained))


UNDER_PYTEST = """
import xmp

def fn(rank):
    raise ValueError("the labels are wrong")

def test_training():
    xmp.spawn(fn, nprocs=2, runtime="cpu")  # the user's line
"""


def test_the_excerpt_of_pytest_ends_in_the_users_line(stage: Stage) -> None:
    stage.write(UNDER_PYTEST, "test_training.py")
    done = stage.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_training.py")
    assert "# the user's line" in done.out, done
    assert "the labels are wrong" in done.out
    assert "_calls/spawn.py" not in done.out


def test_a_second_import_that_raises_in_a_fresh_interpreter_says_so(script: Script) -> None:
    done = script(
        "import xmp\n"
        "if __name__ != '__main__': raise OSError('in use')\n"
        "def train(rank): pass\n"
        "if __name__ == '__main__': xmp.spawn(train, nprocs=2, start_method='spawn')\n"
    )
    assert "raised OSError: in use [XMP-R09]\n\nIt was the second import of this script" in done.err
