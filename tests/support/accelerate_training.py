"""The training of the tests on accelerate, which is the same under every launcher."""

from __future__ import annotations

from typing import Any

from tests.support.lazily import lazily

torch = lazily("torch")


__all__ = ["last_loss"]


def last_loss(accelerator: Any) -> Any:
    """Train a linear layer on eight rows, in batches of two for each process; the last loss."""
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
    return loss.detach()
