"""``xmp explain``, ``xmp completion``, and what ``xmp`` says of words that it does not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stage import PACKAGE
from xmp.__main__ import main
from xmp._explain import CODES

COMPLETES = """
source {script}
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_xmp
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize("asked", ["XMP-R04", "xmp-r04", "r04", "R4", "[XMP-R04]", "XMPR04"])
def test_a_page_is_printed(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", asked]) == 0
    assert capsys.readouterr().out == (PACKAGE / "_explain/XMP-R04.md").read_text("utf-8")


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{kind.code}  {kind.title}" for kind in CODES]


@pytest.mark.parametrize(
    ("asked", "near"),
    [("XMP-R44", "XMP-R04"), ("r-99", "XMP-R09"), ("memory", "XMP-R04"), ("/etc/passwd", "")],
)
def test_an_unknown_code_suggests_near_ones(
    asked: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", asked]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    first, *meant = said.err.splitlines()
    assert first == (
        f"xmp: no error of xmp has the code {asked!r}; `xmp explain` lists all codes [XMP-P01]"
    )
    assert any(line.startswith(f"  {near}  ") for line in meant) if near else not meant


@pytest.mark.parametrize("asked", ["", " ", "I", "rr", "\33"])
def test_a_word_that_is_too_short_to_search_for_suggests_none(
    asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", asked]) == 1
    assert capsys.readouterr().err == (
        f"xmp: no error of xmp has the code {asked!r}. Give one as the error shows it, such as "
        "R04; `xmp explain` lists all codes [XMP-P01]\n"
    )


def test_pages_are_read_without_files_of_their_own(tmp_path: Path) -> None:
    """As from a zip file; and the package that is built has them."""
    import zipfile

    with zipfile.ZipFile(tmp_path / "xmp.zip", "w") as archive:
        for path in PACKAGE.rglob("*"):
            if path.suffix in (".py", ".md"):
                archive.write(path, path.relative_to(PACKAGE.parent))
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'xmp.zip')!r})\n"
    code += "from xmp.__main__ import main; main(['explain', 't04'])"
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("# XMP-T04: "), done.stderr


# --- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu", "a.py"], "there is no command 'rnu'. Did you mean: xmp run? Commands: run, plan"),
        (["train.py"], "there is no command 'train.py'. Did you mean: xmp run train.py?"),
        (["jump"], "there is no command 'jump'. Commands: run, plan"),
        (["EXPLAIN", "r01"], "there is no command 'EXPLAIN'. Did you mean: xmp explain? Commands:"),
        (["w" * 60_000], f"there is no command '{'w' * 37}...{'w' * 38}'. Commands: run, plan"),
        (["--versoin"], "unrecognized arguments: --versoin. Did you mean --version?"),
        (["--exlpain", "r02"], "unrecognized arguments: --exlpain. Did you mean: xmp explain?"),
        (["-n", "2", "run"], "-n. Options of a command come after it: xmp run -n"),
        (["plan", "--jsn"], "unrecognized arguments: --jsn. Did you mean --json?"),
        (["doctor", "x", "--JSON=1"], "unrecognized arguments: x --JSON=1. Did you mean --json?"),
        (["doctor", "--a\33[31m", "w" * 201], "unrecognized arguments: '--a\\x1b[31m' 'www"),
        (["plan", "--=\33[31m"], r"ambiguous option: --=\x1b[31m could match"),
    ],
)
def test_an_unknown_word_suggests(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert said in err.partition("error: ")[2]
    assert "\33" not in err


def test_help_fits_a_terminal_and_each_option_is_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for word in ("", "plan", "facts", "doctor", "stacks", "clean", "explain", "completion"):
        with pytest.raises(SystemExit):
            main([*filter(None, [word]), "--help"])
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if len(line) > 80] == []
        bare = [
            i
            for i, line in enumerate(lines[:-1])
            if line.startswith("  -") and "  " not in line.strip()
        ]
        assert [lines[i] for i in bare if not lines[i + 1].startswith("      ")] == []


# --- completion ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("xmp pl", "plan"),
        ("xmp plan --run", "--runtime"),
        ("xmp run -n 2 tra", "train.py"),
        ("xmp run --log-dir lo", "logs"),
        ("xmp explain XMP-R04", "XMP-R04"),
        ("xmp completion z", "zsh"),
    ],
)
def test_bash_completes(
    words: str, offered: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "train.py").touch()
    (tmp_path / "logs").mkdir()
    asked = ["bash", "-c", COMPLETES.format(script=script, words=words)]
    done = subprocess.run(
        asked, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.stdout.split() == [offered], done.stderr


def test_zsh_gets_a_script_for_its_path_of_functions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef xmp\n")


@pytest.mark.parametrize("how", ["raises", "lacks what is asked of it"])
def test_a_broken_shtab_is_one_error(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "raise RuntimeError('half\\ninstalled')" if how == "raises" else ""
    (tmp_path / "shtab.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shtab", raising=False)
    assert main(["completion", "bash"]) == 1
    monkeypatch.delitem(sys.modules, "shtab", raising=False)
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "Install it again: pip install --force-reinstall shtab [XMP-P00]" in said.err


def test_without_shtab_the_error_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "Install it: pip install shtab [XMP-P00]" in said.err
