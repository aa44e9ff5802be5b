"""``xmp.compat.accelerate`` beside accelerate's own launchers: the same trainings, and refusals."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

import xmp
from tests.support.launching import nothing_started
from tests.support.stage import Stage
from tests.support.torchrun import torchrun
from xmp.compat.accelerate import debug_launcher, notebook_launcher

pytestmark = pytest.mark.peers

# --- the same trainings --------------------------------------------------------------------------

TRAINS = """
    import inspect, os, sys, unittest, warnings
    warnings.simplefilter("error")

    import accelerate
    import torch
    from accelerate import Accelerator, PartialState
    from accelerate_training import last_loss
    from in_script import say
    import xmp.compat.accelerate as ours

    def train(results, first=lambda: None):
        first()
        accelerator = Accelerator(cpu=True)
        loss = last_loss(accelerator)
        results[accelerator.process_index] = accelerator.gather(loss).sum()
        accelerator.end_training()

    def ran(launcher, *args, of=train, **options):
        results = torch.zeros(2).share_memory_()
        returned = launcher(of, (results, *args), num_processes=2, **options)
        assert returned is None, returned
        return [round(value, 6) for value in results.tolist()]

    def state():
        return {name: value for name, value in os.environ.items()}

    class Methods(unittest.TestCase):
        def setUp(self):
            self.factor = 2

        def check(self, results):
            accelerator = Accelerator()
            self.assertEqual(accelerator.num_processes, self.factor)
            results[accelerator.process_index] = self.factor

        def test(self):
            assert ran(ours.debug_launcher, of=self.check) == [2, 2]
            with self.subTest("again"):
                assert ran(ours.notebook_launcher, of=self.check) == [2, 2]

    if __name__ == "__main__":
        for name in ("notebook_launcher", "debug_launcher"):
            theirs, own = (inspect.signature(getattr(m, name)) for m in (accelerate, ours))
            pairs = [[(p.name, p.default, p.kind) for p in s.parameters.values()]
                     for s in (theirs, own)]
            assert pairs[0] == pairs[1], pairs
        from xmp.plugins.accelerate import _devices
        assert _devices._has_p2p() is True and _devices._device_type() == "cuda"  # without a GPU
        agents = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}  # no fixed port
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        their = [ran(accelerate.debug_launcher), ran(accelerate.notebook_launcher, **agents)]
        before = state()
        torch.ones(3, requires_grad=True).sum().backward()  # now a fork of this process could hang
        PartialState()
        own = [ran(ours.debug_launcher), ran(ours.notebook_launcher, **agents),
               ran(ours.notebook_launcher), ran(ours.notebook_launcher, PartialState),
               ran(ours.debug_launcher, PartialState)]
        doubled, say_it = 2 * torch.ones(2), lambda: say()  # which no pickle of theirs could carry
        simple = ran(ours.debug_launcher, of=lambda results: [results.copy_(doubled), say_it])
        said = unittest.main(exit=False, argv=["test"]).result
        assert said.wasSuccessful() and said.testsRun == 1
        assert state() == before
        say(their=their, own=own, simple=simple)
"""


def test_its_launchers_train_as_accelerates_do(stage: Stage) -> None:
    said = stage.run(TRAINS, timeout=90, env={"OMP_NUM_THREADS": "1"}).said
    [numbers, again] = said["their"]
    assert numbers == again
    assert 0 not in numbers
    assert said["own"] == [numbers] * 5
    assert said["simple"] == [2, 2]


WITHOUT_GUARD = """
    from in_script import say
    from xmp.compat.accelerate import debug_launcher, notebook_launcher

    def inner(outer):
        from accelerate import PartialState
        from accelerate.utils import gather_object
        state = PartialState()
        ranks = gather_object([state.process_index])
        if state.is_main_process:
            say(inner=[outer, ranks])

    def train():
        from accelerate import Accelerator
        accelerator = Accelerator()
        if accelerator.is_main_process:
            debug_launcher(inner, (accelerator.num_processes,), num_processes=3)
        accelerator.wait_for_everyone()

    notebook_launcher(train, num_processes=2)
"""


def test_a_script_without_a_guard_and_a_launch_in_a_replica(stage: Stage) -> None:
    assert stage.run(WITHOUT_GUARD, timeout=60).said == {"inner": [2, [0, 1, 2]]}


SCRIPT = """
    from accelerate import Accelerator
    from accelerate_training import last_loss
    from in_script import say

    def main():
        accelerator = Accelerator(cpu=True)
        loss = last_loss(accelerator)
        losses = accelerator.gather(loss.float()).tolist()
        say(**{f"rank {accelerator.process_index}": [accelerator.num_processes,
            accelerator.mixed_precision, accelerator.state.debug, losses]})
        accelerator.end_training()

    if __name__ == "__main__":
        main()
