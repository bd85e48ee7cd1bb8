"""How a model was last called. It is taken down by a hook that is there only while somebody listens.

Importing this imports torch's compiler, so it is imported late.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normkit.errors import user_error
from normkit.inspect.batch import unwrap

__all__ = ["Called", "LastCall"]


@dataclass
class Called:
    """A call of a model, or of one of its children: ``path`` is "" or the child's name."""

    path: str
    module: nn.Module  # as it was called: it may be compiled, or wrapped
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    forward: Any
    has_grad: bool
    autocast: tuple[str, torch.dtype, bool]

    @property
    def model(self) -> nn.Module:
        return unwrap(self.module)

    def context(self) -> torch.autocast:
        """Autocast as it was; without its cache: casts without gradients may stay in it (pytorch#112583)."""
        device, dtype, is_on = self.autocast
        return torch.autocast(device, dtype=dtype, enabled=is_on, cache_enabled=False)

    def batch(self) -> Any:
        """What it was called with, as ``nk.doctor`` takes it."""
        if not self.kwargs:
            is_one = len(self.args) == 1 and isinstance(self.args[0], Tensor)
            return self.args[0] if is_one else self.args
        if not self.args:
            return self.kwargs
        signature = inspect.signature(self.model.forward)
        given = signature.bind(*self.args, **self.kwargs).arguments
        for name, value in list(given.items()):
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                given |= given.pop(name)
            elif kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY) and value:
                raise user_error(
                    f"{type(self.model).__name__} is called with *args and with keywords.",
                    expected="arguments that can all be given by name, or all by position",
                )
        return given


class LastCall:
    """The last call of a model while it listens. One without gradients does not replace one with: validation.

    A LightningModule need not be called itself: its training_step may call ``self.net``. Then that counts.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._calls: dict[str, Called] = {}
        self._hooks: list[RemovableHandle] = []
        self._listened: dict[nn.Module, str] = {}

    def start(self) -> None:
        if self._hooks:
            return
        self._listened = {self.model: ""}
        if hasattr(self.model, "training_step") and not _is_entered(self.model):
            self._listened |= {module: name for name, module in self.model.named_children()}
        for module in self._listened:
            _LISTENERS.setdefault(module, WeakSet()).add(self)
            hook = _hear if module is self.model and not _is_entered(module) else _hear_unless_traced
            self._hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def take(self) -> Called | None:
        """The call; and listen no more."""
        for hook in self._hooks:
            hook.remove()
        for module in self._listened:
            _LISTENERS[module].discard(self)
        calls = {path: c for path, c in self._calls.items() if c.forward == c.module.forward}
        self._hooks, self._listened, self._calls = [], {}, {}
        if "" in calls:
            return calls[""]
        return max(calls.values(), key=lambda c: sum(p.numel() for p in c.module.parameters()), default=None)

    def hear(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        path = self._listened.get(module)
        has_grad = torch.is_grad_enabled()
        if path is None or (path in self._calls and self._calls[path].has_grad and not has_grad):
            return
        device = next((p.device.type for p in module.parameters()), "cpu")
        device = device if torch.amp.is_autocast_available(device) else "cpu"
        autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        # Lightning calls training_step through a forward that it puts there for the time being.
        self._calls[path] = Called(path, module, args, kwargs, module.forward, has_grad, autocast)


# The hooks are functions of this module, and find the listeners here: a model with them in it can be pickled
# and copied, and the copy's calls are not heard.
_LISTENERS: WeakKeyDictionary[nn.Module, WeakSet[LastCall]] = WeakKeyDictionary()


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch's
def _hear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for listener in _LISTENERS.get(module, ()):
        listener.hear(module, args, kwargs)


def _hear_unless_traced(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """For what torch.compile may see from inside: there it is nothing, and breaks no graph."""
    if not torch.compiler.is_compiling():
        _hear(module, args, kwargs)


def _is_entered(module: nn.Module) -> bool:
    """Does torch.compile trace its own call, hooks too? That of torch's classes; of Lightning's compiled."""
    return (
        type(module).__module__.startswith("torch.nn.") or getattr(module, "_compiler_ctx", None) is not None
    )
