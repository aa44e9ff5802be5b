"""The face of a wrapped torch model: the model's attributes, and its state without a prefix."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from xmp._inside.identity import current
from xmp._os import log

__all__ = ["Alone", "ModelFace", "alone"]

_PREFIX = "module."


class ModelFace:
    """A base for wrappers, to stand before ``torch.nn.Module`` or a class derived from it.

    The wrapper keeps the model as ``module``, as torch's DistributedDataParallel does.
    """

    module: Any

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own state, with its own keys."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load what ``state_dict`` of this wrapper, or of the model alone, returned."""
        hint = _hint(state_dict, self.module)
        try:
            result = self.module.load_state_dict(state_dict, *args, **kwargs)
        except RuntimeError as error:
            if hint:
                raise RuntimeError(f"{error}\n{hint}") from None
            raise
        if hint:
            log.warn_caller(f"load_state_dict() has loaded nothing. {hint}")
        return result

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Load this wrapper's part of the state of a module around it, without our prefix, too."""
        for key in [key for key in state_dict if key.startswith(prefix)]:
            state_dict[f"{prefix}{_PREFIX}{key[len(prefix) :]}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *rest)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            model = self.__dict__.get("_modules", {}).get("module")
            if model is None or name.startswith("__"):
                raise
        return getattr(model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set on the model what is read from there, and modules and parameters: its state."""
        is_state = isinstance(value, (torch.nn.Module, torch.nn.Parameter))
        if self._is_models(name) and (is_state or hasattr(self.module, name)):
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_models(name):
            delattr(self.module, name)
        else:
            super().__delattr__(name)

    def _is_models(self, name: str) -> bool:
        """Return whether the name is the model's: the finished wrapper has no such attribute."""
        own = self.__dict__
        return "_is_made" in own and name not in ("module", *own) and not hasattr(type(self), name)

    def register_module(self, name: str, module: Any) -> None:
        """Add it to the model."""
        self._to_model("register_module", name, module)

    add_module = register_module

    def register_parameter(self, name: str, param: Any) -> None:
        """Add it to the model."""
        self._to_model("register_parameter", name, param)

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Add it to the model."""
        self._to_model("register_buffer", name, tensor, persistent)

    def _to_model(self, method: str, *args: Any) -> None:
        owner = self.module if "_is_made" in self.__dict__ else super()
        getattr(owner, method)(*args)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.module)})

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle the model alone: where it arrives there may be no process group."""
        return _arrive, (self.module,)

    def _made(self) -> None:
        """Note that the wrapper is ready. Call this last in ``__init__``."""
        self.__dict__["_is_made"] = True


def _arrive(model: Any) -> Any:
    return model


class Alone(ModelFace, torch.nn.Module):  # type: ignore[misc]
    """The wrapper of a model in a group of one: the same face, with nothing to average."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.module = model
        self.training = model.training
        self._made()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return what the model returns."""
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do nothing: here gradients are never averaged."""
        yield

    @contextmanager
    def join(self, *_: Any, **__: Any) -> Iterator[None]:
        """Do nothing: a single replica has no uneven inputs."""
        yield

    def __deepcopy__(self, memo: dict[int, Any]) -> Alone:
        return type(self)(copy.deepcopy(self.module, memo))


def alone(model: Any, group: Any) -> Alone:
    """Wrap ``model`` in a world or group of one; warn of that unless ``nprocs=1`` asked for it."""
    if not current().is_alone:
        of = "a world of one" if group is None else "a group of one"
        log.warn_caller(
            f"data_parallel in {of} averages nothing: launch with more replicas to train on them"
        )
    return Alone(model)


def _hint(state: Any, model: Any) -> str:
    """Say what to do about the keys that bare DistributedDataParallel writes; "" without them."""
    keys = list(state) if isinstance(state, Mapping) else []
    if not keys or not all(str(key).startswith(_PREFIX) for key in keys):
        return ""
    if set(keys) & set(model.state_dict()):
        return ""
    return (
        f'Its keys begin with "{_PREFIX}", as torch\'s DistributedDataParallel saves them: remove '
        "that first, by torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "
        f'"{_PREFIX}")'
    )
