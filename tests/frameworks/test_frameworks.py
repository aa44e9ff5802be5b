"""What the frameworks share: trees, reductions of gathered values, entering torch."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.stage import Stage
from xmp._inside.frameworks import _trees
from xmp._inside.frameworks._reduce import fold, is_array, is_number


class Point(NamedTuple):
    x: Any
    y: Any


# --- trees -------------------------------------------------------------------------------------


def test_a_tree_comes_back_with_its_types_and_order() -> None:
    ordered = collections.OrderedDict(b=1, a=(2, [3]))
    tree = {"o": ordered, "p": Point(4, {}), "n": None}
    doubled = _trees.rebuild(tree, [leaf and leaf * 2 for leaf in _trees.leaves(tree)])
    assert doubled == {
        "o": collections.OrderedDict(b=2, a=(4, [6])),
        "p": Point(8, {}),
        "n": None,
    }
    assert list(doubled["o"]) == ["b", "a"]
    assert type(doubled["p"]) is Point


def test_the_leaves_do_not_depend_on_the_order_of_insertion() -> None:
    assert _trees.leaves({"a": 1, "b": 2, 3: 4}) == _trees.leaves({3: 4, "b": 2, "a": 1})


def test_a_defaultdict_stays_one() -> None:
    tree = collections.defaultdict(list, a=1)
    built = _trees.rebuild(tree, [5])
    assert built == {"a": 5}
    assert built["new"] == []


# --- reductions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "op", "result"),
    [
        ([1, 2, 4], "sum", 7),
        ([1, 2, 4], "prod", 8),
        ([3, 1, 2], "min", 1),
        ([3, 1, 2], "max", 3),
        ([1, 2], "mean", 1.5),
        ([True, True, False], "sum", 2),
        ([2**70, 1], "sum", 2**70 + 1),
        ([0, 0.5], "sum", 0.5),
        ([1j, 2], "sum", 2 + 1j),
    ],
)
def test_numbers_keep_their_kind_and_size(values: list[Any], op: str, result: Any) -> None:
    folded = fold(values, op)
    assert folded == result
    assert type(folded) is type(result)


@pytest.mark.parametrize("op", ["min", "max", "sum", "mean", "prod"])
@pytest.mark.parametrize("values", [[float("nan"), 1.0], [1.0, float("nan")]])
def test_not_a_number_wins(op: str, values: list[float]) -> None:
    assert np.isnan(fold(values, op))


@pytest.mark.parametrize(
    ("dtype", "op", "result"),
    [
        ("uint16", "sum", "uint16"),
        ("uint16", "mean", "float64"),
        ("float16", "mean", "float16"),
        ("bool", "sum", "int64"),
        ("bool", "max", "bool"),
        ("longdouble", "prod", "longdouble"),
    ],
)
def test_arrays_keep_their_type(dtype: str, op: str, result: str) -> None:
    folded = fold([np.ones(3, dtype), np.ones(3, dtype)], op)
    assert folded.dtype == np.dtype(result)


def test_what_counts_as_number_and_array() -> None:
    assert all(map(is_number, [1, 1.5, True, 1j, np.float32(1), np.bool_(True)]))
    assert not any(map(is_number, ["1", None, np.ones(1), np.str_("a"), np.datetime64("now")]))
    assert is_array(np.ones(1, "uint8"))
    assert not any(map(is_array, [np.array(["a"]), np.array([None]), np.zeros(1, "i4,f4"), [1]]))


# --- entering torch ----------------------------------------------------------------------------


ENTERS = """
import os, sys
import in_script
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
from xmp._words.replica_info import ReplicaInfo
from xmp._inside.frameworks import torch_dist

def maker():
    module = sys.modules["torch.distributed.rendezvous"]
    return module._create_c10d_store.__module__.partition(".")[0]

info = ReplicaInfo(0, 0, 1, 1, settings={"device_type": "cpu"})
framework = torch_dist.enter(info)
in_script.say(imported=sorted({"torch", "numpy", "jax"} & set(sys.modules)))
import torch.distributed
in_script.say(readied=maker())
framework.leave()
in_script.say(left=maker())

reader, writer = os.pipe()
settings = {"device_type": "mtia"}  # a device that this build does not have
info = ReplicaInfo(0, 0, 1, 1, settings=settings, descriptors={"store": reader})
try:
    torch_dist.enter(info)
except (RuntimeError, AssertionError, AttributeError):
    in_script.say(in_vain=maker())
    try:
        os.fstat(reader)
    except OSError:
        in_script.say(listener="closed")
"""


@pytest.fixture(scope="module")
def enters(shared_stage: Stage) -> dict[str, Any]:
    """What one process says that enters torch, leaves it, and enters it in vain."""
    return shared_stage.run(ENTERS).said


def test_entering_torch_is_free_until_torch_is_used(enters: dict[str, Any]) -> None:
    assert enters["imported"] == []
    assert (enters["readied"], enters["left"]) == ("xmp", "torch")


def test_entering_torch_in_vain_changes_nothing(enters: dict[str, Any]) -> None:
    assert (enters["in_vain"], enters["listener"]) == ("torch", "closed")
