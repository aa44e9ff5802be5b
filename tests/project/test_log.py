"""``logging.getLogger("xmp")`` and ``XMP_LOG``: what xmp decides and warns of, each once."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.fresh import in_fresh_interpreter
from xmp._os import log

LINE = re.compile(r"^xmp \d\d:\d\d:\d\d\.\d{3} (\w+) (\d+) ([A-Z]+): (.*)$", re.MULTILINE)

HEAD = """
import logging, os, sys
import xmp

def fn(rank):
    if xmp.restart_count() == 0 and "fail" in sys.argv:
        raise ValueError("first attempt")
    return rank

def spawn(**options):
    return list(xmp.spawn(fn, nprocs=2, runtime="cpu", **options))
"""
RESTART = """
if __name__ == "__main__":
    assert spawn(max_restarts=1) == [0, 1]
"""
WARNING = "restart 1 of 1: rank "


def run(source: str, tmp_path: Path, *arguments: str, **env: str) -> str:
    """Run a program; what it wrote to standard error."""
    program = tmp_path / "train.py"
    program.write_text(HEAD + textwrap.dedent(source))
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


# --- XMP_LOG --------------------------------------------------------------------------------------


def test_debug_shows_decisions_with_time_and_process(tmp_path: Path) -> None:
    source = """
        if __name__ == "__main__":
            for _ in range(2):
                assert spawn() == [0, 1]
            print(f"launcher is {os.getpid()}", file=sys.stderr)
    """
    shown = run(source, tmp_path, XMP_LOG="debug")
    (pid,) = re.findall(r"^launcher is (\d+)$", shown, re.MULTILINE)
    lines = LINE.findall(shown)
    assert {line[0] for line in lines} == {"launcher", "supervisor"}
    assert {line[1] for line in lines if line[0] == "launcher"} == {pid}
    assert {line[2] for line in lines} == {"DEBUG"}
    texts = [line[3] for line in lines]
    for start in (
        "runtime cpu: runtime='cpu'",
        "ports held: {'store': ",
        "start_method='forkserver': replicas are forked from the supervisor",
        "ready to make replicas in 0.",
        "launch over: 2 results, 0 failures",
    ):
        assert len([text for text in texts if text.startswith(start)]) == 2, (start, shown)
    started = [text for text in texts if re.match(r"template \d+ started for ", text)]
    assert len(started) == 1
    assert len(LINE.findall(shown)) == shown.count("\n") - 1, shown  # nothing else is written


def test_debug_says_why_a_template_does_not_fit(tmp_path: Path) -> None:
    source = """
        if __name__ == "__main__":
            spawn()
            os.environ["PYTHONHASHSEED"] = os.environ["TORCH_LOGS"] = "7"
            spawn()
    """
    shown = run(source, tmp_path, XMP_LOG="debug")
    assert re.search(r"template \d+ does not fit: \w+ has changed, which an import may read", shown)


@pytest.mark.parametrize("level", ["", "warning", "WARNING", "info", "error"])
def test_other_levels(level: str, tmp_path: Path) -> None:
    shown = run(RESTART, tmp_path, "fail", XMP_LOG=level)
    if level == "":
        assert shown.startswith(f"xmp: {WARNING}")
        assert shown.count("\n") == 1
    elif level == "error":
        assert shown == ""
    else:
        ((process, _, name, text),) = LINE.findall(shown)
        assert (process, name) == ("launcher", "WARNING")
        assert text.startswith(WARNING)


def test_an_unknown_level_is_one_line(tmp_path: Path) -> None:
    source = """
        if __name__ == "__main__":
            spawn()
            spawn()
    """
    shown = run(source, tmp_path, XMP_LOG="verbose")
    assert shown == "xmp: XMP_LOG='verbose': give debug, info, warning or error\n"


def test_importing_xmp_does_not_import_logging(tmp_path: Path) -> None:
    code = "import sys, xmp; print('logging' in sys.modules)"
    for env in ({}, {"XMP_LOG": "debug"}):
        out = in_fresh_interpreter(code, {**os.environ, **env})
        assert (out.stdout, out.stderr) == ("False\n", "")


# --- logging of the program -----------------------------------------------------------------------


def test_a_handler_of_the_program_gets_every_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "xmp"):
        assert list(xmp.spawn(abs, nprocs=2, runtime="cpu")) == [0, 1]
    records = [record for record in caplog.records if record.name == "xmp"]
    assert {record.levelname for record in records} == {"DEBUG"}
    (chosen,) = [record for record in records if record.msg.startswith("runtime ")]
    assert chosen.getMessage().startswith("runtime cpu: runtime='cpu'")
    assert chosen.module == "host"  # where it was decided, not where it was logged


def test_without_debug_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert list(xmp.spawn(abs, nprocs=2, runtime="cpu")) == [0, 1]
    assert caplog.records == []


@pytest.mark.parametrize("to", ["stderr", "stdout", "rich"])
def test_what_the_programs_handler_writes_is_not_written_twice(to: str, tmp_path: Path) -> None:
    handlers = {
        "stderr": "logging.StreamHandler()",
        "stdout": "logging.StreamHandler(sys.stdout)",
        "rich": "__import__('rich.logging').logging.RichHandler()",
    }
    source = f"""
        if __name__ == "__main__":
            sys.stdout = os.fdopen(2, "w", closefd=False)
            logging.getLogger().addHandler({handlers[to]})
            assert spawn(max_restarts=1) == [0, 1]
    """
    for env in ({}, {"XMP_LOG": "warning"}):
        shown = run(source, tmp_path, "fail", **env)
        assert shown.count("restart 1 of 1: rank") == 1, shown
        assert "xmp: restart" not in shown


def test_a_handler_that_writes_elsewhere_does_not_hide_a_warning(tmp_path: Path) -> None:
    source = """
        if __name__ == "__main__":
            logging.basicConfig(filename="log", format="%(levelname)s %(name)s %(message)s")
            assert spawn(max_restarts=1) == [0, 1]
            sys.stderr.write(open("log").read())
    """
    shown, logged = run(f"import os; os.chdir({str(tmp_path)!r})\n" + textwrap.dedent(source),
                        tmp_path, "fail").splitlines()  # fmt: skip
    assert shown.startswith(f"xmp: {WARNING}")
    assert logged == f"WARNING xmp {shown.removeprefix('xmp: ')}"


def test_a_program_can_silence_the_logger(tmp_path: Path) -> None:
    source = """
        if __name__ == "__main__":
            logging.getLogger("xmp").setLevel(logging.ERROR)
            assert spawn(max_restarts=1) == [0, 1]
    """
    assert run(source, tmp_path, "fail") == ""
    assert WARNING in run(source, tmp_path, "fail", XMP_LOG="warning")  # the user wants to see it


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_replicas_keep_the_logging_of_the_program(method: str, tmp_path: Path) -> None:
    source = """
        def configuration(rank):
            root, own = logging.getLogger(), logging.getLogger("xmp")
            return [*map(str, root.handlers), root.level, own.handlers, own.level, own.propagate]

        if __name__ == "__main__":
            spawn()  # what this process logs must not reach the replicas of the next launch
            options = dict(nprocs=2, runtime="cpu", start_method=sys.argv[1])
            for each in xmp.spawn(configuration, **options):
                assert each == [30, [], 0, True], each
    """
    run(source, tmp_path, method, XMP_LOG="debug")


# --- warnings -------------------------------------------------------------------------------------


@pytest.fixture
def other_thread() -> Any:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="loader")
    thread.start()
    yield thread
    end.set()
    thread.join()


def fork() -> None:
    xmp.spawn(abs, nprocs=2, runtime="cpu", start_method="fork")


def test_what_the_program_can_change_is_a_warning_about_its_line(other_thread: Any) -> None:
    with pytest.warns(RuntimeWarning, match="Python threads are not forked.*'loader'") as shown:
        fork()
    (warning,) = [each for each in shown if "Python threads" in str(each.message)]
    assert warning.filename == __file__
    assert warning.lineno == fork.__code__.co_firstlineno + 1


def test_warning_filters_are_obeyed(other_thread: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fork()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="xmp: Python threads")
        with pytest.raises(RuntimeWarning, match="'loader'"):
            fork()
    assert capfd.readouterr().err == ""


# --- the module -----------------------------------------------------------------------------------


def test_a_warning_may_be_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = f"said at {time.monotonic_ns()}"
    for _ in range(2):
        log.warning(text, once=True)
        log.warning("%s: %d %%", text, 3, once=True)
    assert capsys.readouterr().err == f"xmp: {text}\nxmp: {text}: 3 %\n"


def test_text_without_values_is_not_a_format(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    log.error("100 %s")
    assert capsys.readouterr().err == "xmp: 100 %s\n"
    assert caplog.messages == ["100 %s"]


def test_a_standard_error_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        log.warning("not read")
