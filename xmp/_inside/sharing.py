"""Two objects that the replicas of one host share: a lock, and the weights of a model.

Each has a key that is the same in every replica: the line that makes the object, and how many that
line has made. Objects made before the fork are shared already. Where every replica makes its own
(``start_method="spawn"``, a module imported within the function), all replicas take the weights of
the first one.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, TypeVar

from xmp import _inside
from xmp._os import signals
from xmp._os.imports import loaded_framework

__all__ = ["MpModelWrapper", "MpSerialExecutor"]

T = TypeVar("T")


class _Made(threading.local):
    """The number of objects that each line has made in this thread, which may be a replica."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()


_made = _Made()


class MpSerialExecutor:
    """Runs a function in one replica of this host after the other, never in two at once.

    As in torch_xla, make it at module level (or pass it to ``spawn`` as an argument) and use it
    within the replicas' function; here it works under every start method. It is for what replicas
    must not do at the same time, such as a download that only the first one has to make::

        SERIAL_EXEC = xmp.MpSerialExecutor()

        def _mp_fn(rank):
            dataset = SERIAL_EXEC.run(get_dataset)
    """

    def __init__(self) -> None:
        self._key = _key(sys._getframe(1))

    def run(self, fn: Callable[[], T]) -> T:
        """Call ``fn`` when it is this replica's turn, and return its value.

        The turn of a replica that dies ends. Threads and children of replicas take turns of their
        own: a worker of a data loader also waits while its replica has the turn, so ``fn`` must
        not wait for a worker that calls ``run`` of the same object.

        Args:
            fn: a function without arguments.

        Raises:
            RuntimeError: ``run`` of the same object was called within ``fn``, or by a signal
                handler while this thread has the turn or waits for it.
        """
        with _turn(self._key):
            return fn()


class MpModelWrapper:
    """Holds a model for all replicas of this host and moves it to their devices one by one.

    As in torch_xla, make it at module level (or pass it to ``spawn`` as an argument), so that
    the host's memory holds the initial weights once::

        WRAPPED_MODEL = xmp.MpModelWrapper(MyNetwork())

        def _mp_fn(rank):
            model = WRAPPED_MODEL.to(xmp.device())

    The weights are private copy-on-write memory: replicas start from the same values, and what
    one writes the others do not see. Where each replica has made its own object, all take the
    weights of the first replica: in a ``torch.nn.Module`` parameters and buffers are replaced in
    place (tied ones stay tied, an optimizer made earlier keeps working); any other model is
    replaced by a copy of the first replica's, with ``jax.Array`` leaves as numpy arrays.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._key = _key(sys._getframe(1))
        self._made_in = os.getpid()
        self._copies: dict[int, Any] = {}

    def to(self, device: Any) -> Any:
        """Move the model when it is this replica's turn, so that one replica at a time copies.

        Args:
            device: what ``model.to`` takes; for trees of arrays what ``jax.device_put`` takes.

        Returns:
            The module itself, moved in place; for a tree of arrays, the moved tree. Where replicas
            are threads of one process (TPU v2 and v3), each gets its own copy.

        Raises:
            TypeError: the model has no ``to`` and JAX is not loaded.
            RuntimeError: this replica made a model that differs from the first replica's.
        """
        channel = _inside.channel()
        if channel is not None and self._made_in == os.getpid():
            # Two threads may both do this, with the same values.
            self._model = _first_weights(self._model, f"{self._key}/weights", channel)
            self._made_in = 0
        with _turn(self._key):
            if _inside.is_thread():
                rank = _inside.local_rank()
                model = self._copies.get(rank) or copy.deepcopy(self._model)
                self._copies[rank] = _moved(model, device)
                return self._copies[rank]
            self._model = _moved(self._model, device)
        return self._model

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Send weights as private memory, even where tensors would be put in shared memory."""
        with signals.deferred():  # `import xmp` does not load cloudpickle
            from xmp._payload.pickler import OutcomePickler

        stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        OutcomePickler(stream, buffers).dump(self._model)
        parts = buffers if protocol >= 5 else [bytes(buffer.raw()) for buffer in buffers]
        return _arrive, (type(self), self._key, stream.getvalue(), parts)


def _arrive(kind: type[MpModelWrapper], key: str, stream: bytes, buffers: Any) -> MpModelWrapper:
    wrapper = kind.__new__(kind)
    # In-band buffers of a plain pickle arrive as bytes, which are read-only.
    writable = [bytearray(each) if memoryview(each).readonly else each for each in buffers]
    wrapper._model = pickle.loads(stream, buffers=writable)
    wrapper._key = key
    wrapper._copies = {}
    wrapper._made_in = 0  # every replica that unpickles it has the same weights
    return wrapper


def _key(frame: FrameType) -> str:
    """Return the module, function and line that make an object, and how many they have made."""
    module = frame.f_globals.get("__name__", "?")
    module = "__main__" if module == "__mp_main__" else module
    place = f"{module}:{frame.f_code.co_name}:{frame.f_lineno}"
    call = _inside.gangs_call()  # of a later call: the line may have made others in an earlier one
    made = _made.count if call is None else call.made
    made[place] += 1
    return f"{place}#{'' if call is None else f'{call.number}/'}{made[place]}"


def _turn(key: str) -> AbstractContextManager[None]:
    channel = _inside.channel()
    return nullcontext() if channel is None else channel.turn(key)


def _moved(model: Any, device: Any) -> Any:
    if hasattr(model, "to"):
        return model.to(device)
    jax = loaded_framework("jax")
    if jax is not None:
        return jax.device_put(model, device)
    raise TypeError(
        f"MpModelWrapper holds a {type(model).__qualname__}, which has no .to(device), and JAX is "
        "not loaded. Wrap a torch.nn.Module, or import jax for a tree of arrays."
    )


def _first_weights(model: Any, key: str, channel: _inside.Channel) -> Any:
    torch = loaded_framework("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return channel.share(key, lambda: model)
    mine = _tensors(model)
    theirs = channel.share(key, lambda: {name: tensor.detach() for name, tensor in mine.items()})
    _adopt(mine, theirs, key)
    return model


def _tensors(model: Any) -> dict[str, Any]:
    """Return parameters and buffers by name, tied ones once; without those of lazy modules.

    Those are still empty.
    """
    is_lazy = sys.modules["torch"].nn.parameter.is_lazy
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor for name, tensor in named if not is_lazy(tensor)}


def _adopt(mine: Mapping[str, Any], theirs: Mapping[str, Any], key: str) -> None:
    """Replace each tensor of ``mine`` by the one of the same name in ``theirs``."""
    shapes = [{name: (t.dtype, t.shape) for name, t in each.items()} for each in (mine, theirs)]
    if shapes[0] != shapes[1]:
        odd = sorted({name for name, _ in set(shapes[0].items()) ^ set(shapes[1].items())})
        raise RuntimeError(
            f"MpModelWrapper made at {key.partition('#')[0]}: this replica's model differs from "
            f"that of the first replica in {', '.join(odd[:5])}. Make the same models in the same "
            "order on every replica."
        )
    users = Counter(tensor.untyped_storage().data_ptr() for tensor in mine.values())
    for name, tensor in mine.items():
        first = theirs[name]
        if tensor.data_ptr() == first.data_ptr():
            continue
        if tensor.device.type == "cpu" and users[tensor.untyped_storage().data_ptr()] == 1:
            tensor.data = first  # the mapped pages themselves, not a copy of them
        else:
            tensor.data.copy_(first)
