"""Lightning's Fabric with ``strategy="xmp"``: its results beside those of ``ddp_spawn``."""

from __future__ import annotations

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.peers

TRAIN = """
    import gc, json, os, sys
    import torch
    import xmp.compat.lightning

    if sys.argv[1] == "lightning":
        from lightning.fabric import Fabric
    else:
        from lightning_fabric import Fabric

    def train(fabric, epochs, /, returns="numbers"):
        torch.manual_seed(0)
        model, data = torch.nn.Linear(4, 1), torch.arange(64.0).reshape(16, 4) / 64
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = fabric.setup(model, optimizer)
        loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=2))
        for batch in [*loader] * epochs:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
        own = {"model": model, "all": [optimizer, loader], "loss": loss, "last": loss.detach()}
        return numbers(fabric, loader, loss) if returns == "numbers" else own

    def numbers(fabric, loader, loss):
        rank = fabric.global_rank
        fabric.barrier()
        return {
            "loss": loss.item(), "sampler": type(loader.sampler).__name__,
            "world": [fabric.world_size, rank, fabric.local_rank, fabric.node_rank],
            "sum": fabric.all_reduce(torch.tensor(rank + 1.0), reduce_op="sum").item(),
            "mean": fabric.all_reduce({"a": torch.tensor(rank + 1.0)})["a"].item(),
            "gathered": fabric.all_gather({"b": torch.tensor(rank)})["b"].tolist(),
            "broadcast": fabric.broadcast([rank, "x"], src=1),
        }

    def fabric(strategy="xmp", **options):
        return Fabric(accelerator="cpu", devices=2, strategy=strategy, **options)

    def refused(call, *args, **kwargs):
        try:
            call(*args, **kwargs)
        except (TypeError, ValueError) as error:
            return [type(error).__name__, str(error)]
"""

PROGRAM = f"""{TRAIN}
    class Own:
        def __call__(self, fabric):
            return fabric.global_rank, os.environ["LOCAL_RANK"], fabric.world_size

    def of_variables():
        own = {{"ACCELERATOR": "cpu", "STRATEGY": "xmp", "DEVICES": "2", "PRECISION": "bf16-mixed"}}
        os.environ.update({{f"LT_{{name}}": value for name, value in own.items()}})
        return Fabric().launch(lambda it: [it.world_size, it.strategy.precision.precision])

    if __name__ == "__main__":
        own = fabric().launch(train, 1, returns="own")
        model, (optimizer, loader) = own["model"], own["all"]
        with torch.no_grad():
            model.weight.fill_(1)
        state = torch.random.get_rng_state()
        print(json.dumps({{
            "numbers": fabric().launch(train, 2),
            "own": [type(each).__name__ for each in (model, optimizer, loader)],
            "one": optimizer.param_groups[0]["params"][0] is model.weight,
            "forward": model(torch.ones(1, 4)).shape,
            "losses": own["loss"].item() == own["last"].item() > 0,
            "device": [own["loss"].device.type, model.weight.device.type],
            "nothing": fabric().launch(lambda fabric: None),
            "object": fabric().launch(Own()),
            "random": torch.equal(fabric().launch(lambda _: torch.random.get_rng_state()), state),
            "no function": refused(fabric().launch),
            "lock": refused(fabric().launch, train, sys.stdout.buffer),
            "keyword": refused(fabric().launch, train, 1, returns=sys.stdout.buffer),
            "half": fabric(precision="bf16-mixed").launch(train, 2)["loss"],
            "variables": of_variables(),
        }}))
"""

STANDALONE = f"""{TRAIN}
    if __name__ == "__main__":
        assert "lightning" not in sys.modules
        print(json.dumps({{"numbers": fabric().launch(train, 2)}}))
"""

PEER = f"""{TRAIN}
    def train_and_leave(*args):
        numbers = train(*args)
        torch.distributed.destroy_process_group()
        gc.collect()  # else gloo's thread may abort the process at its end (torch 2.13)
        return numbers

    if __name__ == "__main__":
        print(json.dumps(fabric("ddp_spawn").launch(train_and_leave, 2)))
"""

EXPECTED = {
    "sampler": "DistributedSampler", "world": [2, 0, 0, 0], "sum": 3.0, "mean": 1.5,
    "gathered": [0, 1], "broadcast": [1, "x"],
}  # fmt: skip
LOSS = 0.0006315403152257204  # of the same program with strategy="ddp_spawn"


def test_what_comes_back(stage: Stage) -> None:
    said = stage.run(PROGRAM, "lightning", timeout=120).json()
    numbers = said.pop("numbers")
    assert numbers.pop("loss") == pytest.approx(LOSS, rel=1e-5)
    assert numbers == EXPECTED
    assert said["own"] == ["Linear", "SGD", "DataLoader"]
    assert said["one"], "a model and its optimizer come back as one"
    assert said["forward"] == [1, 1]
    assert said["losses"]
    assert said["device"] == ["cpu", "cpu"]
    assert said["nothing"] is None
    assert said["object"] == [0, "0", 2]
    assert said["random"], "the launcher's random state, as Lightning's own launcher has it"
    assert said["half"] == pytest.approx(LOSS, rel=0.2)
    assert said["variables"] == [2, "bf16-mixed"], "what `fabric run` leaves in LT_..."
    kind, words = said["no function"]
    assert kind == "TypeError"
    assert "needs to be called with a function that contains the code to launch" in words
    assert said["lock"][0] == said["keyword"][0] == "TypeError"
    assert said["lock"][1].startswith("epochs"), said["lock"]
    assert said["keyword"][1].startswith("returns"), said["keyword"]


def test_the_standalone_package(stage: Stage) -> None:
    numbers = stage.run(STANDALONE, "lightning_fabric", timeout=120).json()["numbers"]
    assert numbers.pop("loss") == pytest.approx(LOSS, rel=1e-5)
    assert numbers == EXPECTED


@pytest.mark.slow
def test_lightnings_own_launcher_brings_back_the_same(stage: Stage) -> None:
    said = stage.run(PEER, "lightning", timeout=120).json()
    assert said.pop("loss") == pytest.approx(LOSS, rel=1e-5)
    assert said == EXPECTED


IN_REPLICAS = """
    import json

    import xmp
    import xmp.compat.lightning

    def here(rank):
        from lightning.fabric import Fabric

        def number(fabric):
            return fabric.all_reduce(fabric.to_device(ranks()), reduce_op="sum").item()

        def ranks():
            import torch
            return torch.tensor(float(rank + 1))

        options = {"accelerator": "cpu", "strategy": "xmp"}
        try:
            Fabric(devices=4, **options)
        except ValueError as error:
            return Fabric(devices=2, **options).launch(number), str(error)

    if __name__ == "__main__":
        print(json.dumps(list(xmp.spawn(here, nprocs=2))))
"""


def test_in_replicas_it_takes_these(stage: Stage) -> None:
    for total, refused in stage.run(IN_REPLICAS, timeout=120).json():
        assert total == 3.0
        assert "this is a replica of 2. Give devices=2" in refused
