"""accelerate's own launchers, with ``xmp.start_processes`` in torch's place and without."""

from __future__ import annotations

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.peers

PROGRAM = """
    import json, sys

    import torch.multiprocessing
    from accelerate import Accelerator, debug_launcher, notebook_launcher
    from accelerate_training import last_loss
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
        loss = last_loss(accelerator)
        results[rank] = accelerator.gather(loss).sum()
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
