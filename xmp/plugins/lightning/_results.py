"""The state that makes the Trainer as it is after a fit in one process, beside Lightning's results.

Lightning's launchers (2.6, strategies/launchers/multiprocessing.py) bring back the weights, the
state, the callback metrics and the path of the best model. Here also: the logged metrics, the
callbacks' states (the best score, early stopping's counts), how far the loops are (so that
``current_epoch``, ``global_step`` and a second ``fit`` are right), ``should_stop``,
``received_sigterm``, and the folder to which the loggers write.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from xmp._os import log

__all__ = ["restore", "state_of"]


def state_of(trainer: Any) -> bytes:
    """Pickle the state of rank 0's Trainer, tensors by value; ``restore`` puts them on the CPU."""
    import torch

    found = {
        "logged_metrics": dict(trainer.logged_metrics),
        "progress_bar_metrics": dict(trainer.progress_bar_metrics),
        "callbacks": {key: _callback_state(each) for key, each in _keyed(trainer.callbacks)},
        "progress": [progress.state_dict() for progress in _progress(trainer)],
        "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
        "should_stop": trainer.should_stop,
        "received_sigterm": trainer.received_sigterm,
        "loggers": [_logger_state(each) for each in trainer.loggers],
    }
    buffer = io.BytesIO()
    torch.save(found, buffer)
    return buffer.getvalue()


def restore(trainer: Any, state: bytes) -> None:
    """Give this process's Trainer the state of rank 0's."""
    import torch

    # Rank 0 made it; callbacks have objects of any class in their state.
    found = torch.load(io.BytesIO(state), map_location="cpu", weights_only=False)
    trainer.logged_metrics.update(found["logged_metrics"])
    trainer._logger_connector._progress_bar_metrics.update(found["progress_bar_metrics"])
    for key, callback in _keyed(trainer.callbacks):
        _restore_callback(callback, found["callbacks"].get(key))
    for progress, said in zip(_progress(trainer), found["progress"]):
        progress.load_state_dict(said)
    trainer.fit_loop.epoch_loop._batches_that_stepped = found["stepped"]
    trainer.should_stop = found["should_stop"]
    trainer._signal_connector.received_sigterm = found["received_sigterm"]
    for logger, said in zip(trainer.loggers, found["loggers"]):
        vars(logger).update(said)


def _logger_state(logger: Any) -> dict[str, Any]:
    """Return the attributes by which later launches, and ``log_dir``, go on with the same folder.

    CSVLogger's writer deletes an earlier writer's file (lightning 2.6, fabric/loggers/csv_logs.py).
    """
    names = ["_version"]
    own = vars(logger)
    if type(own.get("_experiment")).__name__ == "ExperimentWriter":
        names += ["_experiment"]
    return {name: own[name] for name in names if own.get(name) is not None}


def _keyed(callbacks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield callbacks with keys, as positions differ: in replicas the module has added others."""
    count = Counter[str]()
    for each in callbacks:
        count[each.state_key] += 1
        yield (each.state_key, count[each.state_key]), each


def _callback_state(callback: Any) -> bytes | None:
    """Pickle the state of one callback alone; warn and return None where that is not possible."""
    import torch

    buffer = io.BytesIO()
    try:
        torch.save(callback.state_dict(), buffer)
    except Exception as error:
        log.warning("the state of %s does not come back: %s", type(callback).__name__, error)
        return None
    return buffer.getvalue()


def _restore_callback(callback: Any, state: bytes | None) -> None:
    import torch

    found = torch.load(io.BytesIO(state), "cpu", weights_only=False) if state else None
    if not found:
        return
    if "best_model_path" in found and "dirpath" in found and hasattr(callback, "dirpath"):
        callback.dirpath = found["dirpath"]  # else ModelCheckpoint takes it for another run's
    try:
        callback.load_state_dict(found)
    except Exception as error:  # it may need what its hooks have made in the replicas
        log.warning("the state of %s does not come back: %r", type(callback).__name__, error)


def _progress(trainer: Any) -> Iterator[Any]:
    """Yield the counters of all loops, in an order that is the same in all processes."""
    for loop in (trainer.fit_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop):
        yield from _counters(loop)


def _counters(loop: Any) -> Iterator[Any]:
    for _, value in sorted(vars(loop).items(), key=lambda item: item[0]):
        names = {each.__name__ for each in type(value).__mro__}
        if "_BaseProgress" in names:
            yield value
        elif "_Loop" in names:
            yield from _counters(value)