"""


@pytest.mark.slow
def test_a_script_gives_the_same_numbers_under_xmp_run(stage: Stage) -> None:
    path = str(stage.write(SCRIPT))
    env = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_DEBUG_MODE": "1"}
    ours = stage.python("-m", "xmp", "run", "-n", "2", path, env=env, timeout=60).said
    words = ("--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
    words += ("--mixed_precision", "bf16", "--debug")
    launch = stage.python("-m", "accelerate.commands.launch", *words, path, timeout=60).said
    assert ours == launch == torchrun(stage.python, path, env=env).said
    assert [ours[f"rank {rank}"][:3] for rank in (0, 1)] == [[2, "bf16", True]] * 2


# --- what is refused before any process exists ---------------------------------------------------


def nothing(*args: Any) -> None:
    """A function that a replica could run."""


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_processes": None}, xmp.PlanError, "You have to specify the number of devices"),
    ({"num_processes": 0}, xmp.PlanError, "num_processes=0: give a number from 1 up"),
    ({"num_processes": -1}, xmp.PlanError, "num_processes=-1: give a number from 1 up"),
    ({"num_processes": "2"}, TypeError, "num_processes must be a whole number, not str: '2'"),
    ({"num_processes": True}, TypeError, "num_processes must be a whole number, not bool"),
    ({"num_processes": 10**6}, xmp.PlanError, "num_processes=1000000"),
    ({"mixed_precision": "fp12"}, xmp.PlanError, "Unknown mixed_precision mode: fp12. Choose"),
    ({"mixed_precision": None}, TypeError, "mixed_precision must be a string, not NoneType"),
    ({"use_port": "http"}, xmp.PlanError, "use_port='http': give a number from 1 to 65535, or 0"),
    ({"use_port": 65536}, xmp.PlanError, "use_port=65536"),
    ({"use_port": None}, TypeError, "use_port must be a port as a string or a number"),
    ({"master_addr": None}, TypeError, "master_addr must be a string"),
    ({"node_rank": 1}, xmp.PlanError, "node_rank must be less than the number of nodes"),
    ({"node_rank": -1}, xmp.PlanError, "node_rank must be less than the number of nodes"),
    ({"node_rank": None}, TypeError, "node_rank must be whole numbers, not None"),
    ({"num_nodes": 0}, xmp.PlanError, "num_nodes=0: give a number from 1 up"),
    ({"num_nodes": 2}, xmp.PlanError, "master_addr='127.0.0.1' is each host itself"),
    ({"num_nodes": 2, "master_addr": "10.0.0.1", "use_port": 0}, xmp.PlanError, "the same port"),
    ({"num_nodes": 2, "rdzv_endpoint": "localhost:9"}, xmp.PlanError, "master_addr='localhost'"),
    (
        {"num_nodes": 2, "master_addr": "10.0.0.1", "rdzv_backend": "c10d"},
        xmp.PlanError,
        "rdzv_backend='c10d' with num_nodes=2: xmp runs no rendezvous. Give node_rank=",
    ),
    (
        {"num_nodes": 2, "master_addr": "10.0.0.1", "rdzv_id": "a"},
        xmp.PlanError,
        "rdzv_id='a' with num_nodes=2",
    ),
    ({"rdzv_backend": "etcd"}, xmp.PlanError, "rdzv_backend='etcd': xmp has none. Allowed"),
    ({"rdzv_endpoint": "here"}, xmp.PlanError, "rdzv_endpoint='here': give host:port"),
    ({"rdzv_conf": "timeout=3"}, TypeError, "rdzv_conf must be a dict or None"),
    ({"max_restarts": -1}, xmp.PlanError, "max_restarts=-1"),
    ({"monitor_interval": 0}, xmp.PlanError, "monitor_interval=0: give seconds, above 0"),
    ({"monitor_interval": "1"}, TypeError, "monitor_interval must be a number of seconds"),
    ({"log_line_prefix_template": 1}, TypeError, "log_line_prefix_template must be a string"),
    ({"args": "ab"}, TypeError, "args must be a tuple or a list"),
    ({"function": None}, TypeError, "function must be callable, not NoneType"),
    ({"use_ports": "1"}, TypeError, "Did you mean 'use_port'"),
]


@pytest.mark.parametrize(("given", "kind", "text"), REFUSED)
def test_what_cannot_be_is_refused(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    options = {"function": nothing, "num_processes": 2, **given}
    with nothing_started(), pytest.raises(kind) as caught:
        notebook_launcher(**options)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("number", "kind"), [(0, ValueError), (-1, ValueError), ("2", TypeError), (None, TypeError)]
)
def test_a_number_that_debug_launcher_refuses(number: Any, kind: type[Exception]) -> None:
    with nothing_started(), pytest.raises(kind, match="num_processes"):
        debug_launcher(nothing, num_processes=number)


@pytest.mark.parametrize("launcher", [notebook_launcher, debug_launcher])
def test_arguments_that_do_not_fit_the_function(launcher: Callable[..., None]) -> None:
    with nothing_started(), pytest.raises(TypeError, match="missing a required argument: 'b'"):
        launcher(lambda a, b: None, (1,), num_processes=2)


def test_a_fixed_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options in ({"use_port": str(port)}, {"rdzv_endpoint": f"localhost:{port}"}):
            with nothing_started(), pytest.raises(xmp.PortError, match=f"port {port} at "):
                notebook_launcher(nothing, (), 2, **options)


# --- failures -------------------------------------------------------------------------------------

FAILS = """
    import os, sys
    import torch
    from accelerate import Accelerator
    from in_script import say
    import xmp
    from xmp.compat.accelerate import debug_launcher, notebook_launcher

    def fails(how):
        accelerator = Accelerator()
        if accelerator.process_index == 1:
            if how == "shapes":
                accelerator.gather(torch.ones(2))
            if how == "dies":
                os._exit(7)
            raise ValueError("no such label")
        accelerator.gather(torch.ones(1))

    def succeeds_later(attempts):
        accelerator = Accelerator()
        own = attempts[accelerator.process_index:][:1]
        own += 1
        if accelerator.gather(own).sum() < 2 * 2:
            sys.exit(3)

    def caught(launcher, how, **options):
        from torch.multiprocessing.spawn import ProcessException, ProcessRaisedException
        try:
            launcher(fails, (how,), num_processes=2, **options)
        except RuntimeError as error:
            return [type(error).__name__, isinstance(error, ProcessException),
                    isinstance(error, ProcessRaisedException), error.rank, str(error)]

    if __name__ == "__main__":
        attempts = torch.zeros(2).share_memory_()
        notebook_launcher(succeeds_later, (attempts,), 2, max_restarts=2)
        alone = torch.zeros(1).share_memory_()
        try:
            notebook_launcher(lambda n: n.add_(1) > 1 or sys.exit(3), (alone,), 1, max_restarts=1)
        finally:
            say(raised=caught(debug_launcher, "raises"), died=caught(notebook_launcher, "dies"),
                attempts=attempts.tolist(), alone=alone.tolist())
        os.environ["ACCELERATE_DEBUG_MODE"] = "1"
        say(shapes=caught(notebook_launcher, "shapes"))
        accelerator = Accelerator()
        say(state=None)
        try:
            notebook_launcher(fails, ("raises",), num_processes=2)
        except ValueError as error:
            say(state=str(error))
