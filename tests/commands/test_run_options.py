"""The options of ``xmp run``: those of ``spawn``, torchrun's words for them, and variables."""

from __future__ import annotations

import argparse
import inspect
import os
import re
from pathlib import Path

import pytest

import xmp
from tests.commands.test_main import xmp as command
from tests.commands.test_run import run, shown
from tests.support.stage import Stage
from xmp._commands import _torchrun_words
from xmp._os.ports import lease
from xmp._words.types import PortNeed

SHOW = """
import json, os, random, sys
print(json.dumps({
    "rank": int(os.environ["RANK"]), "world": os.environ["WORLD_SIZE"],
    "device": os.environ["XMP_DEVICE"], "threads": os.environ["OMP_NUM_THREADS"],
    "extra": os.environ.get("EXTRA"), "other": os.environ.get("OTHER"),
    "ours": [name for name in os.environ if name.startswith("XMP_RUN")],
    "random": random.random(), "cores": len(os.sched_getaffinity(0)),
}), flush=True)
"""


def test_every_option_of_spawn_is_one_of_run() -> None:
    said = command("run", "--help").stdout
    others = {"fn", "args", "kwargs", "join", "daemon"}
    names = [
        n.replace("_", "-") for n in inspect.signature(xmp.spawn).parameters if n not in others
    ]
    assert len(names) > 15
    assert [name for name in names if f"--{name}" not in said] == []
    assert "--shutdown-timeout" not in said, "what is refused is no option"


@pytest.fixture
def show(stage: Stage) -> str:
    stage.write(SHOW, "show.py")
    return "show.py"


@pytest.mark.parametrize("count", ["-n", "--nprocs", "--nproc-per-node", "--nproc_per_node"])
def test_the_number_of_replicas(stage: Stage, show: str, count: str) -> None:
    assert [each["world"] for each in shown(run(stage, count, "3", show))] == ["3", "3", "3"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("-n", "2", "--runtime", "cpu"), [("cpu", "2"), ("cpu", "2")]),
        (("--runtime", "fake", "--devices", "2,3"), [("fake:2", "2"), ("fake:3", "2")]),
        (("--runtime", "fake", "-n", "auto"), [(f"fake:{n}", "4") for n in range(4)]),
        (("--nproc-per-node", "cpu"), [("cpu", str(len(os.sched_getaffinity(0))))]),
    ],
    ids=str,
)
def test_devices(stage: Stage, show: str, options: tuple[str, ...], found: list[object]) -> None:
    replicas = shown(run(stage, *options, show, env={"FAKE_CHIPS": "4"}))
    assert [(each["device"], each["world"]) for each in replicas][: len(found)] == found


@pytest.mark.parametrize("count", ["1", "2"])
def test_variables_threads_and_a_seed(stage: Stage, show: str, count: str) -> None:
    options = ("--env", "EXTRA=a=b", "--env", "OTHER=", "--threads", "3", "--seed", "7")
    for each in shown(run(stage, "-n", count, *options, show)):
        assert (each["extra"], each["other"], each["threads"]) == ("a=b", "", "3")
        assert each["random"] == 0.32383276483316237


def test_cores(stage: Stage, show: str) -> None:
    (each,) = shown(run(stage, "-n", "1", "--bind", "cores", show))
    assert each["cores"] == len(os.sched_getaffinity(0))
    refused = run(stage, "-n", "1", "--bind", "sockets", show)
    assert refused.code == 2
    assert "bind='sockets'" in refused.err


OUTPUT = "import os, sys\nprint('out', os.environ['RANK'])\nprint('err', file=sys.stderr)\n"


def test_files_and_prefixes(stage: Stage) -> None:
    stage.write(OUTPUT, "write.py")
    done = run(stage, "-n", "2", "--log-dir", "logs", "--prefix", "<{rank}>", "write.py")
    assert sorted(done.out.splitlines()) == ["<0>out 0", "<1>out 1"]
    assert sorted(done.err.splitlines()) == ["<0>err", "<1>err"]
    assert (stage.folder / "logs/rank1.stdout.log").read_text() == "out 1\n"


