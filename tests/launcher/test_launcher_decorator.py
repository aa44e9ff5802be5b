"""``xmp.launcher``: functions without a rank, launched where they are called."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import nothing_started
from tests.support.stage import Outcome, Script, Stage
from tests.support.tpu_hosts import host, plan
from xmp import _inside
from xmp._calls.launcher import WithoutRank
from xmp._plan import planner
from xmp._words.replica_info import ReplicaInfo
from xmp._words.types import HostFacts, Request

two: Any = xmp.launcher(nprocs=2, runtime="cpu")
SEEN: list[int] = []


@two
def train(x: int, *, scale: int = 1) -> tuple[int, int, int]:
    """Train a little."""
    return xmp.rank(), x * scale, os.getpid()


def test_the_function_gets_its_callers_arguments_and_the_call_returns_a_list() -> None:
    results = train(3, scale=2)
    assert type(results) is list
    assert [each[:2] for each in results] == [(0, 6), (1, 6)]
    assert os.getpid() not in {pid for *_, pid in results}
    assert (train.__name__, train.__doc__) == ("train", "Train a little.")


def plain(x: Any) -> Any:
    return xmp.rank(), x


def test_a_function_that_is_not_decorated_is_launched_by_a_call(method: str) -> None:
    launched = xmp.launcher(plain, nprocs=2, runtime="cpu", start_method=method)
    assert launched(True) == [(0, True), (1, True)]


def test_without_arguments_it_takes_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMP_RUNTIME", "cpu")
    assert len(xmp.launcher(plain)("x")) == xmp.default_nprocs()


# --- before and after the function ---------------------------------------------------------------


@two
def group() -> Any:
    import torch.distributed as dist

    return dist.is_initialized(), dist.get_backend(), dist.get_world_size()


def test_the_group_is_ready() -> None:
    assert group() == [(True, "gloo", 2)] * 2


@xmp.launcher(nprocs=2, runtime="jax")
def over_jax() -> Any:
    import jax

    return jax.process_count(), xmp.all_reduce(1.0)


def test_jax_is_connected() -> None:
    assert over_jax() == [(2, 2.0)] * 2


@pytest.mark.parametrize(("runtime", "loads"), [("cpu", True), ("jax", False)])
def test_torch_is_loaded_only_for_runtimes_that_use_its_groups(runtime: str, loads: bool) -> None:
    facts = HostFacts(frameworks={"torch": "2.13.0", "jax": "0.10.2"})
    made = planner.plan(Request(nprocs=2, runtime=runtime, grouped=True), facts)
    assert ("torch" in made.preload) is loads


def test_threads_of_one_process_form_no_group_of_torchs() -> None:
    """They cannot; the mesh connects them."""
    settings = [
        dict(plan(host("v3", 4), nprocs=count, grouped=True).hosts[0].replicas[0].settings)
        for count in (8, 1)
    ]
    assert [each.get("backend") for each in settings] == [None, "xla"]


class Waits:
    """A framework whose device is asynchronous."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def synchronize(self) -> None:
        self.done.append("synchronised")


@pytest.fixture
def device() -> Iterator[Waits]:
    framework = Waits()
    _inside.install(ReplicaInfo(0, 0, 2, 2), framework, None)  # type: ignore[arg-type]
    yield framework
    _inside.uninstall()


def test_the_device_is_waited_for_after_the_function(device: Waits) -> None:
    def fn(word: str) -> str:
        device.done.append(word)
        return word

    assert WithoutRank(fn)(5, "called") == "called"
    assert device.done == ["called", "synchronised"]


@pytest.mark.gpu
def test_what_goes_wrong_on_the_device_is_the_functions_failure() -> None:
    """Without waiting it would come up while the replica leaves its group."""

    def fn() -> None:
        import torch

        index = torch.full((4,), 99, device="cuda")
        torch.zeros(4, device="cuda")[index] += 1

    with pytest.raises(xmp.ReplicaError, match="device-side assert"):
        xmp.launcher(fn, runtime="cuda")()


@pytest.mark.parametrize("runtime", ["cpu", "jax"])
def test_real_frameworks_wait(runtime: str) -> None:
    assert xmp.launcher(plain, nprocs=2, runtime=runtime)(1) == [(0, 1), (1, 1)]


# --- in a replica, and in the caller -------------------------------------------------------------


@two
def factorial(n: int) -> Any:
    return 1 if n < 2 else n * factorial(n - 1)


def test_in_a_replica_the_name_calls_the_function() -> None:
    assert factorial(5) == [120, 120]


def calls_it(rank: int, call: Callable[..., Any]) -> Any:
    return factorial(4), call(3)[1], call is train


def test_so_it_does_as_an_argument_of_another_launch(method: str) -> None:
    results = xmp.spawn(calls_it, (train,), nprocs=2, runtime="cpu", start_method=method)
    assert list(results) == [(24, 3, True)] * 2


ALONE = """
import os
import xmp

@xmp.launcher(nprocs=1, runtime="cpu")
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)

@xmp.launcher(nprocs=1, runtime="cpu")
def where():
    import torch.distributed as dist
    return os.getpid(), dist.get_backend()

if __name__ == "__main__":
    print(factorial(5), where() == [(os.getpid(), "gloo")], xmp.world_size())
"""


