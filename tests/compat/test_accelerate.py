"""accelerate's own launchers, with ``xmp.start_processes`` in torch's place and without."""

from __future__ import annotations

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.peers

PROGRAM = """
    import json, sys

    import torch.multiprocessing
    from accelerate import Accelerator, debug_launcher, notebook_launcher
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    import xmp

    started = []

    def start_processes(*args, **kwargs):
        started.append(kwargs["start_method"])
        return xmp.start_processes(*args, **kwargs)

    def train(results, fails=False):
        accelerator = Accelerator(cpu=True)
        rank = accelerator.process_index
        if fails and rank == 1:
            raise ValueError("no such label")
        torch.manual_seed(0)
        model, data = torch.nn.Linear(4, 1), torch.arange(32.0).reshape(8, 4) / 32
        loader = torch.utils.data.DataLoader(data, batch_size=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for batch in loader:
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        results[rank] = accelerator.gather(loss.detach()).sum()
        accelerator.end_training()

    def outcome(launcher, *args, **options):
        results = torch.zeros(2).share_memory_()
        try:
            launcher(train, (results, *args), num_processes=2, **options)
        except (ChildFailedError, torch.multiprocessing.ProcessRaisedException) as error:
            return type(error).__mro__[-4].__name__, "ValueError: no such label" in str(error)
        return [f"{value:.6f}" for value in results.tolist()]

    if __name__ == "__main__":
        if sys.argv[1] == "xmp":
            torch.multiprocessing.start_processes = start_processes
        agents = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}  # no fixed port
        said = [outcome(debug_launcher), outcome(notebook_launcher, **agents)]
        if sys.argv[1] == "xmp":
            failed = outcome(debug_launcher, True)
            assert failed == ("ProcessException", True), failed
        assert bool(started) is (sys.argv[1] == "xmp"), started
        print(json.dumps(said))
"""


@pytest.mark.slow
def test_its_launchers_train_as_with_torchs_own_processes(stage: Stage) -> None:
    env = {"ACCELERATE_USE_CPU": "yes", "GLOO_SOCKET_IFNAME": "lo"}
    torchs, ours = (
        stage.run(PROGRAM, who, timeout=150, env=env).out.splitlines()[-1]
        for who in ("torch", "xmp")
    )
    assert ours == torchs
    assert "0.000000" not in ours
