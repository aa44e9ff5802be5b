"""The picklers of calls and outcomes: what travels by reference, by value, in shared memory.

What the other side can import by name travels by reference, including the script's ``__main__``
(which is imported there as ``__mp_main__``); everything else travels by value, through cloudpickle.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import IO, TYPE_CHECKING, Any

from xmp._os import signals
from xmp._os.imports import loaded_framework
from xmp._words.errors import StartError

try:
    import cloudpickle
except ImportError as error:  # as where pip has installed xmp with --no-deps
    raise StartError(
        f"xmp needs the package cloudpickle, which cannot be imported ({error}). Install it: "
        "pip install cloudpickle"
    ) from None

from .by_name import found_in, importable, of_pytest, unwrapped, wrapped_in
from .script import imported_names, main_is_shared, main_source

if TYPE_CHECKING:
    from .rewriting import Rewriting

__all__ = [
    "CallPickler", "HostsCallPickler", "OutcomePickler", "Rest", "by_value_modules", "is_test_case",
    "rewriting", "without_its_run",
]  # fmt: skip


class Rest:
    """Marks, in a packed call, where the function ends and its arguments begin."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Rest, ()


class _Storage:
    """A tensor's memory, sent once for all tensors that view it."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        size = self.storage.nbytes()
        if size == 0:
            return _rebuild_storage, (b"",)
        block = (ctypes.c_ubyte * size).from_address(self.storage.data_ptr())
        return _rebuild_storage, (pickle.PickleBuffer(block),)


def _rebuild_storage(buffer: Any) -> Any:
    import torch

    if len(buffer) == 0:
        return torch.UntypedStorage(0)
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


class _HostStorage(_Storage):
    """A tensor's memory in a call to several hosts: each host shares its own copy."""

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, parts = super().__reduce__()
        return _rebuild_shared, (rebuild, *parts)


def _rebuild_shared(rebuild: Callable[[Any], Any], buffer: Any) -> Any:
    return rebuild(buffer).share_memory_()


