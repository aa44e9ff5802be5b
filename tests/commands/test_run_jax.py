"""``xmp run`` of JAX scripts: the mesh is up before the script, whatever brings JAX in."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.commands.test_run import run, shown
from tests.support.stage import Stage
from xmp._payload.frameworks_used import frameworks_used

SHOW = """
import json
import jax

def show(**more):
    place = {"rank": jax.process_index(), "world": jax.process_count()}
    print(json.dumps({**place, **more}), flush=True)
"""
BY_HAND = """
import os
import jax

jax.distributed.initialize(
    os.environ["JAX_COORDINATOR_ADDRESS"], int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
)
from show import show
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
every = multihost_utils.process_allgather(jnp.array(jax.process_index()))
show(every=every.tolist(), up=jax.distributed.is_initialized())
"""


@pytest.mark.parametrize("number", [1, 2])
def test_a_script_that_initialises_itself(stage: Stage, number: int) -> None:
    stage.write(SHOW, "show.py")
    stage.write(BY_HAND, "train.py")
    said = {"world": number, "every": list(range(number)), "up": True}
    found = shown(run(stage, "-n", str(number), "train.py"))
    assert found == [{"rank": rank, **said} for rank in range(number)]


def test_jax_that_the_script_does_not_name_at_its_top(stage: Stage) -> None:
    """Of the places where it is found, this is the last: ``test_what_a_script_uses`` has all."""
    stage.write(SHOW, "show.py")
    stage.write("def main():\n    from show import show\n    show()\nmain()\n", "inside.py")
    done = run(stage, "-n", "2", "inside.py")
    assert shown(done) == [{"rank": rank, "world": 2} for rank in range(2)]
    assert "world of one" not in done.err


HIDDEN = """
import importlib, json, os
jax = importlib.import_module("jax")
print(json.dumps({"rank": int(os.environ["RANK"]), "world": jax.process_count()}), flush=True)
"""


def test_jax_that_cannot_be_seen_is_warned_about(stage: Stage) -> None:
    stage.write(HIDDEN, "hidden.py")
    alone = run(stage, "-n", "2", "hidden.py")
    assert [each["world"] for each in shown(alone)] == [1, 1]
    assert alone.err.count("xmp run --runtime jax") == 1
    named = run(stage, "-n", "2", "--runtime", "cpu", "hidden.py")
    assert ([each["world"] for each in shown(named)], named.err) == ([1, 1], "")
    done = run(stage, "-n", "2", "--runtime", "jax", "hidden.py")
    assert [each["world"] for each in shown(done)] == [2, 2]
    assert "world of one" not in done.err


USES = {
    "by the top": ("import torch\nimport own\ndef f():\n    import jax\n", ("torch",)),
    "by a library": ("from flax import nnx\nimport optax\n", ("jax",)),
    "the name before the library": ("import torch, flax\n", ("torch",)),
    "a library before a function": ("import lightning\ndef f():\n    import jax\n", ("torch",)),
    "own modules": ("import own\n", ("jax",)),
    "modules of own modules": ("import outer\n", ("jax",)),
    "a package": ("from package import part\n", ("jax",)),
    "a function": ("def f():\n    import jax.numpy\n", ("jax",)),
    "a function of an own module": ("import lazy\n", ("jax",)),
    "own before a function": ("import own\ndef f():\n    import torch\n", ("jax",)),
    "types alone": ("if TYPE_CHECKING:\n    import jaxtyping, os\n", ("jax",)),
    "both": ("import jax, torch\n", ("jax", "torch")),
    "neither": ("import os, numpy, missing\n", ()),
    "a variable that the import reads": (
        "import os\nos.environ['JAX_ENABLE_X64'] = '1'\nimport jax\n",
        ("jax",),
    ),
    "no Python": ("import (", ()),
    "below packages without an init": ("import bare.sub.part\n", ("jax",)),
    "the package around a module": ("import around.part\n", ("jax",)),
    "torch at the top, JAX in a function": ("import torch\ndef f():\n    import jax\n", ("torch",)),
    "own modules of a framework's name": ("import paddle, flax, own_too\n", ("torch",)),
    "a long module": ("import long\n", ()),
    "a module that is no Python": ("import broken, own\n", ("jax",)),
    "a module of deep nesting": ("import deep, own\n", ("jax",)),
}
OWN = {
    "bare/sub/part.py": "import jax\n",
    "around/__init__.py": "import jax\n",
    "around/part.py": "",
    "paddle.py": "",
    "flax/__init__.py": "",
    "own_too.py": "import torch\n",
    "long.py": "import jax\n" + "x = 1\n" * 100_000,
    "broken.py": "import (\n\0",
    "deep.py": "x = 1" + " + 1" * 20_000 + "\n",
    "own.py": "import jax\n",
    "outer.py": "import inner\nimport outer\n",
    "inner.py": "import own\n",
    "lazy.py": "class C:\n    def f(self):\n        import jax\n",
    "package/__init__.py": "",
    "package/part.py": "from .other import thing\n",
    "package/other.py": "from jax import numpy as thing\n",
    "numpy.py": "",
}


@pytest.mark.parametrize("case", USES)
def test_what_a_script_uses(tmp_path: Path, case: str) -> None:
    source, expected = USES[case]
    for name, text in {**OWN, "script.py": source}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = frameworks_used(str(tmp_path / "script.py"), str(tmp_path))
    assert found == (expected, "ENABLE_X64" in source)


def test_what_a_module_of_a_package_and_a_zip_file_use(tmp_path: Path) -> None:
    files = {
        "pk/__init__.py": "",
        "pk/__main__.py": "from . import core\n",
        "pk/train.py": "from .core import *\n",
        "pk/deep/low.py": "from ..core import jax\n",
        "pk/core.py": "import jax.numpy\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for file, package in (("__main__", "pk"), ("train", "pk"), ("deep/low", "pk.deep")):
        source = str(tmp_path / "pk" / f"{file}.py")
        assert frameworks_used(source, str(tmp_path), package).frameworks == ("jax",), file
    archive = tmp_path / "app.pyz"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("__main__.py", "import core")
        file.writestr("core.py", "import pk.core")
        file.writestr("pk/__init__.py", "")
        file.writestr("pk/core.py", "import jax")
    used = frameworks_used(str(archive / "__main__.py"), str(archive))
    assert used.frameworks == ("jax",)


OWN_JAX = """
import json, os, sys
import torch, jax
print(json.dumps({"rank": int(os.environ["RANK"]), "own": jax.x}), flush=True)
"""
LOSES_JAX = """
import json, os, sys
import jax
print(json.dumps({"rank": int(os.environ["RANK"]), "world": jax.process_count()}), flush=True)
del sys.modules["jax"]
"""
SPAWNS = """
import xmp, jax

