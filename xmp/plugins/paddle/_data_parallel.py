"""``DataParallel`` with Paddle's words: on ``xmp.data_parallel`` for torch, Paddle's for Paddle."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xmp._words.errors import PlanError
from xmp._words.framework import AveragingOptions
from xmp.plugins.data_parallel.call import wrap

from ._environment import paddle_runs, refuse_paddle_on
from ._group import torchs_group, world_of_torch
from ._left_out import left_out
from ._sync import is_paddles, refuse_other_models

if TYPE_CHECKING:
    from torch.nn import Module as _Module
else:
    _Module = object  # the class of an object has torch's Module as well: see __new__

__all__ = ["DataParallel"]

_ALONE = (
    "xmp.compat.paddle.DataParallel averages nothing: this process is the only trainer. Start more "
    "by xmp.compat.paddle.spawn or xmp.spawn, or with Paddle's launcher"
)


class _Known(type):
    """The metaclass: ``isinstance`` is true of Paddle's wrappers, ``help()`` shows arguments."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of ``__init__``; inspect would take that of ``__new__``, for copies too."""
        made = inspect.signature(cls.__init__)  # type: ignore[misc]
        return made.replace(parameters=[*made.parameters.values()][1:])

    def __instancecheck__(cls, instance: object) -> bool:
        paddles = getattr(sys.modules.get("paddle"), "DataParallel", ())
        return super().__instancecheck__(instance) or (
            cls is DataParallel and isinstance(instance, paddles)
        )


