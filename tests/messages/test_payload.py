"""How calls and outcomes are packed: images, buffers, tensors, names."""

from __future__ import annotations

import functools
import importlib.machinery
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.lazily import lazily
from xmp._payload import Image, load, load_image, pack, pack_image
from xmp._payload.hints import names_used
from xmp._payload.script import Program, imported_names, program_of_this_process
from xmp._processes.system.linux import memory_file

torch = lazily("torch")


def through(value: Any, inline: bool = True) -> Any:
    image = pack_image(value, memory_file, inline)
    try:
        return load_image(image)
    finally:
        image.close()


@pytest.mark.parametrize(("name", "package"), [("pkg.mod", "pkg"), ("mod", "")])
def test_a_program_of_m_has_its_package(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, path = types.ModuleType("__main__"), str(tmp_path / "mod.py")
    main.__file__, main.__spec__ = path, importlib.machinery.ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert program_of_this_process() == Program("module", name, path, package)


def test_a_function_by_value_keeps_the_name_of_its_cell() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def outer():\n    return lambda: 1", "<cell 3>", "exec"), names)
    outer = through(names["outer"])
    assert outer is not names["outer"]
    assert outer.__code__.co_filename == outer().__code__.co_filename == "<cell 3>"


@pytest.mark.parametrize("inline", [True, False])
def test_arrays_travel_out_of_band_and_arrive_writable(inline: bool) -> None:
    array = np.arange(1000.0)
    back = through({"a": array, "b": [1, "two"]}, inline)
    back["a"][0] = 7
    assert back["a"][1:].tolist() == array[1:].tolist()
    assert array[0] == 0
    assert back["b"] == [1, "two"]


def test_a_large_array_is_not_in_the_stream() -> None:
    image = pack_image(np.zeros(1 << 20), memory_file)
    assert image.data is None
    assert image.size >= 8 << 20
    image.close()


def test_mapped_memory_outlives_the_file() -> None:
    image = pack_image(np.full(1 << 16, 3.0), memory_file)
    back = load_image(image)
    image.close()
    assert back.sum() == 3 << 16


def test_loading_leaves_no_descriptor_open() -> None:
    image = pack_image(np.zeros(1 << 16), memory_file)
    before = len(os.listdir("/proc/self/fd"))
    back = load_image(image)
    assert len(os.listdir("/proc/self/fd")) == before
    image.close()
    del back


def test_tensors_of_one_storage_stay_together() -> None:
    base = torch.arange(12.0)
    back = through({"all": base, "part": base[3:6], "view": base.view(3, 4)})
    back["all"][3] = 99
    assert back["part"][0] == 99
    assert back["view"][0, 3] == 99
    assert base[3] == 3


def test_tied_weights_stay_tied() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    )
    model[1].weight = model[0].weight
    back = through(model)
    assert back[1].weight is back[0].weight
    assert isinstance(back[0].weight, torch.nn.Parameter)
    assert back[0].weight.requires_grad