def test_one_replica_is_the_caller_itself(script: Script) -> None:
    done = script(ALONE)
    assert done.out.strip() == "[120] True 1", done.err


# --- how it travels ------------------------------------------------------------------------------


def note(x: int) -> None:
    SEEN.append(x)


@two
def notes(x: int) -> list[int]:
    note(x)
    return SEEN


def test_it_travels_by_name_although_plain_pickle_does_not_find_it(method: str) -> None:
    """By value it would have a list of its own, to which ``note`` appends nothing."""
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(notes.__wrapped__)
    launched = xmp.launcher(notes.__wrapped__, nprocs=2, runtime="cpu", start_method=method)
    assert launched(7) == [[7], [7]]
    assert pickle.loads(pickle.dumps(notes)) is notes


PROGRAM = """
import functools
import sys
import xmp

SEEN = []

def note(x):
    SEEN.append(x)

def twice(fn):
    @functools.wraps(fn)
    def wrapper(x):
        return fn(2 * x)
    return wrapper

@xmp.launcher(nprocs=2, runtime="cpu")
def train(x):
    note(x)
    return SEEN, xmp.rank()

@twice
@xmp.launcher(nprocs=2, runtime="cpu")
def above(x):
    note(x)
    return SEEN

class Trainer:
    def __init__(self, step):
        self.step = step

    @xmp.launcher(nprocs=2, runtime="cpu")
    def fit(self, x):
        note(x * self.step)
        return SEEN
"""
MAIN = """
if __name__ == "__main__":
    @xmp.launcher(nprocs=2, runtime="cpu")
    def below(x):
        return x + xmp.rank()

    def local():
        @xmp.launcher(nprocs=2, runtime="cpu")
        def inner(x):
            return 1 if x < 2 else x * inner(x - 1)
        return inner

    print(train(3), above(4), Trainer(5).fit(2), below(1), local()(4))
"""
SAID = "[([3], 0), ([3], 1)] [[8], [8]] [[10], [10]] [1, 2] [24, 24]"


IN_THE_MODULE = """
    from trains import Trainer, above, train

    print(train(3), above(4), Trainer(5).fit(2), below(1), local()(4))
"""


@pytest.fixture(scope="module")
def in_a_script(shared_stage: Stage) -> Outcome:
    """A program with decorated functions of its own, and the same in a module beside it."""
    shared_stage.write(PROGRAM, "trains.py")
    return shared_stage.python(str(shared_stage.write(PROGRAM + MAIN + IN_THE_MODULE)), timeout=60)


def test_in_a_script(in_a_script: Outcome) -> None:
    assert in_a_script.out.splitlines()[0] == SAID, in_a_script.err


def test_in_fresh_interpreters(script: Script) -> None:
    """A single launch: each of them imports torch."""
    source = PROGRAM.replace('runtime="cpu"', 'runtime="cpu", start_method="spawn"')
    done = script(source + "\nif __name__ == '__main__':\n    print(above(4))\n")
    assert done.out.strip() == "[[8], [8]]", done.err


def test_in_a_script_without_a_guard(script: Script) -> None:
    done = script(PROGRAM + "\nprint(train(3), above(4))\n")
    assert done.out.strip() == "[([3], 0), ([3], 1)] [[8], [8]]", done.err


def test_in_a_module_of_the_users(in_a_script: Outcome) -> None:
    assert in_a_script.out.splitlines()[1:] == [SAID], in_a_script.err


def test_on_the_command_line(python: Any) -> None:
    """By value, with the function's own copies of what it uses."""
    done = python("-c", PROGRAM + "\nprint([rank for _, rank in train(3)])\n")
    assert done.out.strip() == "[0, 1]", done.err


def test_importing_a_module_that_decorates_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_decorates.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    with nothing_started():
        __import__("only_decorates")
    del sys.modules["only_decorates"]


# --- hosts that the call names -------------------------------------------------------------------


def test_a_world_that_is_this_host_needs_no_address() -> None:
    launched = xmp.launcher(plain, nprocs=2, runtime="cpu", world_size=2)
    assert launched(1) == [(0, 1), (1, 1)]


# --- how it ends ---------------------------------------------------------------------------------


@two
def ends(how: str) -> int:
    if xmp.rank() == 1 and how == "exit":
        os._exit(0)
    if xmp.rank() == 1 and how == "raise":
        raise ValueError("no data")
    return xmp.rank()


@pytest.mark.failing
def test_a_replica_that_ends_without_returning_is_warned_about(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert ends("exit") == [0, None]
    said = capfd.readouterr().err
    assert "rank 1 ended with exit code 0 before its function had returned" in said


@pytest.mark.failing
def test_a_failure_shows_the_functions_own_lines() -> None:
    with pytest.raises(xmp.ReplicaRaised, match="no data") as caught:
        ends("raise")
    assert isinstance(caught.value.__cause__, ValueError)
    assert "xmp/_calls/launcher.py" not in str(caught.value)
    assert "in ends" in str(caught.value)


def test_what_to_do_about_an_address_is_said_in_the_words_of_the_call() -> None:
    launched = xmp.launcher(abs, nprocs=2, world_size=4, master_ip="127.0.0.1", runtime="cpu")
    with pytest.raises(xmp.PlanError, match=r"Set master_ip= or .*leave world_size= out"):
        launched(1)
