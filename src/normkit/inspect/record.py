"""What a trace holds: the calls of functions, of norms and of modules, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from normkit.inspect.spec import NormSpec

__all__ = ["ModuleCall", "Node", "NormCall", "NotNorm", "Trace"]


@dataclass
class Node:
    """A call of a function, or of a norm, that gave a tensor.

    kind       what it does, in the words of ``operations``; or "input", "parameter", "constant", "opaque"
    inputs     the nodes that it reads
    live       it follows from the batch
    weights    the names of the parameters that it reads, as they are or made into something else
    module     the path of the module that called it
    call       the index of that module's call
    """

    index: int
    kind: str
    name: str
    inputs: tuple[int, ...]
    live: bool
    weights: tuple[str, ...]
    module: str
    call: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    line: str = ""
    norm: NormCall | None = None
    roles: tuple[int, ...] = ()  # of an attention: the nodes of query, key and value


@dataclass
class NormCall:
    """A norm at work: the module (or a function with its arguments), and what it computes."""

    module: nn.Module
    path: str  # of the module; of a function, "<path of the caller>:<its name>"
    spec: NormSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    caller: str
    is_function: bool = False


@dataclass
class ModuleCall:
    """A module that was called: ``nodes`` are those of its time."""

    index: int
    path: str
    module: nn.Module
    parent: int
    inputs: tuple[int, ...]
    start: int
    outputs: tuple[int, ...] = ()
    stop: int = 0


@dataclass
class NotNorm:
    """A module whose class is named like a norm, and that computes none: why, and how it was called."""

    module: nn.Module
    reason: str
    shape: tuple[int, ...]
    line: str


@dataclass
class Trace:
    """The nodes of a run in order, and the calls of modules."""

    nodes: list[Node] = field(default_factory=list)
    calls: list[ModuleCall] = field(default_factory=list)
    outputs: tuple[int, ...] = ()
    result: Any = None
    assumed: list[str] = field(default_factory=list)  # what the meta device could not say
    not_norms: dict[str, NotNorm] = field(default_factory=dict)  # by path

    @property
    def norms(self) -> list[Node]:
        return [node for node in self.nodes if node.norm is not None]
