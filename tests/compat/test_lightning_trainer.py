"""Lightning's Trainer with ``strategy="xmp"``: what comes back, what runs in the replicas."""

from __future__ import annotations

import socket

import pytest

import xmp
from tests.support.stage import Stage

pytestmark = pytest.mark.peers

SHORT = """
    import json, sys

    {imports}
    from {package}.demos.boring_classes import BoringModel
    from xmp.compat.lightning import XmpStrategy

    class Model(BoringModel):
        def on_train_start(self):
            assert type(self.trainer.strategy) is XmpStrategy
            self.log("ranks", float(self.global_rank), sync_dist=True, reduce_fx="sum")

    if __name__ == "__main__":
        import xmp.compat.lightning as compat

        model = Model()
        before = model.layer.weight.detach().clone()
        quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
        trainer = pl.Trainer(
            strategy="xmp", accelerator="cpu", devices=2, max_steps=3, limit_val_batches=1, **quiet
        )
        trainer.fit(model)
        assert not (model.layer.weight == before).all()
        public = [name for name in dir(compat) if name[0] != "_"]
        assert public == ["XmpFabricStrategy", "XmpStrategy"], public
        theirs = next(c.__module__ for c in XmpStrategy.__mro__ if c.__name__ == "DDPStrategy")
        both = sorted(name for name in sys.modules if name.startswith("xmp.plugins.lightning._of_"))
        print(json.dumps([trainer.global_step, theirs, both]))
"""


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_either_package_has_its_own_strategy(package: str, stage: Stage) -> None:
    imports = ["import xmp.compat.lightning", f"import {package} as pl"]  # in any order
    ordered = imports if package == "pytorch_lightning" else imports[::-1]
    source = SHORT.replace("{package}", package).replace("{imports}", "; ".join(ordered))
    said = stage.run(source, timeout=150).json()
    own = "_of_pytorch_lightning" if package == "pytorch_lightning" else "_of_lightning"
    assert said == [3, f"{package}.strategies.ddp", [f"xmp.plugins.lightning.{own}"]]


