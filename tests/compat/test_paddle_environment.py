"""``xmp.compat.paddle`` in programs of torch: where a trainer is, and how trainers connect."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import xmp
import xmp.compat.paddle as dist
from tests.support.launching import launch
from tests.support.lazily import lazily

torch = lazily("torch")

NUMBERS = ("rank", "local_rank", "world_size", "nranks", "device_id", "dev_id", "nrings")
PROPERTIES = (*NUMBERS, "device_type", "current_endpoint", "trainer_endpoints", "pg_timeout")
OTHERS = (
    *("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_PG_TIMEOUT"),
    *("PADDLE_CURRENT_ENDPOINT", "PADDLE_MASTER", "MASTER_ADDR", "MASTER_PORT", "RANK"),
    *("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PADDLE_LOCAL_RANK", "PADDLE_LOCAL_SIZE"),
    *("FLAGS_selected_gpus", "FLAGS_selected_xpus", "FLAGS_nccl_nrings", "PADDLE_DISTRI_BACKEND"),
    "PADDLE_BACKUP_ENV_PATH",
)
TWO = {"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}
ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS"


def everything() -> dict[str, Any]:
    env = dist.ParallelEnv()
    return {name: getattr(env, name) for name in PROPERTIES}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets Paddle's variables for this process, and nothing else that says a rank."""

    def set_them(given: Mapping[str, str]) -> None:
        for name in OTHERS:
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    set_them({})
    return set_them


# --- without a launcher ---------------------------------------------------------------------------


def test_a_plain_process_is_the_only_trainer(variables: Any) -> None:
    assert everything() == {
        **dict.fromkeys(NUMBERS, 0),
        "world_size": 1,
        "nranks": 1,
        "nrings": 1,
        "pg_timeout": 1_800_000,
        "device_type": "",
        "current_endpoint": "",
        "trainer_endpoints": [""],
    }
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    for _ in range(2):
        with pytest.warns(UserWarning, match="this process is the only trainer. Start more by"):
            assert dist.init_parallel_env() is None


# --- variables ------------------------------------------------------------------------------------


def test_the_variables_of_paddles_launcher_are_read_at_once(variables: Any) -> None:
    both = "10.0.0.1:6070,10.0.0.2:6070"
    variables(
        {
            **TWO,
            ENDPOINTS: both,
            "PADDLE_CURRENT_ENDPOINT": "10.0.0.2:6070",
            "FLAGS_selected_gpus": "3,4",
            "FLAGS_nccl_nrings": "2",
            "PADDLE_PG_TIMEOUT": "5000",
        }
    )
    assert everything() == {
        "rank": 1,
        "local_rank": 1,
        "world_size": 2,
        "nranks": 2,
        "device_id": 3,
        "dev_id": 3,
        "nrings": 2,
        "pg_timeout": 5000,
        "device_type": "",
        "current_endpoint": "10.0.0.2:6070",
        "trainer_endpoints": both.split(","),
    }
    assert (dist.get_rank(), dist.get_world_size()) == (1, 2)


