"""``xmp plan --facts`` with files that no ``xmp facts`` wrote: one line for each, or a plan."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xmp.__main__ import main
from xmp._plan import planner
from xmp._plan.runtimes._known_variables import REPORTED
from xmp._words.errors import PlanError
from xmp._words.types import Request
from xmp.testing._recorded import FOLDER

LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_NNODES"),
    *("SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_LOCALID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_orte_hnp_uri", "JOB_COMPLETION_INDEX"),
    *("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_VISIBLE_CHIPS", "TPU_PROCESS_BOUNDS"),
    *("TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS"),
    *("PJRT_DEVICE", "XRT_TPU_CONFIG", "XMP_RUNTIME", "JAX_PLATFORMS", "PET_NNODES"),
)
RECORDED = sorted(FOLDER.glob("*.json"))
DEEP = 100_000
HOSTILE = {
    "deep": "[" * DEEP + "]" * DEEP,
    "deep object": '{"version": 1, "env": ' + '{"a":' * DEEP + "1" + "}" * (DEEP + 1),
    "infinity": '{"version": 1, "memory_bytes": Infinity}',
    "not a number": '{"version": 1, "cpu_quota": NaN}',
    "too large": '{"version": 1, "memory_bytes": 1e999}',
    "5,000 digits": '{"version": 1, "memory_bytes": ' + "9" * 5000 + "}",
    "not UTF-8": b"\xff\xfe{",
    "nothing": "",
    "two": '{"version": 1}{"version": 1}',
    "NUL": '{"version": 1, "env": {"A\\u0000": "b"}}',
    "half a character": '{"version": 1, "hostname": "\\ud800"}',
    "version": '{"version": true}',
    "no object": "[1]",
}


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line about this file."""
    assert main(["plan", "--facts", str(path)]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1), said
    assert said.err.startswith("xmp: ")
    return said.err


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_no_facts_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HOSTILE[name]
    file = tmp_path / "facts.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert str(file) in refused(file, capsys)


def test_a_file_without_an_end_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/dev/zero: more than 16 MiB" in refused(Path("/dev/zero"), capsys)


WRONG: list[tuple[str, Any]] = [
    *((name, value) for name in ("hostname", "address", "python") for value in (5, [], {})),
    *(
        (name, value)
        for name in ("env", "metadata", "frameworks")
        for value in ([1], "a", {"a": 5})
    ),
    *((name, value) for name in ("cpus", "numa") for value in (5, "abc", [1.5], [-1], [[True]])),
    *((name, value) for name in ("loaded", "initialised") for value in ("torch", [5], [{}])),
    *(("cpu_quota", value) for value in ("a", -1, 0, True, 1e30)),
    *(("memory_bytes", value) for value in ("1", -1, 1.5, True, 10**20)),
    *(("tpu", value) for value in ("v5e", {"chips": "4"}, {"chips": 10**9}, {"generation": 5})),
    *(("gpus", value) for value in ([1], {"count": 1e30}, {"count": -1}, {"vendor": []})),
    ("cpus", [0] * 100_000),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{n} {str(v)[:20]}" for n, v in WRONG])
def test_a_field_of_a_wrong_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(PlanError, match=rf"^{name}(\.\w+)? is .*Allowed: ") as caught:
        planner.facts_from_json({"version": 1, name: value})
    assert len(str(caught.value)) < 250


JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 7, 2**31, 1.5, 1e308, "", "0", "-1", "x", "4,5", ":", "=", " ",
    "a:b:c", "127.0.0.1", "[::1]", "2,2,1", "v5e", "9" * 400, "²", "2147483648", "\n", "é",
    "\udcff", [], {}, [0],
    {"a": "b"}, [[]], "auto", "null", "1:2", "http://", "{", "'", "0-3", "0-99999999", "*", "$(x)",
]  # fmt: skip


NAMES = [name for name in (*REPORTED, *LAUNCHERS) if "*" not in name]


def with_odd_variables(data: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Some variables that decide something, with texts that no launcher writes."""
    env = data.get("env")
    texts = [each for each in JUNK if isinstance(each, str)]
    odd = {name: chance.choice(texts) for name in chance.sample(NAMES, chance.randrange(6))}
    return {**data, "env": {**env, **odd}} if isinstance(env, dict) else data


def spoiled(data: Any, chance: random.Random) -> Any:
    """The value with a few of its parts replaced by junk."""
    if chance.random() < 0.04:
        return chance.choice(JUNK)
    if isinstance(data, dict):
        return {
            key: spoiled(value, chance) for key, value in data.items() if chance.random() > 0.03
        }
    if isinstance(data, list):
        return [spoiled(value, chance) for value in data]
    return data


@pytest.mark.parametrize("seed", range(40))
def test_spoiled_facts_make_a_plan_or_one_error(seed: int) -> None:
    chance = random.Random(seed)
    for path in RECORDED:
        for _ in range(4):
            data = spoiled(json.loads(path.read_text()), chance)
            if isinstance(data, dict):
                data = with_odd_variables(data, chance)
            count = chance.choice([None, None, 1, 2, 8])
            runtime = chance.choice([None, None, "cpu", "jax", "pjrt", "cuda", "xrt", "torch_tpu"])
            try:
                made = planner.plan(
                    Request(nprocs=count, runtime=runtime), planner.facts_from_json(data)
                )
                planner.explain(made)
                json.dumps(planner.to_json(made))
            except PlanError:
                continue
            except Exception as error:
                raise AssertionError(f"{path.name}: {json.dumps(data)}") from error


@pytest.mark.parametrize("command", ["plan --json -n 64", "plan -n 64", "facts --json", "--help"])
@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_reader_that_leaves_is_no_error(command: str, reader: str) -> None:
    shell = f"{sys.executable} -m xmp {command} --runtime cpu | {reader}"
    shell = shell if "plan" in command else shell.replace(" --runtime cpu", "")
    done = subprocess.run(
        ["sh", "-c", shell], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""


def test_a_full_disk_is_one_line() -> None:
    shell = f"{sys.executable} -m xmp plan --runtime cpu -n 1 > /dev/full"
    done = subprocess.run(
        ["sh", "-c", shell], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert "No space left" in done.stderr
