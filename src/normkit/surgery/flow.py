"""What becomes of every number of a model's run: the labels of all tensors, and who reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from normkit.surgery.labels import Labels, Source

__all__ = ["Attention", "Flow", "NormUse", "Read", "Use", "WeightView"]


@dataclass(frozen=True)
class WeightView:
    """A parameter or buffer, or a view of one: ``index`` says which of its numbers stand where."""

    name: str
    index: Tensor | None = field(default=None, compare=False)  # None: all of it, as it is
    is_buffer: bool = False
    size: int = 0  # of a view: the count of all numbers


@dataclass(frozen=True)
class Use:
    """A matrix at work. ``source`` is what it writes, ``labels`` those of what it reads, their axis last."""

    number: int
    name: str  # of the function
    module: str  # the path of the caller
    weight: WeightView
    weight_shape: tuple[int, ...]
    bias: WeightView | None
    has_bias: bool
    labels: Tensor | None  # None: of an embedding
    source: Source
    in_axis: int
    out_axes: tuple[int, ...]
    groups: int = 1
    pads: bool = False
    transposed: bool = False


@dataclass(frozen=True)
class NormUse:
    """A norm at work: the key of its parameters, what it reads, what it writes."""

    key: str
    path: str
    labels: Tensor
    source: Source | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Read:
    """Something else reads numbers of these sources."""

    what: str
    module: str
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Attention:
    """A product of queries and keys: (batch, heads, length, size) each."""

    module: str
    query: Tensor
    key: Tensor


@dataclass
class Flow:
    """The labels of a run, and everything that read them."""

    labels: Labels
    uses: list[Use] = field(default_factory=list)
    norms: list[NormUse] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    attentions: list[Attention] = field(default_factory=list)
    params: dict[str, set[str]] = field(default_factory=dict)  # name -> what read it, other than a use