def test_without_them_those_of_torchrun_count(variables: Any) -> None:
    variables({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1"})
    env = everything()
    assert (env["rank"], env["nranks"], env["trainer_endpoints"]) == (1, 4, [""])
    assert (dist.get_rank(), dist.get_world_size()) == (1, 4)


def test_an_empty_variable_of_torchs_is_one_that_is_not_set(variables: Any) -> None:
    variables({**TWO, "RANK": "", "WORLD_SIZE": " "})
    assert (dist.ParallelEnv().rank, dist.get_world_size()) == (1, 2)
    with pytest.raises(RuntimeError, match="needs the 2 trainers connected"):
        dist.DataParallel(torch.nn.Linear(1, 1))


def test_endpoints_that_were_too_long_for_the_environment(variables: Any, tmp_path: Path) -> None:
    kept = tmp_path / "backup_env.1.json"
    kept.write_text(json.dumps({ENDPOINTS: "h:1,h:2"}))
    variables({**TWO, "PADDLE_BACKUP_ENV_PATH": str(kept)})
    assert dist.ParallelEnv().trainer_endpoints == ["h:1", "h:2"]
    kept.write_text("{")
    with pytest.raises(xmp.PlanError, match=f"from where {ENDPOINTS} cannot be read"):
        dist.ParallelEnv()


MISTAKES = [
    ({"PADDLE_TRAINER_ID": "1"}, "PADDLE_TRAINER_ID=1 is set and PADDLE_TRAINERS_NUM is not"),
    ({"PADDLE_TRAINERS_NUM": "2"}, "PADDLE_TRAINERS_NUM=2 is set and PADDLE_TRAINER_ID is not"),
    ({**TWO, "PADDLE_TRAINER_ID": "2"}, "PADDLE_TRAINER_ID=2 does not fit PADDLE_TRAINERS_NUM=2"),
    ({**TWO, "PADDLE_TRAINER_ID": "one"}, "PADDLE_TRAINER_ID is 'one'; it must be a whole number"),
    ({**TWO, "PADDLE_TRAINER_ID": "-1"}, "PADDLE_TRAINER_ID is '-1'; it must be a whole number"),
    ({**TWO, "PADDLE_TRAINERS_NUM": ""}, "PADDLE_TRAINERS_NUM is ''; it must be a whole number"),
    ({**TWO, "PADDLE_TRAINERS_NUM": "0"}, "PADDLE_TRAINERS_NUM is '0'; .* from 1 to"),
    ({**TWO, ENDPOINTS: "h:1"}, "has 1 endpoints .h:1., and PADDLE_TRAINERS_NUM is 2"),
    ({**TWO, ENDPOINTS: "h:1,h:2,h:3"}, "has 3 endpoints"),
    ({**TWO, "PADDLE_PG_TIMEOUT": "30 min"}, "PADDLE_PG_TIMEOUT is '30 min'"),
    ({**TWO, "PADDLE_PG_TIMEOUT": "0"}, "PADDLE_PG_TIMEOUT is '0'; .* from 1 to"),
    ({**TWO, "FLAGS_nccl_nrings": "9"}, "FLAGS_nccl_nrings is '9'; .* from 1 to 8"),
    ({**TWO, "FLAGS_selected_gpus": "a"}, "FLAGS_selected_gpus is 'a'"),
    ({**TWO, "PADDLE_LOCAL_RANK": "2", "PADDLE_LOCAL_SIZE": "2"}, "PADDLE_LOCAL_RANK=2 does not"),
    ({**TWO, "RANK": "0", "WORLD_SIZE": "2"}, "PADDLE_TRAINER_ID says 1, and RANK=0: two launch"),
    ({**TWO, "WORLD_SIZE": "4"}, "PADDLE_TRAINERS_NUM says 2, and WORLD_SIZE=4: two launchers"),
]


@pytest.mark.parametrize(("given", "text"), MISTAKES, ids=[text[:36] for _, text in MISTAKES])
def test_variables_that_cannot_be_are_named(given: Any, text: str, variables: Any) -> None:
    variables(given)
    for call in (dist.ParallelEnv, dist.init_parallel_env):
        with pytest.raises(xmp.PlanError, match=text):
            call()


MEETINGS = [
    ({}, f"2 trainers need an address to meet at, and {ENDPOINTS}, PADDLE_MASTER, MASTER_ADDR"),
    ({"MASTER_PORT": "80"}, "of the last two, only MASTER_PORT is set"),
    ({"PADDLE_MASTER": "h"}, "PADDLE_MASTER is 'h'; it must be an address and a port"),
    ({"PADDLE_MASTER": "etcd://h:2379"}, "PADDLE_MASTER is 'etcd://h:2379'"),
    ({"PADDLE_MASTER": "h:65536"}, "a port from 1 to 65535"),
    ({ENDPOINTS: "h,h:2"}, f"the first of {ENDPOINTS} is 'h'"),
    ({"MASTER_ADDR": "h", "MASTER_PORT": "x"}, "MASTER_ADDR:MASTER_PORT is 'h:x'"),
    ({"PADDLE_DISTRI_BACKEND": "bkcl"}, "is 'bkcl'; for this trainer's device, 'cpu', torch has"),
    ({"PADDLE_DISTRI_BACKEND": "xccl"}, "is 'xccl'; for this trainer's device, 'cpu', torch has"),
]


@pytest.mark.parametrize(("given", "text"), MEETINGS, ids=[text[:36] for _, text in MEETINGS])
def test_what_cannot_connect_is_refused(given: Any, text: str, variables: Any) -> None:
    variables({**TWO, **given})
    with pytest.raises(xmp.PlanError, match=text):
        dist.init_parallel_env()
    with pytest.raises(xmp.PlanError, match="nccl_config is Paddle's"):
        dist.init_parallel_env(object())


def test_the_gpus_of_trainers_are_those_of_their_local_ranks(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    variables({**TWO, "PADDLE_MASTER": "127.0.0.1:6070", "FLAGS_selected_gpus": "3"})
    monkeypatch.setattr("xmp._inside.device", lambda: torch.device("cuda", 0))
    text = "FLAGS_selected_gpus=3 gives local rank 1 the GPU 3, and xmp would give it GPU 1"
    with pytest.raises(xmp.PlanError, match=text):
        dist.init_parallel_env()
    assert "RANK" not in os.environ


# --- in replicas ----------------------------------------------------------------------------------


def connected(rank: int) -> dict[str, Any]:
    import torch

    before = (dist.get_rank(), dist.get_world_size())
    group = dist.init_parallel_env()
    total = torch.tensor([rank + 1.0])
    torch.distributed.all_reduce(total, group=group)
    first = torch.distributed.new_group([0])
    with pytest.raises(TypeError, match=r"group must be a torch\.distributed\.ProcessGroup"):
        dist.get_rank("group")
    return {
        "before": before,
        "after": (dist.get_rank(), dist.get_world_size()),
        "of the group": (dist.get_rank(group), dist.get_world_size(group)),
        "of the first": (dist.get_rank(first), dist.get_world_size(first)),
        "total": total.item(),
        "again": dist.init_parallel_env() is group,
        "limit": str(group._get_backend(torch.device("cpu")).options._timeout),
        "default": group is torch.distributed.group.WORLD,
        "environment": everything(),
    }


def test_replicas_connect_and_know_their_group() -> None:
    found = launch("forkserver", connected, env={"PADDLE_PG_TIMEOUT": "61500"})
    for rank, each in enumerate(found):
        environment = each.pop("environment")
        assert each == {
            "before": (rank, 2),
            "after": (rank, 2),
            "of the group": (rank, 2),
            "of the first": [(0, 1), (-1, -1)][rank],
            "total": 3.0,
            "again": True,
            "limit": "0:01:01.500000",
            "default": True,
        }
        assert (environment["rank"], environment["local_rank"]) == (rank, rank)
        assert (environment["world_size"], environment["nranks"]) == (2, 2)
        assert (environment["pg_timeout"], environment["device_type"]) == (61_500, "")


def other_backends(rank: int) -> list[str]:
    texts = []
    for name in ("nccl", "heter"):
        os.environ["PADDLE_DISTRI_BACKEND"] = name
        with pytest.raises(xmp.PlanError) as caught:
            dist.init_parallel_env()
        texts.append(str(caught.value))
    os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
    return [*texts, dist.init_parallel_env().name()]


def test_a_backend_that_the_device_does_not_have_is_named() -> None:
    for nccl, heter, gloo in launch("forkserver", other_backends):
        assert "PADDLE_DISTRI_BACKEND is 'nccl'; for this trainer's device, 'cpu', torch" in nccl
        assert "is 'heter'; for this trainer's device, 'cpu', torch has 'gloo', of which" in heter
        assert gloo == "gloo"


def of_another_group(rank: int) -> tuple[bool, float]:
    import torch

    old = dist.init_parallel_env()
    torch.distributed.destroy_process_group()
    new = dist.init_parallel_env()
    return new is not old, xmp.all_reduce(1.0, group=new)


def test_a_new_process_group_of_torchs_is_a_new_group() -> None:
    assert list(launch("forkserver", of_another_group)) == [(True, 2.0)] * 2