def f(rank):
    return jax.x

if __name__ == "__main__":
    print(*xmp.spawn(f, nprocs=2), xmp.plan(2).runtime)
"""


def test_a_module_of_the_users_called_jax(stage: Stage) -> None:
    stage.write("x = 1", "jax.py")
    stage.write(OWN_JAX, "train.py")
    stage.write(SPAWNS, "spawns.py")
    done = run(stage, "-n", "2", "train.py")
    assert shown(done) == [{"rank": rank, "own": 1} for rank in range(2)]
    spawned = stage.python("spawns.py")
    assert (spawned.out, spawned.err) == ("1 1 cpu\n", "")


def test_jax_that_the_script_removes(stage: Stage) -> None:
    stage.write(LOSES_JAX, "train.py")
    done = run(stage, "-n", "2", "train.py")
    assert shown(done) == [{"rank": rank, "world": 2} for rank in range(2)]


SETS_VARIABLES = """
import os, sys
os.environ["JAX_ENABLE_X64"] = "1"
if "xla" in sys.argv:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
else:
    os.environ["JAX_NUM_CPU_DEVICES"] = "2"
if "one" in sys.argv:
    if os.environ["RANK"] == "0":
        import jax
        print(jax.distributed.is_initialized(), flush=True)
    sys.exit()