ODD = {
    "empty": lambda: torch.empty(0),
    "scalar": lambda: torch.tensor(3),
    "transposed": lambda: torch.randn(3, 5).T,
    "bfloat16": lambda: torch.ones(4, dtype=torch.bfloat16),
    "leaf": lambda: torch.randn(3, requires_grad=True),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tensors(name: str) -> None:
    tensor = ODD[name]()
    back = through(tensor)
    assert torch.equal(back, tensor)
    assert back.stride() == tensor.stride()
    assert back.requires_grad == tensor.requires_grad


JAX = """
import jax, numpy
from xmp._payload import load_image, pack, pack_image
from xmp._processes.system.linux import memory_file
back = load_image(pack_image([jax.numpy.arange(3), {"deep": jax.numpy.ones(2)}], memory_file))
assert type(back[0]) is type(back[1]["deep"]) is numpy.ndarray, back
try:
    pack_image(jax.random.key(0), memory_file)
except TypeError as error:
    assert "key_data" in str(error)
else:
    raise AssertionError("a typed key was packed")
assert pack(print, (jax.numpy.ones(1),), {}, memory_file).touches_device
assert not pack(print, (numpy.ones(1),), {}, memory_file).touches_device
"""


def test_jax_arrays() -> None:
    """They leave as numpy; in arguments they are noted. In its own process: a JAX backend in this
    one would forbid all later forks."""
    subprocess.run([sys.executable, "-c", JAX], check=True, timeout=120)


def test_tensors_in_arguments_are_shared_and_those_of_the_function_private() -> None:
    shared, own = torch.zeros(3), torch.zeros(3)

    def fn(rank: int, x: torch.Tensor) -> None:
        own[0] = x[0]

    packed = pack(fn, (shared,), {}, memory_file)
    loaded, (again,), _ = load(packed.image, [os.dup(d) for d in packed.descriptors])
    again[0] = 5
    loaded(0, again)
    assert shared[0] == 5
    assert own[0] == 0
    packed.close()


def test_an_image_of_bytes_is_an_image_of_a_file() -> None:
    small = pack_image([1, 2], memory_file)
    assert small.data is not None
    assert load_image(Image(small.data, small.size)) == [1, 2]


def test_pickle_protocol_is_understood_by_every_python() -> None:
    small = pack_image("x", memory_file)
    assert small.data is not None
    assert b"\x80\x05" in small.data
    assert pickle.HIGHEST_PROTOCOL >= 5


def imports_inside(rank: int) -> None:
    import torch.distributed as dist

    dist.barrier()


def calls_another(rank: int) -> None:
    helper()


def helper() -> None:
    import jax  # noqa: F401


class Callable:
    def __call__(self, rank: int) -> None:
        import sklearn  # noqa: F401


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (imports_inside, "torch"),
        (calls_another, "jax"),
        (functools.partial(imports_inside), "torch"),
        (lambda rank: helper(), "jax"),
        (Callable(), "sklearn"),
    ],
    ids=["import", "a function beside it", "partial", "lambda", "object"],
)
def test_names_that_a_function_uses(fn: Any, name: str) -> None:
    assert name in names_used(fn)


class Asked(type):
    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError(f"the launcher has run the user's code for {name}")


class AnswersItself(metaclass=Asked):
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the launcher has run the user's code for {name}")

    def __call__(self, rank: int) -> None:
        import sklearn  # noqa: F401


class PartialThatAnswers(functools.partial[None]):
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the launcher has run the user's code for {name}")


ANSWERS = object.__new__(AnswersItself)


def uses_a_class_that_answers() -> None:
    object.__new__(AnswersItself)
    print(ANSWERS)


FOUND: dict[str, tuple[Any, str]] = {
    "class": (AnswersItself, "sklearn"),
    "object": (ANSWERS, "sklearn"),
    "partial": (PartialThatAnswers(imports_inside), "torch"),
    "beside it": (uses_a_class_that_answers, "sklearn"),
    "cached": (functools.lru_cache(imports_inside), "torch"),
    "decorated": (functools.wraps(imports_inside)(lambda rank: None), "torch"),
}


@pytest.mark.parametrize("case", FOUND)
def test_names_are_found_without_the_users_code(case: str) -> None:
    fn, name = FOUND[case]
    assert name in names_used(fn)


def test_names_of_a_builtin() -> None:
    assert "torch" not in names_used(print)


def test_what_an_import_of_a_script_finds(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os.path, sys as system\n"
        "from json import dumps as d\n"
        "def outside(): inner = 1\n"
        "if system.argv:\n"
        "    class Sometimes: attribute = 1\n"
        "else:\n"
        "    a, (b, *c) = 1, (2, 3)\n"
        "try: made = d([])\n"
        "finally: pass\n"
        'if "__main__" == __name__:\n'
        "    def inside(): pass\n"
        "    class Also: pass\n"
        "    def outside(): pass\n"
        "else:\n"
        "    imported = True\n"
    )
    assert imported_names(str(script)) == {
        "os", "system", "d", "outside", "Sometimes", "a", "b", "c", "made", "imported",
    }  # fmt: skip


@pytest.mark.parametrize("line", ["exec('f = 1')", "globals()['f'] = 1"])
def test_what_cannot_be_read_in_a_script_is_not_known(line: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(line)
    assert imported_names(str(script)) is None
    script = tmp_path / "guarded.py"
    script.write_text(f"if __name__ == '__main__':\n    {line}\ndef g():\n    exec('f = 1')\n")
    assert imported_names(str(script)) == {"g"}


def test_what_a_script_has_from_another_module_is_not_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from os.path import *\ndef f(): pass\nif __name__ == '__main__': g = 1\n")
    assert imported_names(str(script)) == {"f"}


def test_of_a_script_that_is_gone_nothing_is_known(tmp_path: Path) -> None:
    assert imported_names(str(tmp_path / "none.py")) is None