@pytest.mark.parametrize(
    ("options", "out"),
    [
        (("--show", "1"), ["out 1"]),
        (("--local-ranks-filter", "1"), ["out 1"]),
        (("--local_ranks_filter=0,1",), ["out 0", "out 1"]),
        (("--log-dir", "logs", "--tee", "3"), ["[0] out 0", "[1] out 1"]),
        (("--log-dir", "logs", "-t", "3", "--local-ranks-filter", "0"), ["[0] out 0"]),
        (("--log_dir", "logs", "--redirects", "3"), []),
        (("--log-dir", "logs", "--redirect", "3"), []),  # as torchrun takes it
        (("--log-dir", "logs", "-r", "3", "--tee", "3"), ["[0] out 0", "[1] out 1"]),
        (("--tee", "0", "--redirects", "0"), ["out 0", "out 1"]),
        (("--prefix", "yes"), ["[0] out 0", "[1] out 1"]),
    ],
    ids=str,
)
def test_what_is_shown(stage: Stage, options: tuple[str, ...], out: list[str]) -> None:
    stage.write(OUTPUT, "write.py")
    done = run(stage, "-n", "2", *options, "write.py")
    assert sorted(done.out.splitlines()) == out
    if "logs" in options:
        files = [(stage.folder / f"logs/rank{rank}.stdout.log").read_text() for rank in (0, 1)]
        assert files == ["out 0\n", "out 1\n"]


@pytest.mark.parametrize(
    ("tee", "redirects", "streams"),
    [
        ("0", "0", ()),
        ("3", "0", ((-1, 3, 3),)),
        ("0", "3", ((-1, 3, 0),)),
        ("3", "3", ((-1, 3, 3),)),
        ("1", "0", ((-1, 1, 3),)),
        ("0", "2", ((-1, 2, 1),)),
        ("1", "3", ((-1, 3, 1),)),
        ("0", "0:3", ((-1, 0, 3), (0, 3, 0))),
        ("1:1", "0:1,12:2", ((-1, 0, 3), (0, 1, 2), (1, 1, 3), (12, 2, 1))),
        ("0:1", "3", ((-1, 3, 0), (0, 3, 1))),
        ("0:0", "0", ()),
    ],
)
def test_streams_by_local_rank_as_torchrun_has_them(
    tee: str, redirects: str, streams: object
) -> None:
    """Its own answers (torch 2.13, DefaultLogsSpecs.reify): a file for each bit of either, shown
    is what --tee names and what has no file.
    """
    options = argparse.Namespace(tee=tee, redirects=redirects)
    both = [_torchrun_words._streams(options, name) for name in ("tee", "redirects")]
    assert _torchrun_words._together(*both) == streams


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        (None, "yes"),
        ("[${role_name}${local_rank}]:", "[default{local_rank}]:"),
        ("$rank of {x} $$ $other ", "{rank} of {{x}} $ $other "),
    ],
)
def test_torchruns_template_is_a_prefix(template: str | None, prefix: str) -> None:
    assert _torchrun_words._prefix(template) == prefix


def test_files_in_a_folder_that_is_made_and_said(stage: Stage) -> None:
    stage.write(OUTPUT, "write.py")
    template = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
    env = {template: "${role_name} ${rank}>", "TMPDIR": str(stage.folder)}
    said = ("--monitor-interval=5", "--run-path")
    done = run(stage, "-n", "2", "--tee=0:1", "--redirects=1:3", *said, "write.py", env=env)
    assert done.out == "default 0>out 0\n"
    folder = re.findall(r"^xmp: the log files are in (.+)$", done.err, re.MULTILINE)[0]
    files = {path.name: path.read_text() for path in Path(folder).iterdir()}
    assert files == {
        "rank0.stdout.log": "out 0\n", "rank1.stdout.log": "out 1\n", "rank1.stderr.log": "err\n"
    }  # fmt: skip
    for option in ("--monitor-interval", "--run-path"):
        assert done.err.count(f"xmp: {option} changes nothing here: ") == 1


