"""Whole programs, run as a user runs them."""

from __future__ import annotations

from pathlib import Path

from tests.support.stage import Python, Script

GUARDED = """
import dataclasses, enum, json, os, sys
import xmp

BASE = 40
print("imported", __name__, file=sys.stderr)
with open(os.environ["COUNT"], "a") as count:
    count.write(f"{__name__} {os.getpid()}\\n")

@dataclasses.dataclass(frozen=True)
class Config:
    rate: float
    mode: "Mode"

class Mode(enum.Enum):
    FAST = 1

REGISTRY = {}

def register(fn):
    REGISTRY[fn.__name__] = fn
    return fn

@register
def decorated(rank, config):
    assert isinstance(config, Config) and config.mode is Mode.FAST
    assert REGISTRY["decorated"] is decorated
    return Config(config.rate + rank + BASE, Mode.FAST), Mode.FAST, type(config) is Config

if __name__ == "__main__":
    BASE = 0  # of the launcher only
    for _ in range(int(sys.argv[2])):
        got = xmp.spawn(decorated, (Config(0.5, Mode.FAST),), nprocs=3, runtime="cpu",
                        start_method=sys.argv[1])
        for rank, (config, mode, same) in enumerate(got):
            assert isinstance(config, Config), type(config)
            assert config.rate == rank + 0.5 + (0 if sys.argv[1] == "fork" else 40), config
            assert mode is Mode.FAST and same
    print(json.dumps("fine"))
"""


def imports(path: Path) -> list[str]:
    return [line.split()[0] for line in path.read_text().splitlines()]