REPLICAS = """
    import json, os, random

    import torch
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.loggers import CSVLogger

    import xmp
    import xmp.compat.lightning
    from xmp.compat.lightning import XmpStrategy

    class Averages(pl.Callback):
        "Has a module of its own, which replicas must not share."
        def __init__(self):
            self.own = torch.nn.Linear(1, 1)
            self.shared = self.steps = None
        def on_train_start(self, trainer, model):
            self.shared = self.own.weight.is_shared() or model.layer.weight.is_shared()
        def on_train_batch_end(self, *_):
            self.steps = (self.steps or 0) + 1
        def state_dict(self):
            return {"shared": self.shared, "steps": self.steps}
        def load_state_dict(self, state):
            vars(self).update(state)

    class Model(BoringModel):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(2)
        def configure_callbacks(self):
            return [Averages()]  # the launcher's Trainer does not have this one
        def forward(self, x):
            return self.norm(super().forward(x))
        def training_step(self, batch, index):
            loss = super().training_step(batch, index)["loss"]
            mean = self.all_gather(self.norm.running_mean)
            assert mean[0].equal(mean[1]) and not mean[0].equal(torch.zeros(2))
            self.log("score", 1.0 + self.current_epoch, sync_dist=True)
            return loss
        def test_step(self, batch, index):
            self.log("rank", float(self.global_rank), sync_dist=True)
            return super().test_step(batch, index)
        def on_train_start(self):
            strategy, rank = self.trainer.strategy, self.global_rank
            assert (rank, self.trainer.world_size) == (xmp.rank(), 2)
            assert strategy.distributed_sampler_kwargs == {"num_replicas": 2, "rank": rank}
            assert strategy.reduce(torch.tensor(float(rank))) == 0.5
            assert strategy.reduce(torch.tensor(rank), reduce_op="sum") == 1
            assert strategy.broadcast(f"rank {rank}") == "rank 0"
            strategy.barrier()
            drawn = self.all_gather(torch.tensor([torch.rand(()), random.random()]))
            assert drawn[0].equal(drawn[1])  # reset_seed
            assert os.environ["FRUIT"] == "pear" and torch.get_num_threads() == 1
            assert type(self.norm).__name__ == 'ReducedBatchNorm'
            print("rank", rank, flush=True)

    class Strategy(XmpStrategy):
        def teardown(self):
            super().teardown()
            if self.launcher and not self.launcher.procs and torch.distributed.is_initialized():
                print("after", type(self.model).__name__, self.model.device, flush=True)

    def events(event):
        seen.append(event.name)

    if __name__ == "__main__":
        seen = []
        pl.seed_everything(3, verbose=False)
        model, stopping, averages = Model(), EarlyStopping("score", patience=1), Averages()
        strategy = Strategy(
            log_dir="logs", env={"FRUIT": "pear"}, threads=1, events=events, hang_timeout=100,
            launch_timeout=100, start_timeout=100, show=0, progress=False, bucket_cap_mb=1,
        )
        best = ModelCheckpoint(monitor="score", mode="max")
        trainer = pl.Trainer(
            strategy=strategy, accelerator="cpu", devices=2, max_epochs=4, limit_train_batches=3,
            limit_val_batches=1, limit_test_batches=1, limit_predict_batches=1,
            sync_batchnorm=True, callbacks=[stopping, averages, best], logger=CSVLogger("."),
            log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
        )
        trainer.fit(model)

        # 1, 2: the score grows, and EarlyStopping wants it smaller.
        assert (trainer.current_epoch, trainer.global_step) == (2, 6)
        assert trainer.state.finished and trainer.should_stop and not trainer.received_sigterm
        assert (stopping.wait_count, stopping.stopped_epoch, stopping.best_score) == (1, 1, 1.0)
        assert float(trainer.callback_metrics["score"]) == 2.0, trainer.callback_metrics
        assert float(trainer.logged_metrics["score"]) == 2.0, trainer.logged_metrics
        assert (averages.shared, averages.steps) == (False, 6)
        assert os.path.exists(best.best_model_path) and best.best_model_score == 2.0
        assert os.path.exists(f"{trainer.log_dir}/metrics.csv"), trainer.log_dir
        kept = torch.load(best.best_model_path, weights_only=True)["state_dict"]["layer.weight"]
        assert kept.equal(model.layer.weight)  # what was trained last is what came back
        assert model.device.type == "cpu" and not torch.distributed.is_initialized()
        assert type(model.norm) is torch.nn.BatchNorm1d and "MASTER_PORT" not in os.environ
        procs = strategy.launcher.procs
        assert [(p.exitcode, p.is_alive()) for p in procs] == [(0, False)] * 2
        strategy.launcher.kill(15)
        assert seen[0] == "planned" and seen[-1] == "finished" and seen.count("returned") == 2
        assert open("logs/rank1.stdout.log").read() == "rank 1\\nafter Model cpu\\n"

        # As in one process, a second fit goes on where the first has stopped.
        trainer.should_stop, stopping.wait_count, stopping.patience = False, 0, 9
        trainer.fit_loop.max_epochs = 3
        trainer.fit(model)
        assert (trainer.current_epoch, trainer.global_step, averages.steps) == (3, 9, 3)

        rows = open(f"{trainer.log_dir}/metrics.csv").read().splitlines()
        assert len(rows) == 1 + 3 * 3, rows  # a header, and a row for each step of both fits
        assert [each["rank"] for each in trainer.test(model, verbose=False)] == [0.5]
        assert set(trainer.callback_metrics) == {"rank"}
        assert trainer.validate(model, verbose=False) == [{}]
        assert trainer.predict(model) is None  # as under ddp_spawn: a rank has a part of them
        print(json.dumps("done"))
"""


def test_what_the_replicas_do_and_what_comes_back(stage: Stage) -> None:
    done = stage.run(REPLICAS, timeout=150)
    assert done.json() == "done"
    assert done.out.splitlines()[:2] == ["rank 0", "after Model cpu"]  # show=0


