"""Names of ``paddle.distributed`` that ``xmp.compat.paddle`` lacks: errors that say what to do."""

from __future__ import annotations

from typing import Any

import pytest

import xmp
import xmp.compat.paddle
from tests.support.lazily import lazily
from xmp.plugins.paddle.face import _RENAMED, _XMPS

torch = lazily("torch")

dist: Any = xmp.compat.paddle


@pytest.mark.parametrize(
    ("name", "torchs"),
    [
        ("all_reduce", "use xmp.all_reduce"),
        ("ReduceOp", "use torch.distributed.ReduceOp"),
        ("Group", "use torch.distributed.ProcessGroup"),
        ("alltoall", "use torch.distributed.all_to_all"),
        ("fleet", "see help(xmp) and torch.distributed: neither has that name"),
    ],
)
def test_the_error_says_what_stays_paddles_and_what_torch_has(name: str, torchs: str) -> None:
    assert not hasattr(dist, name)
    with pytest.raises(AttributeError) as caught:
        getattr(dist, name)
    text = str(caught.value)
    assert text.startswith(f"module 'xmp.compat.paddle' has no attribute {name!r}. In a program")
    assert "uses Paddle, keep `import paddle.distributed as dist`" in text
    assert "replace spawn alone: `from xmp.compat.paddle import spawn`" in text
    assert text.endswith(f"In a program that uses torch, {torchs}")


def test_names_that_python_asks_for_are_no_advice() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute '__path_of__'$"):
        _ = dist.__path_of__


def test_what_it_names_exists() -> None:
    assert [name for name in _XMPS if not hasattr(xmp, name)] == []
    assert [name for name in _RENAMED.values() if not hasattr(torch.distributed, name)] == []
