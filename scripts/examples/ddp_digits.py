"""Train on handwritten digits with torch's DistributedDataParallel, one replica per device.

Needs torch and scikit-learn, which brings the 1,797 images.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import xmp


def train(rank, epochs=5):
    dist.init_process_group()
    device = xmp.device()
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
    y = torch.tensor(digits.target, device=device)
    images = TensorDataset(x[:1437], y[:1437])
    mine = DistributedSampler(images)  # this replica's part of each epoch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = DistributedDataParallel(model.to(device))  # averages the gradients in backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        mine.set_epoch(epoch)  # another order in each epoch
        for batch, labels in DataLoader(images, batch_size=32, sampler=mine):
            optimizer.zero_grad()
            loss = cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)
    right = (model(x[1437:]).argmax(1) == y[1437:]).float().mean()
    return f"rank {rank} on {device}: test accuracy {right.item():.3f}"


if __name__ == "__main__":
    for line in xmp.spawn(train):  # nprocs=8 for another number than one per device
        print(line)
