"""Collectives over torch: trees, unequal objects, what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import xmp
from tests.support.frameworks import OPS, together
from tests.support.frameworks import replicas as any_replicas

replicas = partial(any_replicas, runtime="cpu")


def reduced(rank: int, op: str) -> Any:
    import numpy as np
    import torch

    value = {
        "tensor": torch.tensor([rank, -1.5]),
        "integers": torch.tensor([rank + 1, 2]),
        "truth": torch.tensor([rank == 0, True]),
        "half": torch.full((2,), 40000.0 if op == "mean" else 2.0, dtype=torch.float16),
        "short": torch.tensor([rank], dtype=torch.int16),
        "empty": torch.empty(0),
        "scalar": torch.tensor(float(rank)),
        "array": [np.array([[rank, 1.0]]), np.array(rank, "uint16"), np.float32(rank)],
        "strided": np.arange(6.0).reshape(2, 3)[:, ::2] + rank,
        "number": (rank, 2.5, True),
        "word": "the same",
        "nothing": None,
    }
    before = str(value)
    result = xmp.all_reduce(value, op)
    assert str(value) == before, "changed in place"
    return result


def reduced_every_way(rank: int) -> Any:
    return {op: reduced(rank, op) for op in OPS}


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What each function returns in two replicas; one launch for all."""
    functions = reduced_every_way, sent, gathered, refused, jax_array_in_torch
    return together(replicas, *functions, nprocs=2)


@pytest.fixture(scope="module")
def by_op(found: dict[str, list[Any]]) -> list[Any]:
    """What two replicas got, by op."""
    return found["reduced_every_way"]


def expected(op: str) -> dict[str, Any]:
    """By the same rules from numpy: two replicas, ranks 0 and 1."""
    import numpy as np

    def of(*both: Any) -> Any:
        return getattr(np, op)(np.stack([np.asarray(each) for each in both]), axis=0)

    strided = np.arange(6.0).reshape(2, 3)[:, ::2]
    return {
        "tensor": of([0.0, -1.5], [1.0, -1.5]),
        "integers": of([1, 2], [2, 2]),
        "truth": of([True, True], [False, True]),
        "short": of([0], [1]),
        "scalar": of(0.0, 1.0),
        "strided": of(strided, strided + 1),
    }


@pytest.mark.parametrize("op", OPS)
def test_all_reduce_over_a_tree(op: str, by_op: list[Any]) -> None:
    import numpy as np
    import torch

    one, other = (each[op] for each in by_op)
    assert str(one) == str(other)
    for name, want in expected(op).items():
        np.testing.assert_allclose(np.asarray(one[name]), want, err_msg=name)
    assert list(one) == ["tensor", "integers", "truth", *list(one)[3:]]
    assert one["half"].dtype == torch.float16
    assert torch.isfinite(one["half"]).all()
    assert one["integers"].dtype == (torch.float32 if op == "mean" else torch.int64)
    assert one["short"].dtype == (torch.float32 if op == "mean" else torch.int16)
    assert (
        one["truth"].dtype
        == {
            "min": torch.bool,
            "max": torch.bool,
            "mean": torch.float32,
            "sum": torch.int64,
            "prod": torch.int64,
        }[op]
    )
    assert one["empty"].shape == (0,)
    assert one["scalar"].shape == ()
    matrix, small, number = one["array"]
    assert (matrix.dtype, matrix.shape) == (np.float64, (1, 2))
    assert (small.dtype, small.shape) == (np.dtype("float64" if op == "mean" else "uint16"), ())
    assert isinstance(number, np.float32)
    assert one["number"][0] == {"sum": 1, "mean": 0.5, "min": 0, "max": 1, "prod": 0}[op]
    assert (one["word"], one["nothing"]) == ("the same", None)


class Config:
    """What is not a tree: goes whole, by pickle."""

    def __init__(self, rank: int) -> None:
        import torch

        self.rank = rank
        self.weights = torch.full((3, 5), float(rank))
        self.half = self.weights.to(torch.bfloat16)


def sent(rank: int) -> Any:
    import numpy as np
    import torch

    config = xmp.broadcast(Config(rank), src=1)
    big = xmp.broadcast(np.full(100_000, rank) if rank == 1 else None, 1)
    parameter = xmp.broadcast(torch.nn.Parameter(torch.full((2,), float(rank))), 1)
    function = xmp.broadcast((lambda: "by value") if rank == 1 else None, 1)
    tied = xmp.broadcast([parameter.data] * 2, 1)
    big[0] = -1  # writable, and the replica's own
    return (
        (type(config) is Config, config.rank, config.weights.sum().item(), str(config.half.dtype)),
        (len(big), int(big[1:].min()), int(big[0])),
        (type(parameter).__name__, parameter.requires_grad, parameter.sum().item()),
        (function(), tied[0] is tied[1]),
    )


def test_broadcast_of_any_object(found: dict[str, list[Any]]) -> None:
    one, other = found["sent"]
    assert one == other
    assert one[0] == (True, 1, 15.0, "torch.bfloat16")
    assert one[1] == (100_000, 1, -1)
    assert one[2] == ("Parameter", True, 2.0)
    assert one[3] == ("by value", True)


def gathered(rank: int) -> Any:
    import torch

    value = {"t": torch.arange(rank + 1), "words": "x" * 2000 * rank, "rank": rank}
    return xmp.all_gather(value)


def test_all_gather_of_unequal_objects(found: dict[str, list[Any]]) -> None:
    for each_of in found["gathered"]:
        assert [each["rank"] for each in each_of] == [0, 1]
        assert [each["t"].tolist() for each in each_of] == [[0], [0, 1]]
        assert [len(each["words"]) for each in each_of] == [0, 2000]


def refused(rank: int) -> list[str]:
    texts = []
    for call in (lambda: xmp.all_reduce(1, "avg"), lambda: xmp.broadcast(1, 2)):
        with pytest.raises(ValueError) as raised:
            call()
        texts.append(str(raised.value))
    return texts


def test_what_does_not_fit_is_refused_before_anything_is_sent(found: dict[str, list[Any]]) -> None:
    for texts in found["refused"]:
        assert texts[0].startswith("op is 'avg'; allowed are")
        assert texts[1] == "src is 2; this launch has the ranks 0 to 1"


def jax_array_in_torch(rank: int) -> Any:
    import jax.numpy as jnp

    return xmp.all_reduce(jnp.array([rank, 1])), xmp.all_gather(jnp.array([rank]))


def test_jax_arrays_go_as_numpy_arrays(found: dict[str, list[Any]]) -> None:
    import numpy as np

    total, parts = found["jax_array_in_torch"][0]
    assert isinstance(total, np.ndarray)
    assert total.tolist() == [1, 2]
    assert [part.tolist() for part in parts] == [[0], [1]]
