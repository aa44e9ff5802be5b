"""``xmp.compat.paddle.spawn`` before a process exists: what it asks for on recorded hosts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import xmp.compat.paddle as dist
from tests.plans.test_plan_golden import facts_of
from tests.support.plans import given
from xmp._plan import planner
from xmp._words.types import HostFacts, HostsByHand, JobPlan, Request

MASK = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
TORCH = {"torch": "2.13.0+cu130"}


def host(
    env: dict[str, str] | None = None,
    vendor: str = "nvidia",
    loaded: str = "torch",
    **frameworks: str | None,
) -> HostFacts:
    """A host with eight GPUs of this vendor, or with none, and 16 cores."""
    gpus = {"vendor": vendor, "count": 8} if vendor else {}
    installed = {"torch": "2.13.0+cu130", "paddle": None, "jax": None, **frameworks}
    return HostFacts(
        env=env or {}, gpus=gpus, frameworks=installed, loaded=(loaded,) if loaded else (),
        cpus=tuple(range(16)),
    )  # fmt: skip


WITH_PADDLE = {"loaded": "paddle", "paddle": "3.3.1", "torch": None}


class Launches:
    """What ``spawn`` asks the engine for, on a host with these facts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        monkeypatch.setattr("xmp._calls.host.launch", self._launch)
        self.calls: list[Any] = []

    def _launch(self, request: Request, call: Any, join: bool) -> Any:
        self.calls.append((request, call))
        return SimpleNamespace(_launch=None)

    def __call__(self, facts: HostFacts, func: Any = dict, **options: Any) -> Request:
        self._patch.setattr("xmp._os.probe.facts", lambda: facts)
        self.calls.clear()
        dist.spawn(func, join=False, **options)
        [(request, _)] = self.calls
        found: Request = request
        return found

    def plan(self, facts: HostFacts, func: Any = dict, **options: Any) -> JobPlan:
        return planner.plan(self(facts, func, **options), facts)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch)