OF_TWO = ("--nnodes", "2", "--node-rank", "0")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tee", "4"), "--tee 4: give 0, 1 (standard output), 2 (standard error) or 3"),
        (("--redirects", "0:3,1"), "--redirects 0:3,1: give 0, 1 (standard output), 2"),
        (("--redirects=0:3", "--show=0"), "--redirects 0:3 and --show 0: give one of them"),
        (("-r", "3", "--log-dir", "x", "--show", "0"), "--redirects 3 and --show 0: give one"),
        (("--nnodes", "2"), "--nnodes 2: give --node-rank too, from 0 to 1 and another on each"),
        (("--nnodes", "2", "--node_rank", "1"), "--nnodes 2: give --master-addr too"),
        (("--nnodes", "0"), "--nnodes 0: xmp joins a fixed number of hosts. Give one number, from"),
        (("--nnodes", "two"), "--nnodes two: xmp joins a fixed number"),
        (("--node-rank", "1"), "--node-rank 1: give --nnodes, the number of hosts, too"),
        (("--nnodes", "2", "--node-rank", "2"), "--node-rank 2 does not fit --nnodes 2. Allowed"),
        (("--node-rank", "1", "--nnodes", "1"), "--node-rank 1 does not fit --nnodes 1. Allowed"),
        (("--nnodes", "2", "--node-rank", "-1"), "--node-rank -1: give the index of this host, 0 "),
        (("--nnodes", "2", "--node-rank", "a"), "--node-rank a: give the index of this host, 0 "),
        ((*OF_TWO, "--master-addr", "localhost"), "address of host 0 is localhost, which is each"),
        ((*OF_TWO, "--master-addr", "10.0.0.1:29500"), "host 0 is '10.0.0.1:29500'. Allowed: an"),
        ((*OF_TWO, "--master-addr", "a b"), "the address of host 0 is 'a b'. Allowed: an address"),
        (("--master-port", "70000"), "--master-port 70000: give a number from 1 to 65535"),
        (("--master-port=-1",), "--master-port -1: give a number from 1 to 65535"),
        (("--nnodes=1:4",), "--nnodes 1:4: xmp joins a fixed number of hosts"),
        (("--nnodes=2", "--rdzv_backend", "c10d"), "the same on all hosts, --rdzv-endpoint HOST:"),
        (("--nnodes=2", "--rdzv-conf", "x=1"), "--rdzv-conf x=1: leave it out; --start-timeout"),
        (("--nnodes=1:2", "--rdzv-endpoint=10.0.0.9:1"), "--nnodes 1:2: xmp joins a fixed number"),
        (("--local-ranks-filter", "7", "-n", "2"), "there is no local rank 7; this launch has 0"),
        (("--lr", "0.1"), "Options of the script come after it: xmp run -n 2 script.py --lr"),
        (("--role", "x"), "--role is torchrun's: all replicas have the role `default`"),
        (("--monitor-interval", "x"), "--monitor_interval: invalid float value: 'x'"),
        (("--shutdown-timeout", "3"), "give --grace SECONDS"),
        (("--nproc-per-node", "gpu"), "--nproc-per-node gpu: xmp finds no GPU"),
        (("--no-python", "--seed", "1"), "--seed and --no-python"),
        (("--no-python", "--backend", "gloo"), "--backend and --no-python"),
        (("--no-python", "--hang-timeout", "9"), "--hang-timeout and --no-python"),
        (("--no-python", "-m"), "--module and --no-python"),
        (("--start-method", "fork"), "--start-method fork: xmp run has no state"),
        (("--start-method", "threads"), "start_method='threads'"),
        (("--timeout", "0"), "timeout=0.0"),
        (("--env", "RANK=1"), "RANK"),
        (("--env", "NAME"), "'NAME' is not NAME=VALUE"),
        (("--nproc",), "unrecognized arguments: --nproc. Did you mean --nprocs?"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(
    stage: Stage, show: str, options: tuple[str, ...], words: str
) -> None:
    refused = run(stage, *options, show)
    assert refused.code == 2, refused.err
    assert words in refused.err
    assert refused.out == ""


# --- variables ------------------------------------------------------------------------------------


def test_variables_are_the_defaults_of_options(stage: Stage, show: str) -> None:
    env = {
        "XMP_RUN_NPROCS": "3", "XMP_RUN_ENV": "EXTRA='a b' OTHER=c", "XMP_RUN_RUNTIME": "cpu",
        "XMP_RUN_STANDALONE": "1", "XMP_RUN_PROGRESS": "no", "XMP_RUN_MAX_RESTARTS": "1",
    }  # fmt: skip
    found = shown(run(stage, show, env=env))
    assert [each["world"] for each in found] == ["3", "3", "3"]
    assert {(each["extra"], each["other"]) for each in found} == {("a b", "c")}
    assert [each["ours"] for each in found] == [[], [], []], "replicas do not inherit them"
    found = shown(run(stage, "-n", "2", "--env", "EXTRA=mine", show, env=env))
    assert [each["world"] for each in found] == ["2", "2"]
    assert {(each["extra"], each["other"]) for each in found} == {("mine", None)}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("XMP_RUN_NPROC", "2", "XMP_RUN_NPROC='2' is not a variable of xmp run. Allowed: "),
        ("XMP_RUN_NPROCS", "x", "XMP_RUN_NPROCS='x': 'x' is not a number"),
        ("XMP_RUN_TIMEOUT", "soon", "XMP_RUN_TIMEOUT='soon': could not convert"),
        ("XMP_RUN_MODULE", "maybe", "XMP_RUN_MODULE='maybe': give one of 1, true"),
        ("XMP_RUN_GPUS", "2", "XMP_RUN_GPUS='2' is not a variable of xmp run"),
        ("XMP_RUN_TEE", "4", "--tee 4: give 0, 1"),
    ],
)
def test_a_variable_that_says_nothing_known_is_refused(
    stage: Stage, show: str, name: str, value: str, words: str
) -> None:
    refused = run(stage, show, env={name: value})
    assert refused.code == 2
    assert words in refused.err


