"""The launchers of other projects over two hosts: a failure or an absent host is named on both."""

from __future__ import annotations

import json

import pytest

from tests.support.placed import Placed
from tests.support.stage import Stage

pytestmark = pytest.mark.hosts

PROGRAM = """
    import json, os, pathlib, sys, time
    import in_script, xmp

    HERE = pathlib.Path(os.environ["FOLDER"])
    HOST = int(os.environ["HOST"])
    PORT = int(os.environ["PORT"])
    MASTER = "127.0.0.2"
    LAUNCHER = int(os.environ.setdefault("LAUNCHER", str(os.getpid())))

    def ends():
        return os.getpid() != LAUNCHER, float(xmp.all_reduce(float(xmp.rank())))

    def fails():
        '''No collective is in it: for one, the template of each host would import torch.'''
        (HERE / f"in-fn-{xmp.rank()}").touch()
        if xmp.rank() == 1:
            while len(list(HERE.glob("in-fn-*"))) < 2:
                time.sleep(0.01)
            (HERE / "raised").write_text(repr(time.time()))
            raise ValueError("no such label")
        in_script.never_returns()

    body = ends if sys.argv[2] == "ends" else fails

    def paddle():
        import xmp.compat.paddle as dist
        dist.spawn(body, nprocs=1, ips="127.0.0.2,127.0.0.3", node_ip=f"127.0.0.{HOST + 2}",
                   started_port=PORT, runtime="cpu")

    def paddle_cloud():
        import xmp.compat.paddle as dist
        os.environ.update(PADDLE_TRAINERS="127.0.0.2,127.0.0.3", POD_IP=f"127.0.0.{HOST + 2}",
                          PADDLE_TRAINER_ID=str(HOST), PADDLE_PORT=str(PORT))
        dist.spawn(body, nprocs=1, use_paddlecloud=True, runtime="cpu")

    def megengine():
        import xmp.compat.megengine as dist
        return dist.launcher(body, n_gpus=1, world_size=2, rank_start=HOST, master_ip=MASTER,
                             port=PORT, device_type="cpu")()

    def launcher():
        return xmp.launcher(body, nprocs=1, runtime="cpu", rank_start=HOST, world_size=2,
                            master_ip=MASTER, port=PORT)()

    def accelerate():
        from xmp.compat.accelerate import notebook_launcher
        notebook_launcher(body, num_processes=1, num_nodes=2, node_rank=HOST, master_addr=MASTER,
                          use_port=str(PORT))

    def lightning():
        import lightning.pytorch as pl
        from lightning.pytorch.demos.boring_classes import BoringModel
        import xmp.compat.lightning

        class Model(BoringModel):
            def on_train_start(self):
                body()

        os.environ.update(MASTER_ADDR=MASTER, MASTER_PORT=str(PORT), NODE_RANK=str(HOST))
        pl.Trainer(
            strategy="xmp", accelerator="cpu", devices=1, num_nodes=2, max_steps=1,
            limit_val_batches=0, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        ).fit(Model())

    if __name__ == "__main__":
        if sys.argv[2] == "absent":
            import xmp._hosts.other_hosts
            xmp._hosts.other_hosts._START = 2.0  # the faces have no option for it
        try:
            print(json.dumps(["ended", globals()[sys.argv[1]]()]))
        except Exception as error:
            names = [each.__name__ for each in type(error).__mro__]
            rank = getattr(error, "rank", None)
            print(json.dumps([names, rank, str(error), time.time()]))
"""
FACES = ["paddle", "paddle_cloud", "megengine", "accelerate"]
LIGHTNING = pytest.param("lightning", marks=pytest.mark.peers)
"""To import it costs 15 s of processor time, on two hosts."""


@pytest.fixture
def placed(stage: Stage) -> Placed:
    return Placed(stage)


def start(placed: Placed, face: str, what: str, *hosts: int) -> None:
    for index in hosts:
        env = {"HOST": str(index), "PORT": str(placed.port), "FOLDER": str(placed.stage.folder)}
        placed.launchers.append(placed.stage.start(PROGRAM, face, what, env=env))


# MegEngine's face is a call of `xmp.launcher`: its row is that one's, too.
@pytest.mark.parametrize("face", [*FACES, LIGHTNING])
def test_the_failure_of_one_host_is_named_on_both(placed: Placed, face: str) -> None:
    start(placed, face, "fails", 0, 1)
    found = placed.said(120)
    raised = json.loads((placed.stage.folder / "raised").read_text())
    for names, rank, text, when in found:
        assert "ReplicaRaised" in names, text
        assert rank == 1
        assert "ValueError: no such label" in text
        assert when - raised < 1 + 5 + 1  # grace is 5 s, and the machine may be busy


@pytest.mark.parametrize("face", ["launcher", LIGHTNING])
def test_a_host_that_does_not_come_is_named(placed: Placed, face: str) -> None:
    """No face takes an error of xmp for another; ``commands/test_run_hosts.py`` has both hosts."""
    start(placed, face, "absent", 1)
    [(names, _, text, _)] = placed.said()
    assert "StartError" in names, text
    assert "host 0" in text
    assert "has not come" in text


def test_both_end_together(placed: Placed) -> None:
    """Each in a process of its own, which the other host's failure could end."""
    start(placed, "launcher", "ends", 0, 1)
    assert placed.said() == [["ended", [[True, 1.0]]]] * 2