class DataParallel(_Module, metaclass=_Known):  # type: ignore[misc, unused-ignore]
    """A model whose gradients are averaged over the trainers, with the methods of Paddle's class.

    Call ``init_parallel_env()`` before. A ``torch.nn.Module`` is trained as by
    ``xmp.data_parallel``, and the result is a module of torch's; a ``paddle.nn.Layer`` gives
    Paddle's own ``DataParallel``. Parameters with ``no_sync = True`` are left out: neither their
    values nor their gradients are exchanged. Pickled or copied it is the model alone.

    Args:
        layers: the model.
        strategy: Paddle's deprecated argument; a model of torch's takes none.
        comm_buffer_size: the limit in MiB of a bucket in which gradients are reduced.
        last_comm_buffer_size: the same for the one bucket that is smaller, so that less is left to
            reduce when backward ends; torch makes the first one of a backward smaller.
        find_unused_parameters: for models in which a step leaves parameters without a gradient.
        group: what ``init_parallel_env`` returned, or a process group of torch's.

    Raises:
        TypeError: ``layers`` is neither a module of torch's nor a layer of Paddle's.
        PlanError: no parameter is trainable, or an argument is not allowed.
        RuntimeError: the trainers are not connected.
    """

    def __new__(cls, layers: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Make an object whose class is also torch's Module; for Paddle's layers, Paddle's own.

        ``import xmp`` brings no framework, so that the class itself cannot derive from Module.
        """
        if is_paddles(layers):
            refuse_paddle_on("the model")
            return sys.modules["paddle"].DataParallel(layers, *args, **kwargs)
        refuse_other_models("DataParallel", layers)
        return object.__new__(_with_module(cls))

    def __init__(
        self,
        layers: Any,
        strategy: Any = None,
        comm_buffer_size: float = 25,
        last_comm_buffer_size: float = 1,
        find_unused_parameters: bool = False,
        group: Any = None,
    ) -> None:
        super().__init__()
        _refuse(layers, strategy)
        self._layers = layers
        self.training = layers.training
        self.find_unused_parameters = find_unused_parameters
        self.grad_need_sync = True
        self.group = group
        self.comm_buffer_size = _bytes("comm_buffer_size", comm_buffer_size)
        self.last_comm_buffer_size = _bytes("last_comm_buffer_size", last_comm_buffer_size)
        self.__dict__["_averaged"] = None  # not a submodule: its parameters are those of `_layers`
        if world_of_torch("DataParallel") == 1:
            warnings.warn(_ALONE, stacklevel=2)
            return
        options = AveragingOptions(
            bucket_mb=comm_buffer_size,
            first_bucket_mb=last_comm_buffer_size,
            find_unused_parameters=find_unused_parameters,
            group=torchs_group(group),
            words=("model._layers", "DataParallel"),
        )
        with left_out(layers):
            self.__dict__["_averaged"] = wrap(layers, options)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return the model's output; its backward averages gradients, except in ``no_sync()``."""
        averaged = self.__dict__["_averaged"]
        if averaged is None:
            return self._layers(*inputs, **kwargs)
        if self.grad_need_sync:
            return averaged(*inputs, **kwargs)
        with averaged.no_sync():
            return averaged(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without averaging, for the forwards in this context.

        The next backward of a forward outside of it averages what has been accumulated.
        """
        before = self.grad_need_sync
        self.grad_need_sync = False
        try:
            yield
        finally:
            self.grad_need_sync = before

    def scale_loss(self, loss: Any) -> Any:
        """Return ``loss``. Deprecated since Paddle 2.0: gradients are averaged anyway."""
        _deprecated("scale_loss")
        return loss

    def apply_collective_grads(self) -> None:
        """Do nothing. Deprecated since Paddle 2.0: backward averages the gradients."""
        _deprecated("apply_collective_grads")

    def train(self, mode: bool = True) -> Any:
        """Set the mode as torch does, also of the model and of what averages its gradients."""
        if self.__dict__["_averaged"] is not None:
            self.__dict__["_averaged"].train(mode)
        return super().train(mode)

    def state_dict(
        self,
        destination: Any = None,
        include_sublayers: bool = True,
        structured_name_prefix: str = "",
        **torchs: Any,
    ) -> Any:
        """Return the parameters and persistent buffers of the model, by their names in it.

        Args:
            destination: a dict to put them into, and to return.
            include_sublayers: False: only those of the model itself, not of its submodules.
            structured_name_prefix: a text to put before each name.
            torchs: ``prefix`` and ``keep_vars``, which a module that contains this one passes; the
                names then have ``_layers.`` in them, as its ``load_state_dict`` expects.
        """
        if torchs:
            return super().state_dict(destination=destination, **torchs)
        found = self._layers.state_dict(prefix=structured_name_prefix)
        if not include_sublayers:
            start = len(structured_name_prefix)
            found = {name: value for name, value in found.items() if "." not in name[start:]}
        if destination is None:
            return found
        destination.update(found)
        return destination

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a state as torch does, with the model's own names."""
        return self._layers.load_state_dict(state_dict, *args, **kwargs)

    def set_state_dict(
        self, state_dict: Any = None, use_structured_name: bool = True, *, stat_dict: Any = None
    ) -> None:
        """Set the parameters and buffers that ``state_dict`` has.

        As in Paddle a warning says which values are missing or have another shape, and these stay
        as they are; names that the model does not have are ignored.

        Args:
            state_dict: names, and tensors or numpy arrays.
            use_structured_name: False asks for Paddle's names of parameters, which torch lacks.
            stat_dict: the deprecated name of ``state_dict``.

        Raises:
            PlanError: ``use_structured_name`` is False. TypeError: ``state_dict`` is no dict.
        """
        if stat_dict is not None:
            warnings.warn(
                "stat_dict= is deprecated: it is state_dict=", DeprecationWarning, stacklevel=2
            )
            state_dict = stat_dict
        if not use_structured_name:
            raise PlanError(
                "use_structured_name=False: parameters of torch have no names of their own. Leave "
                "it out, and give the names that state_dict() has"
            )
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict must be a dict, not {type(state_dict).__name__}")
        self._layers.load_state_dict(_fitting(self._layers, state_dict), strict=False)

    set_dict = set_state_dict
    load_dict = set_state_dict

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle the model alone: where it arrives there may be no other trainers."""
        return _arrived, (self._layers,)


@functools.cache
def _with_module(cls: type) -> type:
    module = sys.modules["torch"].nn.Module
    if issubclass(cls, module):
        return cls
    words = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls)(cls.__name__, (cls, module), words)


def _refuse(layers: Any, strategy: Any) -> None:
    if isinstance(layers, DataParallel):
        raise PlanError("the model is wrapped by DataParallel already: give the model itself")
    if paddle_runs():
        raise PlanError(
            "the model is torch's, and Paddle connects these trainers: launch with "
            'runtime="cpu" or "cuda"'
        )
    if strategy is not None:
        raise PlanError(f"strategy={strategy!r} is Paddle's, which has deprecated it: leave it out")


def _bytes(name: str, megabytes: Any) -> int:
    if isinstance(megabytes, bool) or not isinstance(megabytes, (int, float)):
        raise TypeError(f"{name} must be a number of MiB, not {type(megabytes).__name__}")
    if not 0 < megabytes < 2**40:
        raise PlanError(f"{name}={megabytes!r}; give a number of MiB above 0")
    return int(megabytes * 2**20)


def _fitting(model: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that ``model`` can take; warn of each that it cannot, or misses."""
    torch = sys.modules["torch"]
    found = {}
    for name, own in model.state_dict().items():
        value = state.get(name)
        if value is not None and isinstance(own, torch.Tensor):
            value = torch.as_tensor(value)
        if value is None:
            _skipped(name, "it is not in the given dict")
        elif isinstance(own, torch.Tensor) and value.shape != own.shape:
            _skipped(name, f"the shape is {list(value.shape)}, and must be {list(own.shape)}")
        else:
            found[name] = value
    return found


def _skipped(name: str, why: str) -> None:
    warnings.warn(f"set_state_dict() leaves {name} as it is: {why}", stacklevel=4)


def _deprecated(name: str) -> None:
    warnings.warn(
        f"{name}() does nothing: backward averages the gradients. Remove the call",
        DeprecationWarning,
        stacklevel=3,
    )


def _arrived(model: Any) -> Any:
    return model
