"""``xmp.compat.paddle`` and ``paddle.distributed`` side by side, under both launchers."""

from __future__ import annotations

import json
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.frameworks import replicas as any_replicas
from tests.support.stage import Stage

pytestmark = pytest.mark.paddle

replicas = partial(any_replicas, runtime="paddle")

PROPERTIES = (
    *("rank", "world_size", "device_id", "device_type", "current_endpoint", "trainer_endpoints"),
    *("nrings", "pg_timeout", "local_rank", "nranks", "dev_id"),
)
NOT_ON_A_CPU = {"device_id", "dev_id"}
"""Paddle 3.3.1 sets them only where it is built for a device."""


def everything(dist: Any) -> dict[str, Any]:
    """What one of the two modules says: properties, functions, the group."""
    env = dist.ParallelEnv()
    found = {name: getattr(env, name, None) for name in PROPERTIES}
    found["before"] = [dist.get_rank(), dist.get_world_size()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        group = dist.init_parallel_env()
    found["warned"] = [(each.category.__name__, str(each.message)) for each in caught]
    found["after"] = [dist.get_rank(), dist.get_world_size()]
    if group is not None:
        found |= of_the_group(dist, group)
    return found


def of_the_group(dist: Any, group: Any) -> dict[str, Any]:
    import paddle.distributed

    if not hasattr(of_the_group, "first"):
        of_the_group.first = paddle.distributed.new_group([0])  # type: ignore[attr-defined]
    first = of_the_group.first  # type: ignore[attr-defined]
    return {
        "group": [group.rank, group.ranks, group.nranks, group.id, group.name, group.world_size],
        "asked": [group.is_member(), group.get_group_rank(1), group.get_global_rank(1)],
        "backend": group.backend,
        "repr": repr(group),
        "same": dist.init_parallel_env() is group,
        "of it": [dist.get_rank(group), dist.get_world_size(group)],
        "of another": [dist.get_rank(first), dist.get_world_size(first)],
    }


def both() -> tuple[dict[str, Any], dict[str, Any], bool]:
    import paddle.distributed

    import xmp.compat.paddle as ours

    found = everything(paddle.distributed), everything(ours)
    return *found, ours.init_parallel_env() is paddle.distributed.init_parallel_env()


def compared(where: str, paddles: dict[str, Any], ours: dict[str, Any]) -> None:
    print(f"\n{where}")
    for name, value in paddles.items():
        print(f"  {name:18} {value!r:60} {ours[name]!r}")
    assert ours.keys() == paddles.keys()
    for name in paddles:
        known = 0 if name in NOT_ON_A_CPU and paddles[name] is None else paddles[name]
        assert ours[name] == known, name


def in_a_replica(rank: int) -> Any:
    return both()


def test_in_replicas_everything_is_equal() -> None:
    found = replicas(in_a_replica, nprocs=2, env={"PADDLE_PG_TIMEOUT": "90000"})
    for rank, (paddles, ours, is_one) in enumerate(found):
        compared(f"xmp, rank {rank}", paddles, ours)
        assert ours["group"] == [rank, [0, 1], 2, 0, "_default_pg", 2]
        assert (ours["pg_timeout"], is_one) == (90_000, True)


def test_a_single_replica_is_a_world_of_one() -> None:
    [(paddles, ours, is_one)] = replicas(in_a_replica, nprocs=1)
    compared("xmp, alone", paddles, ours)
    assert "Currently not a parallel execution environment" in ours["warned"][0][1]
    assert is_one  # None, both of them


PROGRAM = """
import json, sys
from tests.paddle.test_environment_of_paddle import both

found = both()
sys.stdout.write("found " + json.dumps(found) + "\\n")
sys.stdout.flush()
"""


def said(text: str) -> Any:
    [line] = [line for line in text.splitlines() if line.startswith("found ")]
    return json.loads(line.removeprefix("found "))


def test_under_paddles_launcher_everything_is_equal(stage: Stage, tmp_path: Path) -> None:
    path = stage.write(PROGRAM)
    command = ("-m", "paddle.distributed.launch", "--nproc_per_node=2", f"--log_dir={tmp_path}/log")
    done = stage.python(*command, str(path), timeout=120)
    assert done.code == 0, done.err
    for rank in (0, 1):
        paddles, ours, is_one = said((tmp_path / "log" / f"workerlog.{rank}").read_text())
        compared(f"paddle.distributed.launch, rank {rank}", paddles, ours)
        assert ours["group"] == [rank, [0, 1], 2, 0, "_default_pg", 2]
        assert is_one


def test_in_a_plain_process_everything_is_equal(stage: Stage) -> None:
    done = stage.python(str(stage.write(PROGRAM)), timeout=60)
    assert done.code == 0, done.err
    paddles, ours, _ = said(done.out)
    compared("a plain process", paddles, ours)
    assert (ours["rank"], ours["world_size"], ours["trainer_endpoints"]) == (0, 1, [""])


MISTAKES = [
    ({"PADDLE_TRAINER_ID": "1"}, "PADDLE_TRAINER_ID=1 is set and PADDLE_TRAINERS_NUM is not"),
    (
        {"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"},
        "2 trainers need an address to meet at",
    ),
    (
        {"PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "2", "PADDLE_MASTER": "[::1]:6070"},
        "Paddle takes no IPv6 address",
    ),
    (
        {
            "PADDLE_TRAINER_ID": "0",
            "PADDLE_TRAINERS_NUM": "2",
            "PADDLE_MASTER": "127.0.0.1:6070",
            "PADDLE_DISTRI_BACKEND": "nccl",
        },
        "your paddle is not compiled with cuda but you assign 'nccl' as backend",
    ),
]


@pytest.mark.parametrize(("given", "text"), MISTAKES, ids=[text[:30] for _, text in MISTAKES])
def test_variables_are_checked_before_paddle_reads_them(
    given: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import paddle.distributed  # noqa: F401 - it is the framework of this process

    import xmp.compat.paddle as dist

    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=text):
        dist.init_parallel_env()


# --- sync_params_buffers --------------------------------------------------------------------------


def synchronized(rank: int) -> dict[str, list[float]]:
    import paddle

    import xmp.compat.paddle as ours

    group = ours.init_parallel_env()
    found = {}
    for name, module in (("paddle", paddle.distributed.parallel), ("xmp", ours)):
        layer = paddle.nn.Sequential(paddle.nn.Linear(2, 1), paddle.nn.BatchNorm1D(1))
        layer[0].bias.no_sync = True
        for value in layer.state_dict().values():
            value.set_value(paddle.full_like(value, rank + 1.0))
        module.sync_params_buffers(layer, group, src_rank=1, fuse_params=False)
        values = layer.state_dict().items()
        found[name] = [(key, value.flatten().tolist()) for key, value in values]
    return found


def test_a_layers_values_are_sent_as_paddle_sends_them() -> None:
    for rank, found in enumerate(replicas(synchronized, nprocs=2)):
        print(found)
        assert found["xmp"] == found["paddle"]
        kept = dict(found["xmp"])
        assert kept.pop("0.bias") == [rank + 1.0]
        assert {value for values in kept.values() for value in values} == {2.0}


def of_another_runtime() -> None:
    import paddle

    import xmp.compat.paddle as ours

    with pytest.raises(xmp.PlanError, match='Launch with runtime="paddle"'):
        ours.sync_params_buffers(paddle.nn.Linear(1, 1))
    with pytest.raises(xmp.PlanError, match="the model is Paddle's, and this launch has runtime"):
        ours.DataParallel(paddle.nn.Linear(1, 1))
    with pytest.raises(xmp.PlanError, match="the framework of this program is Paddle's"):
        ours.init_parallel_env()


def test_paddles_program_in_a_replica_of_torch_is_refused() -> None:
    assert "torch" not in sys.modules
    xmp.spawn(lambda rank: of_another_runtime(), nprocs=2, runtime="cpu")


def test_the_names_that_a_program_keeps_are_paddles() -> None:
    import paddle.distributed

    from xmp.plugins.paddle.face import _RENAMED, _XMPS

    there = {*dir(paddle.distributed), *dir(paddle.distributed.collective)}
    assert [name for name in (*_XMPS, *_RENAMED) if name not in there] == []