def test_a_script_is_imported_once_for_all_replicas(
    method: str, script: Script, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    done = script(GUARDED, method, "2", env={"COUNT": str(count)})
    assert done.json() == "fine"
    names = imports(count)
    assert names[0] == "__main__"
    assert set(names[1:]) <= {"__mp_main__"}, "it is imported, never run as the main program"
    expected = {"forkserver": range(1, 2), "spawn": range(1, 9), "fork": range(1)}[method]
    assert len(names) - 1 in expected, names


UNGUARDED = """
import os, sys
import xmp

with open(os.environ["COUNT"], "a") as count:
    count.write(f"{__name__} {os.getpid()}\\n")

def fn(rank):
    return rank * 2

results = xmp.spawn(fn, nprocs=3, runtime="cpu", start_method=sys.argv[1])
print(list(results))
print("fine" if list(results) == [0, 2, 4] else "wrong")
"""


def test_a_script_without_a_guard_works_or_is_refused(
    method: str, script: Script, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    done = script(UNGUARDED, method, env={"COUNT": str(count)}, timeout=20)
    assert len(imports(count)) <= 8, "a bomb of processes"
    if done.code == 0:
        assert done.out.splitlines()[-1] == "fine"
        assert done.out.count("fine") == 1
    else:
        assert '__name__ == "__main__"' in done.err.replace("'", '"'), done.err


UNDER_GUARD = """
import sys
import xmp

if __name__ == "__main__":
    class Local:
        pass

    def helper(rank):
        return rank + 1

    def fn(rank, local):
        assert isinstance(local, Local)
        return helper(rank)

    print(list(xmp.spawn(fn, (Local(),), nprocs=2, runtime="cpu", start_method=sys.argv[1])))
"""


def test_functions_defined_under_the_guard(method: str, script: Script) -> None:
    done = script(UNDER_GUARD, method)
    assert done.out == "[1, 2]\n", done


MODULE = """
import sys
from . import sibling
import xmp

class Thing:
    value = 3

def fn(rank, thing):
    return rank + sibling.ADD + thing.value, isinstance(thing, Thing), Thing()

if __name__ == "__main__":
    got = list(xmp.spawn(fn, (Thing(),), nprocs=2, runtime="cpu", start_method=sys.argv[1]))
    assert all(isinstance(each[2], Thing) for each in got), got
    print([each[:2] for each in got], sys.argv[1:])
"""


def test_python_dash_m(method: str, python: Python, tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sibling.py").write_text("ADD = 100\n")
    (package / "mod.py").write_text(MODULE)
    (package / "__main__.py").write_text(MODULE)
    for name in ("pkg.mod", "pkg"):
        done = python("-m", name, method, cwd=tmp_path)
        assert done.out == f"[(103, True), (104, True)] ['{method}']\n", done


INLINE = """
import sys, collections
import xmp

class Thing:
    def __eq__(self, other):
        return type(self) is type(other)

Pair = collections.namedtuple("Pair", "a b")

def helper(x):
    return x + 1

def fn(rank, thing):
    assert isinstance(thing, Thing)
    return Thing(), Pair(rank, helper(rank)), [lambda: rank]

if True:
    for _ in range(2):
        got = xmp.spawn(fn, (Thing(),), nprocs=2, runtime="cpu", start_method=METHOD)
        for rank, (thing, pair, (function,)) in enumerate(got):
            assert isinstance(thing, Thing) and thing == Thing(), type(thing)
            assert isinstance(pair, Pair) and pair == (rank, rank + 1)
            assert function() == rank

print("fine")
"""


def test_python_dash_c(method: str, python: Python) -> None:
    done = python("-c", INLINE.replace("METHOD", repr(method)))
    assert done.out == "fine\n", done


def test_standard_input_as_program(method: str, python: Python) -> None:
    source = INLINE.replace("METHOD", repr(method))
    for arguments in ([], ["-"]):
        done = python(*arguments, stdin=source)
        assert done.out == "fine\n", done


def test_the_interactive_interpreter(method: str, python: Python) -> None:
    done = python("-i", "-q", stdin=INLINE.replace("METHOD", repr(method)))
    assert "fine\n" in done.out, done


def test_a_folder_with_modules_named_as_the_standard_librarys(
    method: str, script: Script, tmp_path: Path
) -> None:
    for name in ("tty", "pty", "statistics", "cmd", "profile", "code"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    source = """
import sys
import xmp

def fn(rank):
    return rank

if __name__ == "__main__":
    print(list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])))
"""
    done = script(source, method)
    assert done.out == "[0, 1]\n", done


def test_a_random_py_beside_the_script_is_the_scripts(
    method: str, script: Script, tmp_path: Path
) -> None:
    (tmp_path / "random.py").write_text(
        "WHOSE = 'mine'\n\ndef seed(*_):\n    pass\n\nclass Random:\n    pass\n"
    )
    source = """
import sys
import xmp

def fn(rank):
    import random
    return random.WHOSE

if __name__ == "__main__":
    print(list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])))
"""
    done = script(source, method)
    assert done.out == "['mine', 'mine']\n", done


def test_modules_beside_the_script(method: str, script: Script, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import os\nVALUE = []\ndef fn(rank): return rank, VALUE\n")
    source = """
import sys
sys.path.append(sys.argv[2])
import beside, elsewhere
import xmp

if __name__ == "__main__":
    beside.VALUE.append("of the launcher")
    got = xmp.spawn(beside.fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])
    assert list(got) == [(r, beside.VALUE if sys.argv[1] == "fork" else []) for r in range(2)], got
    got = xmp.spawn(elsewhere.fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])
    print(list(got))
"""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "elsewhere.py").write_text("def fn(rank): return __name__\n")
    done = script(source, method, str(tmp_path / "other"))
    assert done.out == "['elsewhere', 'elsewhere']\n", done


def test_an_edited_module_is_seen_by_the_next_launcher_process(
    method: str, script: Script, tmp_path: Path
) -> None:
    source = """
import sys
import beside
import xmp

if __name__ == "__main__":
    print(list(xmp.spawn(beside.fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])))
"""
    for value in (1, 22):
        (tmp_path / "beside.py").write_text(f"def fn(rank): return {value}\n")
        assert script(source, method).out == f"[{value}, {value}]\n"


def test_a_script_that_raises_at_import_in_the_supervisor(method: str, script: Script) -> None:
    source = """
import sys
import xmp

if __name__ != "__main__":
    raise RuntimeError("only once please")

def fn(rank):
    return rank

if __name__ == "__main__":
    print(list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])))
"""
    done = script(source, method)
    if method == "fork":
        assert done.out == "[0, 1]\n"
    else:
        assert done.code == 1
        assert "only once please" in done.err


def test_a_script_that_exits_at_import_in_the_supervisor(method: str, script: Script) -> None:
    source = """
import sys
import xmp

def fn(rank):
    return rank

if __name__ == "__main__":
    print(list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])))
else:
    sys.exit(0)
"""
    done = script(source, method)
    assert done.out == "[0, 1]\n" or (done.code == 1 and "Error" in done.err), done


def test_a_zipped_program_and_a_name_with_blanks(
    method: str, python: Python, tmp_path: Path
) -> None:
    import zipfile

    source = """
import sys
import xmp

def fn(rank):
    return rank

if __name__ == "__main__":
    print(list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])))
"""
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", source)
    (tmp_path / "my script.v2.txt").write_text(source)
    for name in ("app.pyz", "my script.v2.txt"):
        done = python(name, method, cwd=tmp_path)
        assert done.out == "[0, 1]\n", (name, done)


def test_a_script_run_by_a_relative_path_that_changes_folder(
    method: str, python: Python, script: Script, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "rel.py").write_text(
        """
import os, sys
import xmp

def fn(rank):
    return os.path.basename(os.getcwd()), sys.argv

if __name__ == "__main__":
    os.chdir("there")
    for got in xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1]):
        assert got == ("there", sys.argv), got
    print("fine")
"""
    )
    done = python("rel.py", method, "--flag=1", cwd=tmp_path)
    assert done.out == "fine\n", done