REFUSED = """
    import json, os, threading

    import torch
    import lightning.pytorch as pl
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.fabric.plugins.environments.lightning import find_free_network_port
    from lightning.pytorch.accelerators import CPUAccelerator
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.tuner import Tuner

    import xmp
    import xmp.compat.lightning
    from xmp.compat.lightning import XmpStrategy

    class Keeps(pl.Callback):
        def __init__(self, what):
            self.what = {"kept": what}

    class Meta(CPUAccelerator):
        @staticmethod
        def get_parallel_devices(devices):
            return [torch.device("meta")] * devices

    class Place(LightningEnvironment):
        main_address = "localhost"
        main_port = property(lambda self: int(os.environ["PLACE"]))

    class World(LightningEnvironment):
        def world_size(self):
            return 7

    class Rank(LightningEnvironment):
        def global_rank(self):
            return 0

    class Says(BoringModel):
        def on_train_start(self):
            if self.global_rank == 0:
                print("met at", os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], flush=True)

    def trainer(strategy="xmp", accelerator="cpu", **options):
        quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
        return pl.Trainer(
            strategy=strategy, accelerator=accelerator, devices=2, fast_dev_run=1, **quiet,
            **options,
        )

    def text(call, kind):
        try:
            call()
        except kind as error:
            return str(error)
        raise AssertionError("not refused")

    if __name__ == "__main__":
        model, lock = BoringModel(), threading.Lock()

        model.parts = [lock]
        said = text(lambda: trainer().fit(model), TypeError)
        assert said.startswith("model.parts[0] (lock) cannot be sent to the replicas: "), said
        del model.parts
        kept = trainer(callbacks=[Keeps(1), Keeps(lock)])
        said = text(lambda: kept.fit(model), TypeError)
        assert said.startswith("trainer.callbacks[1].what['kept'] (lock) cannot be sent"), said

        said = text(lambda: trainer(accelerator=Meta()), xmp.PlanError)
        assert "Meta (meta)" in said and "cpu, cuda, xpu" in said, said

        said = text(lambda: XmpStrategy(log_dirs="x"), TypeError)
        assert said.endswith("argument 'log_dirs'. Did you mean 'log_dir'?"), said
        said = text(lambda: XmpStrategy(timeout=30), TypeError)
        assert "timedelta" in said and "launch_timeout=" in said, said
        said = text(lambda: trainer(XmpStrategy(start_method="popen")).fit(model), ValueError)
        assert "popen" in said and "forkserver" in said, said

        said = text(lambda: trainer(plugins=[World()]).fit(model), xmp.PlanError)
        assert "World has a world of 7 processes" in said and "devices=2" in said, said
        os.environ["PLACE"] = str(find_free_network_port())
        trainer(plugins=[Place()]).fit(Says())
        print("wanted", os.environ["PLACE"])

        os.environ.update(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2",
                          OMPI_COMM_WORLD_LOCAL_RANK="1", OMPI_COMM_WORLD_LOCAL_SIZE="2")
        said = text(trainer, xmp.PlanError)
        assert "Open MPI has started this process" in said and "LightningEnvironment" in said, said
        world = dict(RANK="1", WORLD_SIZE="4", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4")
        os.environ.update(world)
        said = text(trainer, xmp.PlanError)
        assert "has started 4" in said and "Give devices=4" in said, said
        for name in [*os.environ]:
            if name.startswith("OMPI") or name in world:
                del os.environ[name]

        os.environ["LOCAL_RANK"] = "1"  # left over
        last = trainer()
        last.fit(model)
        assert (last.world_size, last.strategy.launcher is not None) == (2, True)
        os.environ["GROUP_RANK"] = "1"
        said = text(lambda: trainer().fit(model), xmp.PlanError)
        assert "node_rank=1. Unset NODE_RANK and GROUP_RANK" in said, said
        del os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"]

        model.lr = 0.1
        search = trainer()
        said = text(lambda: Tuner(search).lr_find(model), xmp.PlanError)
        assert "LearningRateFinder finds nothing with strategy='xmp'" in said, said
        search.fit(model)

        os.environ.update(NNODES="2", NODE_RANK="0", MASTER_ADDR="10.3.0.1")
        said = text(lambda: trainer().fit(model), xmp.PlanError)
        assert "Trainer(num_nodes=2)" in said, said
        print(json.dumps("done"))
"""


def test_what_is_refused_before_a_process_exists(stage: Stage) -> None:
    done = stage.run(REFUSED, timeout=150)
    assert done.json() == "done"
    met, wanted, _ = done.out.splitlines()
    assert met == wanted.replace("wanted", "met at localhost")


OF_TWO_HOSTS = """
    import lightning.pytorch as pl
    from lightning.pytorch.demos.boring_classes import BoringModel

    import xmp.compat.lightning

    class Says(BoringModel):
        def on_train_start(self):
            print(self.global_rank, self.local_rank, self.trainer.world_size, flush=True)

    if __name__ == "__main__":
        trainer = pl.Trainer(
            strategy="xmp", accelerator="cpu", devices=1, num_nodes=2, max_steps=2,
            limit_val_batches=0, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )
        model = Says()
        trainer.fit(model)
        print(trainer.global_step, model.layer.weight.sum().item())
"""


@pytest.mark.slow
def test_two_hosts_by_the_variables_that_lightning_reads(stage: Stage) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    place = {"MASTER_ADDR": xmp.host_facts().address, "MASTER_PORT": str(port)}
    hosts = [stage.start(OF_TWO_HOSTS, env={**place, "NODE_RANK": str(n)}) for n in (0, 1)]
    done = [stage.outcome(host, timeout=150) for host in hosts]
    assert [each.code for each in done] == [0, 0], done
    ranks, ends = zip(*(each.out.splitlines() for each in done))
    assert ranks == ("0 0 2", "1 0 2")
    assert ends[0] == ends[1]
    assert ends[0].startswith("2 ")