"""


@pytest.mark.failing
def test_what_a_failure_raises_and_restarts(stage: Stage) -> None:
    said = stage.run(FAILS, timeout=90).said
    assert said["raised"][:4] == ["ReplicaRaised", True, True, 1]
    assert said["raised"][4].rstrip().endswith("ValueError: no such label")
    assert said["died"][:4] == ["ReplicaDied", True, False, 1]
    assert said["attempts"] == [2, 2]
    assert said["alone"] == [2]
    assert "DistributedOperationException" in said["shapes"][4]
    assert said["state"].startswith("To launch a multi-device training from your notebook")


HOSTS = """
    import sys
    import torch
    from accelerate import Accelerator
    from in_script import say
    from xmp.compat.accelerate import notebook_launcher

    def train(processes):
        accelerator = Accelerator()
        ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
        accelerator.wait_for_everyone()
        if accelerator.is_local_main_process:
            say(**{f"of {processes}": [accelerator.process_index, ranks]})

    if __name__ == "__main__":
        node, port = map(int, sys.argv[1:])
        hosts = {"num_nodes": 2, "node_rank": node, "master_addr": "127.0.0.2", "use_port": port}
        for processes in (2, 1):
            notebook_launcher(train, (processes,), num_processes=processes, **hosts)
"""


@pytest.mark.failing
def test_two_hosts(stage: Stage) -> None:
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = str(free.getsockname()[1])
    hosts = [stage.start(HOSTS, str(node), port) for node in (0, 1)]
    for node, host in enumerate(hosts):
        outcome = stage.outcome(host, 60)
        assert outcome.code == 0, outcome.err
        assert outcome.said == {"of 2": [2 * node, [0, 1, 2, 3]], "of 1": [node, [0, 1]]}
    stage.gone()


ONE_PROCESS = """
import accelerate, torch
from in_script import say
from xmp.compat.accelerate import debug_launcher

def train(said):
    accelerator = accelerate.Accelerator()
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    with open(said, "w") as file:
        print(accelerator.distributed_type, type(model).__name__, file=file)

if __name__ == "__main__":
    found = []
    for launcher in (debug_launcher, accelerate.debug_launcher):
        launcher(train, ("said",), num_processes=1)
        found.append(open("said").read())
    say(ours=found[0], theirs=found[1])
"""


def test_one_process_is_the_bare_model(stage: Stage) -> None:
    said = stage.run(ONE_PROCESS, timeout=120).said
    assert said == dict.fromkeys(("ours", "theirs"), "DistributedType.NO Linear\n")