from show import show
import jax
import jax.numpy as jnp

jax.distributed.initialize(process_id=int(os.environ["RANK"]))
show(type=str(jnp.ones(2).dtype), devices=jax.device_count())
"""


@pytest.mark.parametrize("options", [("-n", "2"), ("-n", "1"), ("-n", "2", "--runtime", "jax")])
def test_variables_that_the_script_sets_for_jax(stage: Stage, options: tuple[str, ...]) -> None:
    stage.write(SHOW, "show.py")
    stage.write(SETS_VARIABLES, "train.py")
    number = int(options[1])
    said = {"world": number, "type": "float64", "devices": 2 * number}
    found = shown(run(stage, *options, "train.py"))
    assert found == [{"rank": rank, **said} for rank in range(number)]
    if options[2:]:
        assert shown(run(stage, *options, "train.py", "xla")) == found
        alone = run(stage, *options, "train.py", "one")
        assert (alone.code, alone.out) == (0, "True\n"), "rank 1 joins when it ends"


# --- failures -------------------------------------------------------------------------------------

FAILS = """
import sys, os
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils

multihost_utils.sync_global_devices("begun")
if jax.process_index() == int(sys.argv[1]):
    if sys.argv[2] == "raise":
        raise KeyError("the cause")
    if sys.argv[2] == "exit":
        sys.exit(7)
    os._exit(9)
multihost_utils.process_allgather(jnp.ones(3))
"""


OWN_TORCH = """
import torch, numpy, xmp

def f(rank, value):
    return torch.x + rank, value

def sums(rank):
    return xmp.all_reduce(1)

if __name__ == "__main__":
    print(*xmp.spawn(f, ({"a": [1]},), nprocs=2))
    xmp.spawn(sums, nprocs=2)
"""
SETS_AND_HIDES = "import os\nos.environ['JAX_ENABLE_X64'] = '1'\n" + OWN_JAX


@pytest.mark.failing
@pytest.mark.parametrize("source", [OWN_JAX, SETS_AND_HIDES], ids=["early", "late"])
def test_the_mesh_for_a_module_of_the_users_called_jax(stage: Stage, source: str) -> None:
    stage.write("x = 1", "jax.py")
    stage.write(source, "train.py")
    done = run(stage, "-n", "2", "--runtime", "jax", "train.py")
    assert "the replica needs JAX, and the program has imported " in done.err
    assert "jax.py in its place: rename that" in done.err


@pytest.mark.failing
def test_modules_of_the_users_called_torch_and_numpy(stage: Stage) -> None:
    for name in ("torch", "numpy"):
        stage.write("x = 1", f"{name}.py")
    stage.write(OWN_TORCH, "train.py")
    done = stage.python("train.py")
    assert done.out == "(1, {'a': [1]}) (2, {'a': [1]})\n"
    assert "the replica needs torch, and the program has imported " in done.err


@pytest.mark.failing
@pytest.mark.parametrize(
    ("who", "how", "status", "said"),
    [
        ("0", "raise", 1, "raised KeyError: 'the cause'"),
        ("1", "exit", 7, "called sys.exit(7)"),
        ("0", "die", 9, "code 9"),
        ("1", "die", 9, "code 9"),
    ],
)
def test_the_true_cause_comes_first(
    stage: Stage, who: str, how: str, status: int, said: str
) -> None:
    stage.write(FAILS, "fails.py")
    done = run(stage, "-n", "3", "fails.py", who, how)
    first = next(line for line in done.err.splitlines() if line.startswith("xmp: rank"))
    assert f"rank {who} of 3" in first
    assert said in first
    assert done.code == status
    # A coordinator that dies takes its service along: then the others abort with these words.
    aborted = "Terminating process because the JAX distributed service" in done.err
    assert not aborted or (who, how) == ("0", "die")