def refused(asked: Launches, facts: HostFacts, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        asked(facts, **options)
    assert asked.calls == []
    return str(caught.value)


# --- how many, and which --------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", ["4,5", " 4 , 5 ", [4, 5], (4, 5)], ids=str)
@pytest.mark.parametrize("nprocs", [-1, 2])
def test_ids_are_those_of_the_mask(asked: Launches, gpus: Any, nprocs: int) -> None:
    for facts in (host(MASK), host(MASK, **WITH_PADDLE)):
        made = asked.plan(facts, nprocs=nprocs, gpus=gpus)
        assert made.world_size == 2
        assert given(made)["CUDA_VISIBLE_DEVICES"] == "4,5"


def test_ids_keep_their_order_and_need_no_mask(asked: Launches) -> None:
    assert asked(host(MASK), gpus="7,4").devices == (3, 0)
    assert asked(host(), gpus="7,4").devices == (7, 4)
    assert asked(host(vendor="amd", torch="2.13.0+rocm7"), gpus="7").devices == (7,)


@pytest.mark.parametrize("gpus", ["0", "4,0", [3]], ids=str)
def test_an_id_outside_the_mask_is_refused_with_both_lists(asked: Launches, gpus: Any) -> None:
    text = refused(asked, host(MASK), gpus=gpus)
    ids = gpus.replace(",", ", ") if isinstance(gpus, str) else "3"
    assert f"Given: {ids}. Allowed: 4, 5, 6, 7 (CUDA_VISIBLE_DEVICES=4,5,6,7)" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": "4,5", "nprocs": 3}, "nprocs=3, but gpus='4,5' names 2. Omit nprocs, or give 2"),
        ({"gpus": "4", "xpus": "4"}, "gpus='4' and xpus='4': give one of the two"),
        ({"gpus": "4,4"}, "gpus='4,4' repeats an id"),
        ({"gpus": "GPU-1f"}, "gpus='GPU-1f': give ids such as"),
        ({"gpus": "4,-5"}, "gpus='4,-5': give ids such as"),
        ({"gpus": ""}, "gpus='': give ids such as"),
        ({"gpus": []}, "gpus=[]: give at least one id"),
        ({"xpus": "4"}, "runtime 'cuda' has no XPU on this host (it has 4, 5, 6, 7: gpus=)"),
        ({"nprocs": 0}, "nprocs=0: give a number from 1 up, or -1 for every device"),
        ({"nprocs": -2}, "nprocs=-2: give a number from 1 up"),
        ({"gpu": "4"}, "spawn has no option 'gpu'. Did you mean 'gpus'? Allowed: start_"),
        ({"selected_devices": "4", "gpus": "4"}, "give one of the two"),
        ({"cluster_node_ips": "a", "ips": "a"}, "give one of the two"),
        ({"backend": "ncl"}, "backend='ncl' is not known. Did you mean 'nccl'?"),
        ({"started_port": 70000}, "started_port=70000: give a number from 1 to 65535"),
        ({"started_port": "x"}, "started_port='x': give a number from 1 to 65535"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused(asked: Launches, options: Any, words: str) -> None:
    assert words in refused(asked, host(MASK), **options)


def test_a_host_of_cpus_has_no_gpu(asked: Launches) -> None:
    for facts, runtime in ((host(vendor=""), "cpu"), (host(vendor="", **WITH_PADDLE), "paddle")):
        text = refused(asked, facts, gpus="0")
        assert f"runtime {runtime!r} has no GPU on this host. Omit gpus and give nprocs" in text


def test_xpus_are_those_of_intel(asked: Launches) -> None:
    intel = host({"ZE_AFFINITY_MASK": "2,3"}, vendor="intel", torch="2.13.0+xpu")
    assert asked(intel, xpus="3").devices == (1,)
    assert "Allowed: 2, 3 (ZE_AFFINITY_MASK=2,3)" in refused(asked, intel, xpus="0")
    assert "has no GPU on this host (it has 2, 3: xpus=)" in refused(asked, intel, gpus="2")


@pytest.mark.parametrize(
    "options",
    [
        {"nprocs": True}, {"nprocs": "2"}, {"nprocs": 2.0}, {"gpus": 4}, {"gpus": [True]},
        {"gpus": ["4"]}, {"gpus": {4}}, {"ips": ["10.0.0.1"]}, {"backend": 1}, {"runtime": 1},
        {"start_method": 1}, {"print_config": 1}, {"use_paddlecloud": "yes"}, {"started_port": 1.5},
        {"node_ip": 4}, {"daemon": 1}, {"args": 3}, {"args": "ab"}, {"func": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_type_is_one_sentence(asked: Launches, options: Any) -> None:
    with pytest.raises(TypeError) as caught:
        asked(host(), **options)
    text = str(caught.value)
    [name] = options
    assert text.startswith(name)
    assert ". " not in text
    assert asked.calls == []


def test_none_leaves_an_option_out(asked: Launches, recwarn: pytest.WarningsRecorder) -> None:
    names = [*("start_method", "gpus", "xpus", "ips", "backend", "print_config", "runtime")]
    names += ["selected_devices", "started_port", "cluster_node_ips", "node_ip", "use_paddlecloud"]
    assert asked(host(), **dict.fromkeys(names)) == asked(host())
    assert len(recwarn) == 0


def test_minus_one_is_every_device_or_every_core(asked: Launches) -> None:
    assert asked.plan(host()).world_size == 8
    assert asked.plan(host(MASK)).world_size == 4
    for facts in (host(vendor=""), host(vendor="", **WITH_PADDLE)):
        made = asked.plan(facts)
        assert made.world_size == 16
        assert any("one replica for each of 16 usable cores" in note for note in made.notes)


# --- which runtime --------------------------------------------------------------------------------


def uses_paddle() -> None:
    import paddle.distributed  # noqa: F401


def uses_jax() -> None:
    import jax  # noqa: F401


ALL = {"paddle": "3.3.1", "torch": "2.13.0+cpu", "jax": "0.10.2"}


@pytest.mark.parametrize(
    ("facts", "func", "runtime", "note"),
    [
        (host(vendor="", **ALL), dict, "cpu", "torch's process group (gloo) is ready"),
        (host(vendor="", **{**ALL, "loaded": "paddle"}), dict, "paddle", "a trainer of Paddle's"),
        (host(vendor="", **{**ALL, "loaded": "jax"}), dict, "jax", "no process group of torch's"),
        (host(vendor="", **{**ALL, "loaded": ""}), uses_jax, "jax", "no process group of torch's"),
        (host(vendor="", **{**ALL, "loaded": ""}), uses_paddle, "paddle", "a trainer of Paddle's"),
        (host(vendor="", **{**ALL, "loaded": ""}), dict, "cpu", "torch's process group (gloo)"),
        (host(vendor="", loaded="", paddle="3.3.1", torch=None), dict, "paddle", "a trainer"),
        (host(vendor="", **ALL), uses_paddle, "cpu", "is for functions that use Paddle"),
    ],
)
def test_the_runtime_is_what_is_loaded_imported_or_installed(
    asked: Launches, facts: HostFacts, func: Any, runtime: str, note: str
) -> None:
    made = asked.plan(facts, func)
    assert made.runtime == runtime
    assert note in " ".join(made.notes)
    torch_starts = dict(made.hosts[0].replicas[0].settings).get("backend") is not None
    assert torch_starts is ("process group (gloo)" in " ".join(made.notes))


@pytest.mark.parametrize(
    ("facts", "backend", "expected"),
    [
        (host(), "nccl", "nccl"),
        (host(), "gloo", "gloo"),
        (host(vendor="intel", torch="2.13.0+xpu"), "xccl", "xccl"),
        (host(), "auto", None),
        (host(), "bkcl", "connects Kunlun XPUs, and torch has nothing equal"),
        (host(), "heter", "connects hosts with different devices, and torch has nothing equal"),
        (host(), "flagcx", "Paddle can be built with, and torch has nothing equal"),
        (host(), "xccl", "backend='xccl' does not work with runtime 'cuda'"),
        (host(vendor=""), "nccl", "Allowed on this host with runtime 'cpu': auto, gloo"),
        (host(**WITH_PADDLE), "bkcl", "xmp runs Paddle on CPUs and NVIDIA GPUs"),
        (host(**WITH_PADDLE), "xccl", "xmp runs Paddle on CPUs and NVIDIA GPUs"),
        (host(vendor="", **WITH_PADDLE), "nccl", "Paddle sees no NVIDIA GPU here"),
    ],
)  # fmt: skip
def test_backends(asked: Launches, facts: HostFacts, backend: str, expected: str | None) -> None:
    if expected is None or " " not in expected:
        assert asked(facts, backend=backend).backend == expected
    else:
        assert expected in refused(asked, facts, backend=backend)


def test_paddle_has_its_backend_as_a_variable(asked: Launches) -> None:
    facts = host(MASK, **WITH_PADDLE)
    made = asked.plan(facts, backend="nccl")
    assert (given(made)["PADDLE_DISTRI_BACKEND"], made.world_size) == ("nccl", 4)
    made = asked.plan(facts, backend="gloo", nprocs=2)
    assert given(made)["PADDLE_DISTRI_BACKEND"] == "gloo"
    assert made.hosts[0].replicas[0].device == "cpu"
    assert "has no GPU on this host" in refused(asked, facts, backend="gloo", gpus="4")


def test_recorded_hosts(asked: Launches) -> None:
    """Two GPUs of eight, by number (Paddle) and by UUID (torch)."""
    assert asked(facts_of("paddle"), gpus="6").devices == (1,)
    assert "Allowed: 2, 6 (CUDA_VISIBLE_DEVICES=2,6)" in refused(
        asked, facts_of("paddle"), gpus="1"
    )
    assert "Given: 0. Allowed: GPU-" in refused(asked, facts_of("gpu-uuid"), gpus="0")


# --- hosts ----------------------------------------------------------------------------------------


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host is 10.0.0.2 and fd00::2, and node-b is its name in the name service."""
    names = {"node-a": "10.0.0.1", "node-b": "10.0.0.2"}

    def look(name: str) -> tuple[str, ...]:
        if not (name in names or "." in name or ":" in name) or "invalid" in name:
            raise OSError(name)
        return (names.get(name, name),)

    own = {"10.0.0.2", "fd00::2", "127.0.0.1"}
    monkeypatch.setattr("xmp._os.names.addresses_of", look)
    monkeypatch.setattr("xmp._os.names.is_here", lambda a: a in own or a[:4] == "127.")
    monkeypatch.setattr("xmp._os.names.own_addresses", lambda: tuple(sorted(own)))


@pytest.mark.usefixtures("addresses")
@pytest.mark.parametrize(
    ("ips", "expected"),
    [
        ("10.0.0.1,10.0.0.2", HostsByHand(1, ("10.0.0.1", "10.0.0.2"), 6070)),
        (" 10.0.0.2 ,\t10.0.0.1 ", HostsByHand(0, ("10.0.0.2", "10.0.0.1"), 6070)),
        ("node-a,node-b", HostsByHand(1, ("node-a", "node-b"), 6070)),
        ("fd00::1,[fd00:0::2]", HostsByHand(1, ("fd00::1", "fd00::2"), 6070)),
        ("10.0.0.2", HostsByHand(0, ("10.0.0.2",))),
        ("127.0.0.1", HostsByHand(0, ("127.0.0.1",))),
        ("localhost", HostsByHand(0, ("localhost",))),
        ("10.0.0.1", "no host of ips='10.0.0.1' is this one. Given: 10.0.0.1. This host has: 10.0"),
        ("10.0.0.1,10.0.0.3", "Given: 10.0.0.1, 10.0.0.3. This host has: 10.0.0.2, 127.0.0.1"),
        ("10.0.0.2,fd00::2", "several hosts of ips='10.0.0.2,fd00::2' are this one"),
        ("127.0.0.1,10.0.0.2", "2 hosts, but 127.0.0.1 is each host itself"),
        ("10.0.0.2, localhost", "2 hosts, but localhost is each host itself"),
        ("::1,fd00::2", "2 hosts, but ::1 is each host itself"),
        ("127.0.0.2,127.0.0.3", "several hosts of ips='127.0.0.2,127.0.0.3' are this one"),
        ("10.0.0.2,10.0.0.2", "names a host twice"),
        ("a.invalid,10.0.0.2", "ips names 'a.invalid', which the name service of this host does"),
        ("10.0.0.2:6070,10.0.0.1:6070", "'10.0.0.2:6070' is no host"),
        ("10.0.0.1 10.0.0.2", "'10.0.0.1 10.0.0.2' is no host"),
        ("10.0.0.1,,10.0.0.2", "'' is no host"),
        ("10.0.0,10.0.0.2", "'10.0.0' is no host"),
        ("", "'' is no host"),
    ],
    ids=str,
)
def test_ips(asked: Launches, ips: str, expected: HostsByHand | str) -> None:
    if isinstance(expected, HostsByHand):
        assert asked(host(), ips=ips).world == expected
    else:
        assert expected in refused(asked, host(), ips=ips)


@pytest.mark.usefixtures("addresses")
def test_all_replicas_meet_at_the_first_host(
    asked: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asked.plan(host(), nprocs=2, ips="10.0.0.1,10.0.0.2")
    assert [each.rank for each in made.hosts[0].replicas] == [2, 3]
    assert (given(made)["MASTER_ADDR"], given(made)["MASTER_PORT"]) == ("10.0.0.1", "6070")
    monkeypatch.setenv("FLAGS_START_PORT", "7000")
    made = asked.plan(host(**WITH_PADDLE), nprocs=2, ips="10.0.0.1,10.0.0.2")
    endpoints = "10.0.0.1:7000,10.0.0.1:7001,10.0.0.2:7000,10.0.0.2:7001"
    assert given(made)["PADDLE_TRAINER_ENDPOINTS"] == endpoints
    assert given(made)["PADDLE_TRAINER_ID"] == "2"
    with pytest.raises(ValueError, match="Paddle takes no IPv6 address in an endpoint"):
        asked.plan(host(**WITH_PADDLE), ips="fd00::1,fd00::2")
    monkeypatch.setenv("FLAGS_START_PORT", "x")
    assert "FLAGS_START_PORT='x': give a number" in refused(asked, host())


CLOUD = {
    "PADDLE_TRAINERS": "10.0.0.1,10.0.0.2",
    "POD_IP": "10.0.0.2",
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_PORT": "6200",
}


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        ({}, {}, HostsByHand(1, ("10.0.0.1", "10.0.0.2"), 6200)),
        ({}, {"ips": "10.0.0.1, 10.0.0.2"}, HostsByHand(1, ("10.0.0.1", "10.0.0.2"), 6200)),
        ({"POD_IP": "", "PADDLE_PORT": ""}, {}, "and POD_IP, PADDLE_PORT are not set"),
        ({"PADDLE_TRAINER_ID": "0"}, {}, "contradict each other. PADDLE_TRAINER_ID is the place"),
        ({"PADDLE_TRAINER_ID": "2"}, {}, "contradict each other"),
        ({"POD_IP": "10.0.0.9"}, {}, "contradict each other"),
        ({"PADDLE_PORT": "x"}, {}, "PADDLE_PORT='x': give a number"),
        ({}, {"ips": "10.0.0.3"}, "ips='10.0.0.3', but use_paddlecloud=True reads"),
        ({}, {"started_port": 1}, "started_port=1, but use_paddlecloud=True reads 6200"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_paddlecloud(
    asked: Launches, monkeypatch: pytest.MonkeyPatch, variables: Any, options: Any, expected: Any
) -> None:
    for name, value in {**CLOUD, **variables}.items():
        monkeypatch.setenv(name, value)
    assert asked(host()).world is None
    if isinstance(expected, HostsByHand):
        assert asked(host(), use_paddlecloud=True, **options).world == expected
    else:
        assert expected in refused(asked, host(), use_paddlecloud=True, **options)


@pytest.mark.usefixtures("addresses")
@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("selected_devices", "4,5", "gpus="),
        ("started_port", 7000, "FLAGS_START_PORT"),
        ("cluster_node_ips", "10.0.0.2", "ips="),
        ("node_ip", "10.0.0.2", "ips="),
        ("use_paddlecloud", False, "ips="),
    ],
)
def test_a_deprecated_name_says_the_new_word_once(
    asked: Launches, name: str, value: Any, word: str
) -> None:
    text = f"{name}= of spawn is deprecated: use "
    with pytest.warns(DeprecationWarning, match=text) as caught:
        asked(host(MASK), **{name: value})
    [warning] = caught
    assert word in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_deprecated_names_mean(asked: Launches) -> None:
    assert asked(host(MASK), selected_devices="6,4").devices == (2, 0)
    made = asked.plan(host(), started_port=7000)
    assert given(made)["MASTER_PORT"] == "7000"
    assert [need.port for need in made.needs] == [7000]
    made = asked.plan(host(**WITH_PADDLE), nprocs=2, started_port=7000)
    assert [need.port for need in made.needs] == [7000, 7001]
    request = asked(host(), ips="127.0.0.2,127.0.0.3", node_ip="127.0.0.3")
    assert request.world == HostsByHand(1, ("127.0.0.2", "127.0.0.3"), 6070)
    words = {"ips": "10.0.0.1,10.0.0.2", "node_ip": "10.0.0.3"}
    assert "node_ip='10.0.0.3' is not among ips=" in refused(asked, host(), **words)
