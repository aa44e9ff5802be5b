import time

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import xmp


def _mp_fn(rank, epochs=16, batch=128):
    xmp.init_process_group()
    device = xmp.device()
    digits = load_digits()  # 1,797 real handwritten digits, 8 x 8 pixels each
    x = torch.tensor(digits.data / 16, device=device)
    y = torch.tensor(digits.target, device=device)
    torch.manual_seed(0)  # the same first weights, and the same order, on every replica
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    parameters = list(model.to(device, torch.float64).parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.3, momentum=0.9)
    train, test = torch.randperm(len(x)).split([1437, 360])
    curve, start = [], time.perf_counter()
    for epoch in range(epochs):
        for step in train[torch.randperm(len(train))].split(batch):
            mine = step[rank :: xmp.world_size()]  # this replica's part of the global batch
            optimizer.zero_grad()
            loss = cross_entropy(model(x[mine]), y[mine], reduction="sum") / len(step)
            loss.backward()
            for p, grad in zip(parameters, xmp.all_reduce([p.grad for p in parameters])):
                p.grad = grad
            optimizer.step()
        curve.append((model(x[test]).argmax(1) == y[test]).double().mean().item())
        if rank == 0:
            print(f"torch, epoch {epoch + 1:2}: test accuracy {curve[-1]:.3f}", flush=True)
    seconds = time.perf_counter() - start
    return {"curve": curve, "seconds": seconds, "weights": [p.detach() for p in parameters]}


if __name__ == "__main__":
    results = xmp.spawn(_mp_fn, nprocs=8)
    print("accuracy of each replica:", [result["curve"][-1] for result in results])