def _rebuild_typed(storage: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _is_jax_array(value: Any) -> bool:
    return type(value).__name__ in ("ArrayImpl", "PRNGKeyArray") and type(
        value
    ).__module__.startswith(("jaxlib", "jax"))


def _is_tensor(value: Any) -> bool:
    torch = loaded_framework("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def _code(code: types.CodeType) -> Any:
    """Reduce code as cloudpickle does, but keep its file name, by which tracebacks show the line.

    cloudpickle 3.1.3 drops the name (cloudpickle.py, _code_reduce).
    """
    make, values = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    no_name = [isinstance(each, str) and each == "<dynamic-code>" for each in values]
    named = (code.co_filename if bad else each for each, bad in zip(values, no_name, strict=True))
    return make, tuple(named)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle with multiprocessing's reducers and out-of-band buffers."""

    # The C pickler reads this attribute once, in __init__, and libraries register reducers with
    # multiprocessing later: a ChainMap looks them up.
    dispatch_table = ChainMap(
        {types.CodeType: _code},
        ForkingPickler._extra_reducers,  # type: ignore[attr-defined]
        cloudpickle.Pickler.dispatch_table,
    )

    def __init__(self, file: IO[bytes], buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._storages: dict[int, _Storage] = {}

    @functools.cached_property
    def _script(self) -> tuple[types.ModuleType | None, frozenset[str] | None]:
        """The script, if its definitions travel by reference, and its names that others find.

        Looked up at the first function or class, since it reads and parses the script.
        """
        source = main_source()
        again = source is not None and not main_is_shared()
        main = sys.modules.get("__main__") if again or main_is_shared() else None
        return main, imported_names(source.path) if source and again else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (types.FunctionType, type)):
            with signals.deferred():  # a handler's OSError would pass for one of these files
                main, names = self._script
                if main is not None and found_in(main, obj, names):
                    return obj.__qualname__
                holder = wrapped_in(obj, main, names)
            return super().reducer_override(obj) if holder is None else (unwrapped, holder)
        return NotImplemented

    def _private(self, obj: Any) -> Any:
        """Reduce torch's tensors and storages to private out-of-band buffers."""
        torch = loaded_framework("torch")
        if torch is None:
            return NotImplemented
        if isinstance(obj, torch.Tensor):
            return obj.__reduce_ex__(5)
        if isinstance(obj, torch.storage.TypedStorage):
            return _rebuild_typed, (self._storage(obj._untyped_storage), obj.dtype)
        if isinstance(obj, torch.UntypedStorage):
            return _identity, (self._storage(obj),)
        return NotImplemented

    def _storage(self, storage: Any) -> _Storage:
        # A tensor makes a new Python object for its storage at each access: key by the memory.
        key = storage.data_ptr() or id(storage)
        return self._storages.setdefault(key, self._new_storage(storage))

    def _new_storage(self, storage: Any) -> _Storage:
        return _Storage(storage)


def _identity(value: Any) -> Any:
    return value


class OutcomePickler(_Pickler):
    """Pickles what leaves a replica: without devices and shared memory."""

    def reducer_override(self, obj: Any) -> Any:
        if _is_jax_array(obj):
            return _as_numpy(obj).__reduce_ex__(5)
        if _is_tensor(obj) and obj.device.type not in ("cpu", "meta"):
            copy = obj.detach().cpu()
            copy.requires_grad = obj.requires_grad
            return copy.__reduce_ex__(5)
        reduced = self._private(obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _as_numpy(array: Any) -> Any:
    import numpy

    if type(array).__name__ == "PRNGKeyArray":
        raise TypeError("a typed PRNG key cannot leave a replica. Return jax.random.key_data(key).")
    if not array.is_fully_addressable:
        raise TypeError(
            "a jax.Array that is spread over several replicas cannot leave one of them. "
            "Return array.addressable_data(0), or gather it first."
        )
    return numpy.asarray(array)


_ACCELERATE, _OF_THE_WORLD = "accelerate.state", ("PartialState", "AcceleratorState")
"""Classes that are refused: unpickled, they keep the world that they had, apart from the state that
``Accelerator()`` shares (1.15)."""


class CallPickler(_Pickler):
    """Pickles what enters the replicas: notes what touches a device, shares CPU tensors."""

    touches_device = False

    def __init__(
        self, file: IO[bytes], buffers: list[pickle.PickleBuffer], sharing: bool = False
    ) -> None:
        super().__init__(file, buffers)
        self._sharing = sharing

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Rest:
            self._sharing = True
        elif _is_jax_array(obj):
            self.touches_device = True
        elif _is_tensor(obj):
            return self._tensor(obj)
        elif _is_semaphore(obj):
            _check_semaphore(obj)
        elif type(obj).__module__ == _ACCELERATE and type(obj).__name__ in _OF_THE_WORLD:
            raise TypeError(
                "accelerate's state describes the world of this process, and a replica has another "
                "one. Make the Accelerator, PartialState or TrainingArguments inside the function"
            )
        elif not self._sharing and (reduced := self._private(obj)) is not NotImplemented:
            return reduced
        elif is_test_case(obj):
            return without_its_run(obj)
        return super().reducer_override(obj)

    def _tensor(self, tensor: Any) -> Any:
        if tensor.device.type not in ("cpu", "meta"):
            self.touches_device = True
            return NotImplemented
        if not self._sharing:
            return self._private(tensor)
        if tensor.device.type == "cpu" and not tensor.is_shared():
            _check_shared_memory(tensor.untyped_storage().nbytes())
        return NotImplemented


class HostsCallPickler(CallPickler):
    """Pickles what enters the replicas of several hosts, which share neither memory nor locks."""

    def _tensor(self, tensor: Any) -> Any:
        if tensor.device.type not in ("cpu", "meta"):
            raise TypeError(
                f"a tensor on {tensor.device} cannot be sent to other hosts. Send tensor.cpu(), "
                "and move it to the device in the function"
            )
        return self._private(tensor)

    def reducer_override(self, obj: Any) -> Any:
        if _is_semaphore(obj):
            raise TypeError(
                "a lock, semaphore or queue of multiprocessing connects processes of one host, and "
                "cannot be sent to several. Use torch.distributed or JAX between them"
            )
        if self._sharing and _is_storage(obj):
            return self._private(obj)
        return super().reducer_override(obj)

    def _new_storage(self, storage: Any) -> _Storage:
        return _HostStorage(storage) if self._sharing else _Storage(storage)


def _is_storage(value: Any) -> bool:
    torch = loaded_framework("torch")
    kinds = () if torch is None else (torch.UntypedStorage, torch.storage.TypedStorage)
    return isinstance(value, kinds)


def is_test_case(value: Any) -> bool:
    case = sys.modules.get("unittest.case")
    return case is not None and isinstance(value, getattr(case, "TestCase", ()))


def without_its_run(test: Any) -> Any:
    """Reduce a test, whose method is the function, without what its runner has put into it.

    Its outcome leads to the whole runner (CPython 3.10 to 3.13, unittest/case.py), its cleanups
    must run once, in the launcher, and pytest sets the method that it runs as an attribute
    (pytest 9, _pytest/unittest.py). IsolatedAsyncioTestCase has its loop in "_asyncio…"
    (async_case.py).
    """
    reduced = test.__reduce_ex__(5)
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    state = {**reduced[2], "_outcome": None, "_cleanups": []}
    state.update({name: None for name in state if name.startswith("_asyncio")})
    state.pop(getattr(test, "_testMethodName", ""), None)
    return (*reduced[:2], state, *reduced[3:])


def _check_shared_memory(size: int) -> None:
    with signals.deferred():
        try:
            place = os.statvfs("/dev/shm")
        except OSError:
            return
    free = place.f_bavail * place.f_frsize
    if size > free:
        raise ValueError(
            f"a tensor of {size / 1e6:.1f} MB does not fit into shared memory: /dev/shm has "
            f"{free / 1e6:.1f} MB free. Enlarge it (docker run --shm-size=…) or pass a numpy array."
        )


def _is_semaphore(value: Any) -> bool:
    synchronize = sys.modules.get("multiprocessing.synchronize")
    return synchronize is not None and isinstance(value, synchronize.SemLock)


def _check_semaphore(semaphore: Any) -> None:
    """Refuse a semaphore of the fork context: it has no name by which others could open it."""
    if semaphore._semlock.name is None:
        raise RuntimeError(
            "it was made in multiprocessing's fork context, so only forked children can use it. "
            'Make it with multiprocessing.get_context("spawn").'
        )


@contextmanager
def by_value_modules(fn: Callable[..., Any]) -> Iterator[None]:
    """Within the block, send by value what is in modules that others cannot import by name.

    These are the function's module, and those that pytest's rewriting loader has imported and no
    other finder knows. What a module makes at its top (a lock, a class) then exists in each process
    and need not be sent.
    """
    chosen = [m for m in list(sys.modules.values()) if of_pytest(m)] if _pytest_runs() else []
    chosen = [module for module in chosen if not importable(module)]
    own = sys.modules.get(getattr(fn, "__module__", None) or "")
    if own is not None and own not in chosen and not importable(own):
        chosen.append(own)
    fresh = [m for m in chosen if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in fresh:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in fresh:
            cloudpickle.unregister_pickle_by_value(module)


def rewriting(fn: Callable[..., Any]) -> Iterator[Rewriting]:
    """Yield what a call begins with if pytest has imported modules: replicas rewrite them, too."""
    if _pytest_runs():
        from .rewriting import Rewriting

        found = [module for module in list(sys.modules.values()) if of_pytest(module)]
        yield Rewriting(found, getattr(fn, "__module__", None))


def _pytest_runs() -> bool:
    return "_pytest.assertion.rewrite" in sys.modules
