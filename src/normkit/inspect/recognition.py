"""Which modules of a model are norms? Those that may be one are probed; modules of one kind share a probe."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn.modules.batchnorm import _NormBase

from normkit.inspect.spec import NormSpec, NotANormError, probe

__all__ = ["SpecCache"]

_NORMS = ("torch.nn.modules.normalization", "torch.nn.modules.batchnorm", "torch.nn.modules.instancenorm")


class SpecCache:
    """The specs of modules as they are called; modules of one kind share a probe."""

    def __init__(self) -> None:
        self.known: dict[Any, NormSpec | str | None] = {}

    def find(self, module: nn.Module, x: Tensor, others: Sequence[Tensor] = ()) -> NormSpec | str | None:
        """Of a module that was called with x: its spec; the reason why it has none, if its class is named
        like a norm; None if it is not."""
        if not _is_candidate(module, x):
            return None
        gated = any(t.shape == x.shape and t.is_floating_point() for t in others)
        small = _small_shape(module, x)
        key = (_settings(module), small, gated)
        if key not in self.known:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # waiting for others takes longer than these few numbers
            try:
                with temporarily_clear_interpreter_stack():  # a probe inside of vmap is no part of it
                    self.known[key] = _find(
                        module, (small, tuple(max(n, 2) for n in x.shape), tuple(x.shape)), gated
                    )
            finally:
                torch.set_num_threads(threads)
        return self.known[key]


def _find(module: nn.Module, shapes: Sequence[tuple[int, ...]], gated: bool) -> NormSpec | str | None:
    reason = ""
    for shape in dict.fromkeys(shapes):
        for with_gate in dict.fromkeys((gated, False)):
            try:
                return probe(module, shape, gated=with_gate)
            except NotANormError as error:
                reason = reason if reason and not reason.startswith("calling it") else str(error)
        if not reason.startswith("calling it"):
            break
    if module._modules and isinstance(module, _NormBase):  # with an activation of its own, as timm has it
        alone = copy.copy(module)
        alone._modules = {name: nn.Identity() for name in module._modules}
        try:
            return probe(alone, shapes[0])
        except NotANormError as error:
            reason = str(error)
    return reason if "norm" in type(module).__name__.lower() else None


def _is_candidate(module: nn.Module, x: Tensor) -> bool:
    """Cheap: may it be a norm? It is small, and has no matrices."""
    kind = type(module).__module__
    if kind.startswith("torch.nn.modules") and kind not in _NORMS:
        return False
    parts = sum(1 for _ in zip(range(5), module.modules(), strict=False))
    return parts < 5 and all(_is_vector(p.shape, x.shape) for p in module.parameters())


def _is_vector(shape: torch.Size, of: torch.Size) -> bool:
    return sum(n > 1 for n in shape) <= 1 or shape == of[len(of) - len(shape) :]


def _settings(module: nn.Module) -> tuple[Any, ...]:
    """What tells two modules of one class apart."""
    simple = (int, float, str, bool, tuple, torch.Size, type(None))
    own = [(k, repr(v) if isinstance(v, simple) else id(v)) for k, v in vars(module).items() if k[0] != "_"]
    shapes = [(n, tuple(p.shape)) for n, p in (*module.named_parameters(), *module.named_buffers())]
    return (type(module), tuple(own), tuple(shapes), tuple(type(child) for child in module.modules()))


def _small_shape(module: nn.Module, x: Tensor) -> tuple[int, ...]:
    """Like x, with few numbers on the axes that the module does not know of."""
    known = {n for t in (*module.parameters(), *module.buffers()) for n in t.shape}
    for value in vars(module).values():
        known.update(v for v in (value if isinstance(value, (tuple, list)) else [value]) if type(v) is int)
    return tuple(n if n in known and n > 1 else 3 + k % 2 for k, n in enumerate(x.shape))
