"""``torch.compile`` of what ``data_parallel`` has wrapped, and the other way round."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import xmp
from tests.support.averaging import are_equal, inputs, net
from tests.support.frameworks import ddp_replicas


def replicas(fn: Any) -> list[Any]:
    """Two, where the template has imported what torch.compile needs: 3.5 s of each of them."""
    xmp.preload("torch._functorch.aot_autograd", "torch._inductor.compile_fx")
    return ddp_replicas(fn)


def compiled(rank: int) -> Any:
    """Graphs, graph breaks and gradients under torch.compile; a recompilation is an error."""
    import torch
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch._dynamo.utils import counters
    from torch.nn.parallel import DistributedDataParallel

    xmp.init_process_group()
    x, seen = inputs(rank), {}

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x).relu())

    for wrap in (DistributedDataParallel, xmp.data_parallel):
        for what in ("wrapper", "model", "step"):
            torch._dynamo.reset()
            counters.clear()
            counter = CompileCounterWithBackend("aot_eager")
            through = partial(torch.compile, backend=counter)
            model = wrap(through(Net()) if what == "model" else Net())
            called = through(model) if what == "wrapper" else model
            step: Any = partial(lambda called: called(x).sum(), called)
            if what == "step":
                step = through(step)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for number in range(5):
                    # torch itself compiles once more when the first gradients are there
                    with torch._dynamo.config.patch(error_on_recompile=number > 1):
                        model.zero_grad()
                        step().backward()
            breaks = sum(counters["graph_break"].values())
            grads = [each.grad.clone() for each in model.parameters()]
            ours = [str(each.message) for each in caught if "xmp" in str(each.message)]
            seen[wrap.__name__, what] = counter.frame_count, breaks, grads, ours
    return seen


def traced(rank: int) -> Any:
    """The mode in which dynamo traces the wrapper as well."""
    import torch
    from torch._dynamo.utils import counters

    xmp.init_process_group()
    with (
        torch._dynamo.config.patch(optimize_ddp="python_reducer", compiled_autograd=True),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        model = xmp.data_parallel(net())
        step = torch.compile(model, backend="aot_eager")
        for _ in range(3):
            model.zero_grad()
            step(inputs(rank)).sum().backward()
    texts = [str(each.message) for each in caught if "xmp" in str(each.message)]
    return are_equal(model.module), sum(counters["graph_break"].values()), texts


def test_the_python_reducer_traces_the_wrapper_in_one_graph() -> None:
    assert replicas(traced) == [(True, 0, [])] * 2


def test_torch_compile_makes_the_graphs_that_it_makes_of_torchs_own() -> None:
    import torch

    for seen in replicas(compiled):
        for what in ("wrapper", "model", "step"):
            frames, breaks, grads, _ = seen["DistributedDataParallel", what]
            assert frames > 0
            assert seen["data_parallel", what][0] == frames
            assert seen["data_parallel", what][1] <= breaks
            assert seen["data_parallel", what][3] == []
            assert all(map(torch.equal, grads, seen["data_parallel", what][2]))
