"""A parallel tensor operation before the fork, wherever it was made, harms no replica.

libgomp's pool does not survive a fork: without care, every replica hangs in its first matrix
product (engine-experiments B3).
"""

from __future__ import annotations

import pytest

from tests.support.stage import Outcome, Stage

pytestmark = pytest.mark.failing

SCRIPT = """
    import sys
    import torch, xmp, in_script

    torch.nn.init.trunc_normal_(torch.empty(1000, 1000))  # at module level: launcher and supervisor
    BIG = torch.ones(1000, 1000) @ torch.ones(1000, 1000)

    class Heavy:
        def __getstate__(self):
            return {"size": 1000}

        def __setstate__(self, state):
            size = state["size"]
            self.trace = float((torch.ones(size, size) @ torch.ones(size, size)).trace())

    def compute(rank, heavy=None):
        before = in_script.tasks()
        product = torch.ones(1000, 1000) @ torch.ones(1000, 1000)
        torch.nn.init.trunc_normal_(torch.empty(1000, 1000))
        return {
            "sum": float(product.sum()),
            "forked": in_script.forked(),
            "wanted": torch.get_num_threads(),
            "threads": in_script.tasks() - before + 1,
            "trace": getattr(heavy, "trace", None),
        }

    def load(rank):
        '''torch's data loader forks the replica once more, and computes in that child.'''
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, collate_fn=summed)
        BIG @ BIG
        return [sum(loader), in_script.forked()]

    def summed(batch):
        torch.ones(500, 500) @ torch.ones(500, 500)
        return float(sum(each[0] for each in batch))

    if __name__ == "__main__":
        run = lambda name, *args, **options: in_script.say(
            **{name: list(xmp.spawn(compute, args, nprocs=2, runtime="cpu", threads=2, **options))}
        )
        torch.ones(1000, 1000) @ torch.ones(1000, 1000)
        in_script.say(launcher=torch.get_num_threads())
        run("module")
        run("argument", Heavy())
        run("fork", start_method="fork")
        run("fork_argument", Heavy(), start_method="fork")
        in_script.say(loader=list(xmp.spawn(load, nprocs=2, runtime="cpu")))
        in_script.say(launcher_after=float((torch.ones(1000, 1000) @ torch.ones(1000, 1000)).sum()))
"""

CASES = ("module", "argument", "fork", "fork_argument")


@pytest.fixture(scope="module")
def outcome(shared_stage: Stage) -> Outcome:
    return shared_stage.run(SCRIPT, timeout=60)


@pytest.mark.parametrize("case", CASES)
def test_replicas_compute_by_fork_with_all_their_threads(outcome: Outcome, case: str) -> None:
    for replica in outcome.said[case]:
        assert replica["sum"] == 1000.0**3
        assert replica["forked"]
        assert replica["wanted"] == 2
        assert replica["threads"] == 2


def test_data_loaders_in_replicas(outcome: Outcome) -> None:
    assert outcome.said["loader"] == [[2016.0, True]] * 2


def test_what_setstate_computed_arrives(outcome: Outcome) -> None:
    assert [r["trace"] for r in outcome.said["argument"]] == [1e6, 1e6]


def test_the_launcher_computes_on(outcome: Outcome) -> None:
    assert outcome.said["launcher_after"] == 1000.0**3


def test_nothing_is_said_of_it(outcome: Outcome) -> None:
    assert "fresh interpreters" not in outcome.err