def test_torchruns_variables_count_after_its_own(stage: Stage, show: str) -> None:
    theirs = {"PET_NPROC_PER_NODE": "3", "PET_STANDALONE": "1", "PET_MAX_RESTARTS": "1"}
    assert len(shown(run(stage, show, env=theirs))) == 3
    assert len(shown(run(stage, show, env={**theirs, "XMP_RUN_NPROCS": "2"}))) == 2
    assert len(shown(run(stage, "-n", "1", show, env={**theirs, "XMP_RUN_NPROCS": "2"}))) == 1


PLACE = """
import json, os
names = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "GROUP_RANK")
print(json.dumps({"rank": int(os.environ["RANK"]), "place": [os.environ[n] for n in names]}))
"""


def test_a_command_for_one_host_as_torchs_documentation_has_it(stage: Stage) -> None:
    stage.write(PLACE, "place.py")
    with lease([PortNeed("own", "listen")]) as leased:
        port = str(leased.ports["own"])
        taken = run(stage, "-n", "2", "--master-port", port, "place.py")
    assert taken.code == 1
    assert f"port {port}" in taken.err
    options = ("--nnodes=1", "--node-rank=0", "--master-addr=localhost", f"--master-port={port}")
    found = shown(run(stage, "--nproc-per-node=2", *options, "place.py"))
    assert [each["place"] for each in found] == [["127.0.0.1", port, "1", "0"]] * 2
    elastic = ("--nnodes=1:1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=9")
    assert len(shown(run(stage, "--nproc-per-node=2", *elastic, "place.py"))) == 2


def test_the_help_has_each_spelling_of_an_option_once() -> None:
    said = command("run", "--help").stdout
    assert "--nnodes VALUE  " in said
    assert "--nnodes VALUE, --nnodes" not in said
    assert "--node-rank VALUE, --node_rank VALUE" in said
