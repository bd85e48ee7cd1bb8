"""What becomes of every number of a model's run: the labels of all tensors, and who reads them.

The model runs once, as for ``inspect``; beside every tensor stand the labels of its numbers. What moves
numbers moves their labels. What sums or scales them makes new ones. A matrix that reads them is a ``Use``;
anything else is a ``Read``, and whoever wants to change what is read must stop there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from normkit.inspect.batch import prepare
from normkit.inspect.inspection import Inspection
from normkit.inspect.operations import FUNCTIONAL_NORMS, kind_of, name_of, norm_arguments
from normkit.inspect.trace import tensors_of, watched
from normkit.inspect.untouched import untouched
from normkit.surgery.labels import UNKNOWN, ZERO, Labels, Source, places
from normkit.surgery.weighted import Meeting, meeting

__all__ = ["Attention", "Flow", "NormUse", "Read", "Use", "WeightView", "follow"]


@dataclass(frozen=True)
class WeightView:
    """A parameter or buffer, or a view of one: ``index`` says which of its numbers stand where."""

    name: str
    index: Tensor | None = field(default=None, compare=False)  # None: all of it, as it is
    is_buffer: bool = False


@dataclass(frozen=True)
class Use:
    """A matrix at work. ``source`` is what it writes; ``labels`` are those of what it reads, its axis last."""

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


Axes = tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """A norm that is to be followed: ``axes`` are those of its gain. Without them, its output is no one's."""

    key: str
    path: str
    axes: Axes | None


@torch.no_grad()
def follow(inspection: Inspection, batch: Any, targets: dict[Any, Target]) -> Flow:
    """Run the model once more. ``targets``: a module that is a norm, or the name of the parameter that a
    function is given -> what to call it."""
    model = inspection.model
    args, kwargs = prepare(model, batch)
    follower = _Follower(model, targets)
    with untouched(model), watched(follower.module_call), follower:
        for tensor in tensors_of((args, kwargs)):
            follower.seen[tensor] = True
        result = model(*args, **kwargs)
    for tensor in tensors_of(result):
        follower.read_labels("output", tensor)
    return follower.flow


class _Follower(TorchFunctionMode):
    def __init__(self, model: nn.Module, targets: dict[Any, Target]) -> None:
        super().__init__()
        self.flow = Flow(Labels())
        self.labels = self.flow.labels
        self.known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> labels
        self.weights: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> WeightView
        self.seen: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.targets = targets
        self.paths = {module: name for name, module in model.named_modules()}
        self.stack: list[tuple[str, list[Tensor]]] = []
        self.paused = 0
        self.thread = threading.get_ident()
        for name, tensor in model.named_parameters():
            self.weights[tensor] = WeightView(name)
        for name, tensor in model.named_buffers():
            self.weights.setdefault(tensor, WeightView(name, is_buffer=True))
        self.sources: dict[str, Source] = {}  # of parameters that are numbers of the stream

    # modules

    def module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self.thread or module not in self.paths or self.paused:
                return original(module, *args, **kwargs)
            given = list(tensors_of((args, kwargs)))
            self.stack.append((self.paths[module], given))
            target = self.targets.get(module)
            try:
                if target is None:
                    result = original(module, *args, **kwargs)
                    for tensor in tensors_of(result):
                        self._look_at(tensor)  # made where nobody could see it?
                    return result
                with self._pause():
                    result = original(module, *args, **kwargs)
            finally:
                self.stack.pop()
            with torch._C.DisableTorchFunction():
                self._norm(target, given, result)
            return result

        return call

    @contextmanager
    def _pause(self) -> Iterator[None]:
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    def _norm(self, target: Target, given: list[Tensor], result: Tensor) -> None:
        for other in given[1:]:
            self.read_labels("the gate of a norm", other)
        self.seen[result] = True
        source = None
        if target.axes is not None:
            sizes = tuple(result.shape[a] for a in target.axes)
            source = self.labels.new("norm", target.key, _product_of(sizes))
            labels = places(source.start, sizes, target.axes, tuple(result.shape))
            if len(given) > 1 and any(t.is_floating_point() and t.shape == result.shape for t in given[1:]):
                labels = self.labels.scaled(labels, None, uniform=False)
            self.known[result] = labels
        read = self.labels_of(given[0])
        read = torch.full((1,), UNKNOWN).expand(given[0].shape) if read is None else read
        self.flow.norms.append(NormUse(target.key, target.path, read, source, tuple(given[0].shape)))

    # labels

    def labels_of(self, tensor: Any) -> Tensor | None:
        """Of a tensor that is followed; a parameter's own where it is read as numbers."""
        if not isinstance(tensor, Tensor):
            return None
        if tensor in self.known:
            return self.known[tensor]
        view = self.weights.get(tensor)
        if view is None or not tensor.is_floating_point():
            self._look_at(tensor)
            return None
        if view.name not in self.sources:
            count = tensor.numel() if view.index is None else int(view.index.max()) + 1
            self.sources[view.name] = self.labels.new("parameter", view.name, max(count, 1))
        start = self.sources[view.name].start
        if view.index is not None:
            return view.index + start
        return torch.arange(start, start + tensor.numel()).reshape(tensor.shape)

    def is_followed(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and (tensor in self.known or tensor in self.weights)

    def read_labels(self, what: str, *tensors: Any) -> None:
        """These are read, and not followed any further."""
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                continue
            self._look_at(tensor)
            if tensor in self.known:
                sources = tuple(self.labels.sources_of(self.known[tensor]))
                if sources:
                    self.flow.reads.append(Read(what, self._here, sources))
            elif tensor in self.weights:
                self.flow.params.setdefault(self.weights[tensor].name, set()).add(what)

    @property
    def _here(self) -> str:
        return self.stack[-1][0] if self.stack else ""

    def _look_at(self, tensor: Tensor) -> None:
        """A tensor that no function was seen to make: whatever its module was given may be in it."""
        if tensor in self.seen or tensor in self.weights or not tensor.is_floating_point():
            return
        self.seen[tensor] = True
        if tensor._base is not None and (tensor._base in self.seen or tensor._base in self.weights):
            self.read_labels("a view that nobody saw", tensor._base)
            return
        for given in self.stack[-1][1] if self.stack else []:
            if given in self.known:
                self.read_labels("code that torch cannot show", given)

    # functions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused or threading.get_ident() != self.thread:
            return func(*args, **kwargs)
        name = name_of(func)
        if name == "multi_head_attention_forward":
            return self._open(func, args, kwargs)
        before = [t for t in tensors_of((args, kwargs)) if t.is_floating_point()]
        target = self._functional(func, name, args, kwargs)
        result = func(*args, **kwargs)
        made = [t for t in tensors_of(result, 2) if t.is_floating_point()]
        is_written = name in ("__setitem__", "copy_") or (name.endswith("_") and not name.endswith("__"))
        if is_written and args and isinstance(args[0], Tensor) and args[0].is_floating_point():
            made = made or [args[0]]
        if not made:
            if result is None or isinstance(result, (bool, int, float)):
                return result  # a shape, a dtype
            if any(t.ndim for t in tensors_of(result, 2)):
                self.read_labels(name, *before)  # an argmax, a comparison
            return result
        fresh = [t for t in made if not any(t is b for b in before)]
        self._note(func, name, args, kwargs, before, made, fresh, target)
        for tensor in made:
            self.seen[tensor] = True
        return result

    def _open(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Attention that is written in Python, with its own functions seen."""
        functional = torch.nn.functional
        before = functional.has_torch_function
        functional.has_torch_function = lambda *_: False
        try:
            with self:
                return func(*args, **kwargs)
        finally:
            functional.has_torch_function = before

    def _functional(self, func: Any, name: str, args: Any, kwargs: Any) -> Target | None:
        if name not in FUNCTIONAL_NORMS:
            return None
        given = dict(zip(norm_arguments(func), args, strict=False)) | kwargs
        weight = given.get("weight")
        if not isinstance(weight, Tensor) or weight not in self.weights:
            return None
        return self.targets.get(self.weights[weight].name)

    def _note(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        before: list[Tensor],
        made: list[Tensor],
        fresh: list[Tensor],
        target: Target | None,
    ) -> None:
        kind = kind_of(name)
        if target is not None:
            self._norm(target, [before[0]], made[0])
            return
        if not fresh and kind in ("view", "cast", "dropout"):
            return  # it is what it was
        if all(t.is_meta for t in made) and any(not t.is_meta for t in before):
            return
        if len(made) == 1 and made[0].numel() == 0:
            return
        is_in_place = not fresh
        if is_in_place and made[0]._base is not None and self.is_followed(made[0]._base):
            self.read_labels("a write into a part of it", made[0]._base, *before)
            self.known.pop(made[0], None)
            return
        try:
            done = self._follow(func, name, kind, args, kwargs, before, made)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError):
            done = False
        if not done:
            self.read_labels(name, *before)
            for tensor in made:
                self.known.pop(tensor, None)

    def _follow(
        self,
        func: Any,
        name: str,
        kind: str,
        args: Any,
        kwargs: Any,
        before: list[Tensor],
        made: list[Tensor],
    ) -> bool:
        """Labels for what was made; False if nobody can tell."""
        out = made[0]
        if name in (
            "zeros",
            "new_zeros",
            "zeros_like",
            "empty",
            "new_empty",
            "empty_like",
            "new_full",
            "full",
        ):
            if name.endswith("full") and not _is_zero(args, kwargs):
                return True
            self.known[out] = torch.zeros(1, dtype=torch.long).expand(out.shape)
            return True
        way = getattr(self, f"_of_{kind}", None)
        if way is None:
            return False
        if not any(self.is_followed(t) for t in before) and kind != "embedding":
            return True  # nothing that anyone follows
        found: bool = way(func, name, args, kwargs, before, made)
        return found

    def _of_view(
        self, func: Any, name: str, args: Any, kwargs: Any, before: list[Tensor], made: list[Tensor]
    ) -> bool:
        x = args[0]
        view = self.weights.get(x)
        if view is not None:
            index = view.index
            if index is None:
                index = torch.arange(x.numel()).reshape(x.shape)
            for tensor, part in zip(made, _parts(func(index, *args[1:], **kwargs)), strict=True):
                self.weights[tensor] = WeightView(view.name, part, view.is_buffer)
            return True
        if x not in self.known:
            return False
        for tensor, part in zip(made, _parts(func(self.known[x], *args[1:], **kwargs)), strict=True):
            self.known[tensor] = part
        return True

    def _of_cast(
        self, func: Any, name: str, args: Any, kwargs: Any, before: list[Tensor], made: list[Tensor]
    ) -> bool:
        x = args[0]
        if name == "ones_like" or x.shape != made[0].shape:
            return name == "ones_like"
        if x in self.weights:
            self.weights[made[0]] = self.weights[x]
        elif x in self.known:
            self.known[made[0]] = self.known[x]
        return True

    def _of_dropout(
        self, func: Any, name: str, args: Any, kwargs: Any, before: list[Tensor], made: list[Tensor]
    ) -> bool:
        return self._of_cast(func, name, args, kwargs, before, made)

    def _all_labels(self, tensor: Tensor) -> Tensor:
        found = self.labels_of(tensor)
        if found is None:
            return torch.full((1,), UNKNOWN).expand(tensor.shape) if tensor.ndim else torch.tensor(UNKNOWN)
        return found

    def _of_join(
        self, func: Any, name: str, args: Any, kwargs: Any, before: list[Tensor], made: list[Tensor]
    ) -> bool:
        if name in ("cat", "concat", "concatenate", "stack", "vstack", "hstack"):
            parts = args[0] if args else kwargs.get("tensors")
            rest = {k: v for k, v in kwargs.items() if k != "tensors"}
            self.known[made[0]] = func([self._all_labels(t) for t in parts], *args[1:], **rest)
            return True
        if name in ("pad", "constant_pad_nd"):
            return self._pad(func, args, kwargs, made)
        if name == "where" and len(args) == 3:
            return self._where(args, made)
        if name in ("__setitem__", "copy_", "index_copy_") and args[0] not in self.weights:
            labels = self._all_labels(args[0]).clone().contiguous()
            *keys, source = args[1:]
            if isinstance(source, Tensor):
                source = self._all_labels(source)
            else:
                source = torch.tensor(ZERO if source == 0 else UNKNOWN)
            func(labels, *keys, source)
            self.known[made[0]] = labels
            return True
        if name in ("index_add_", "index_add") and args[0] not in self.weights:
            return self._index_add(args, kwargs, made)
        return False

    def _pad(self, func: Any, args: Any, kwargs: Any, made: list[Tensor]) -> bool:
        x, pad, *rest = [*args, *kwargs.values()] if "pad" in kwargs else args
        mode = kwargs.get("mode", rest[0] if rest and isinstance(rest[0], str) else "constant")
        value = kwargs.get("value") or next((v for v in rest if not isinstance(v, str) and v), 0)
        labels = self.labels_of(x)
        if labels is None:
            return False
        if mode != "constant":
            found = torch.nn.functional.pad(labels.double(), pad, mode).long()
            self.known[made[0]] = found
            return True
        found = torch.nn.functional.pad(labels.contiguous(), pad, value=UNKNOWN if value else ZERO)
        # With other sizes there may be other zeros: a shift cannot be taken through.
        self.known[made[0]] = self.labels.scaled(found, None)
        return True

    def _where(self, args: Any, made: list[Tensor]) -> bool:
        condition, a, b = args
        labels = [
            self._all_labels(t) if isinstance(t, Tensor) else torch.tensor(ZERO if t == 0 else UNKNOWN)
            for t in (a, b)
        ]
        found = torch.where(condition, *labels)
        self.known[made[0]] = self.labels.scaled(found, None, uniform=_is_uniform(condition, found))
        return True

    def _index_add(self, args: Any, kwargs: Any, made: list[Tensor]) -> bool:
        target, axis, index, source = args[:4] if len(args) > 3 else (*args, kwargs["source"])
        if kwargs.get("alpha", 1) != 1 or len(torch.unique(index)) != len(index):
            return False
        labels = self._all_labels(target).clone().contiguous()
        here = labels.index_select(axis, index)
        labels.index_copy_(axis, index, self.labels.sum(here, self._all_labels(source)).contiguous())
        self.known[made[0]] = labels
        return True

    def _of_add(
        self, func: Any, name: str, args: Any, kwargs: Any, before: list[Tensor], made: list[Tensor]
    ) -> bool:
        a, b = [*args, *kwargs.values()][:2]
        terms = [a, b] if name not in ("__rsub__", "rsub") else [b, a]
        factor = float(kwargs.get("alpha", 1))
        if "sub" in name:
            factor = -factor
        labels = []
        for term, times in zip(terms, (1.0, factor), strict=True):
            if isinstance(term, Tensor):
                found = self._all_labels(term)
                found = self.labels.scaled(found, times) if times != 1 else found
            else:
                found = torch.tensor(ZERO if term == 0 else UNKNOWN)
            labels.append(found)
        self.known[made[0]] = self.labels.sum(*labels)
        return True

    def _of_mul(
        self, func: Any, name: str, args: Any, kwargs: Any, before: list[Tensor], made: list[Tensor]
    ) -> bool:
        if name in ("addcmul", "addcmul_"):
            return False
        if name == "neg":
            self.known[made[0]] = self.labels.scaled(self._all_labels(args[0]), -1.0)
            return True
        a, b = [*args, *kwargs.values()][:2]
        divides = "div" in name
        if not isinstance(a, Tensor) or (a in self.weights and b not in self.weights and not divides):
            a, b = b, a
            if divides:
                return False
        if not isinstance(b, Tensor):
            factor = 1 / float(b) if divides and b != 0 else float(b)
            self.known[made[0]] = self.labels.scaled(self._all_labels(a), factor)
            return True
        if b in self.known and a in self.known:
            return False  # both are followed: neither can be changed alone
        if a not in self.known:
            a, b = b, a
            if divides or a not in self.known:
                return a not in self.known
        labels = self.known[a].expand(made[0].shape)
        if b in self.weights:
            self.flow.params.setdefault(self.weights[b].name, set()).add("mul")
        self.known[made[0]] = self.labels.scaled(labels, None, uniform=_is_uniform(b, labels))
        return True

    def _of_pool(
        self, func: Any, name: str, args: Any, kwargs: Any, before: list[Tensor], made: list[Tensor]
    ) -> bool:
        """A mean over numbers with one label, as over all tokens, keeps it."""
        if args[0] not in self.known:
            return False
        labels = self.known[args[0]]
        if name == "mean":
            low, high = (
                getattr(labels, f)(*args[1:], **{k: v for k, v in kwargs.items() if k != "dtype"})
                for f in ("amin", "amax")
            )
        elif name.startswith("adaptive_avg_pool"):
            pooled = getattr(torch.nn.functional, name.replace("avg", "max"))
            numbers = labels.double()
            low, high = (-pooled(-numbers, *args[1:]).long(), pooled(numbers, *args[1:]).long())
        else:
            return False
        if low.shape != made[0].shape or not torch.equal(low, high):
            return False
        self.known[made[0]] = low
        return True

    def _of_embedding(
        self, func: Any, name: str, args: Any, kwargs: Any, before: list[Tensor], made: list[Tensor]
    ) -> bool:
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        if name != "embedding" or weight not in self.weights or weight.ndim != 2:
            return False
        found = Meeting(made[0], weight, None, -1, 0, (1,), (-1,))
        self._use(name, found, None, made[0])
        return True

    def _of_linear(
        self, func: Any, name: str, args: Any, kwargs: Any, before: list[Tensor], made: list[Tensor]
    ) -> bool:
        found = meeting(name, args, kwargs, lambda t: isinstance(t, Tensor) and t in self.weights)
        if found is None:
            self._product_of_queries(name, args, made)
            return False
        labels = self.labels_of(found.x)
        if labels is None:
            labels = torch.full((1,), UNKNOWN).expand(found.x.shape)
        self._use(name, found, labels, made[0])
        return True

    _of_conv = _of_linear

    def _product_of_queries(self, name: str, args: Any, made: list[Tensor]) -> None:
        if name in ("matmul", "__matmul__", "bmm") and all(t in self.known for t in args[:2]):
            query, key = (self.known[t] for t in args[:2])
            if query.ndim == key.ndim >= 3:
                self.flow.attentions.append(Attention(self._here, query, key.transpose(-1, -2)))

    def _of_attention(
        self, func: Any, name: str, args: Any, kwargs: Any, before: list[Tensor], made: list[Tensor]
    ) -> bool:
        names = ("query", "key", "value")
        given = dict(zip(names, args, strict=False)) | kwargs
        if all(given.get(n) in self.known for n in names[:2]):
            self.flow.attentions.append(
                Attention(self._here, self.known[given["query"]], self.known[given["key"]])
            )
        return False

    def _use(self, name: str, found: Meeting, labels: Tensor | None, out: Tensor) -> None:
        view = self.weights[found.weight]
        sizes = tuple(found.weight.shape[a] for a in found.out_axes)
        if found.transposed:
            sizes = (sizes[0] * found.groups,)
        source = self.labels.new("weighted", str(len(self.flow.uses)), _product_of(sizes))
        bias = self.weights.get(found.bias) if isinstance(found.bias, Tensor) else None
        if isinstance(found.bias, Tensor) and bias is None:
            self.read_labels("bias", found.bias)
        ndim = found.weight.ndim
        self.flow.uses.append(
            Use(
                len(self.flow.uses),
                name,
                self._here,
                view,
                tuple(found.weight.shape),
                bias,
                found.bias is not None,
                labels.movedim(found.x_axis, -1) if labels is not None else None,
                source,
                found.in_axis % ndim,
                tuple(a % ndim for a in found.out_axes),
                found.groups,
                found.pads,
                found.transposed,
            )
        )
        self.known[out] = places(source.start, sizes, found.new_axes, tuple(out.shape))


def _product_of(sizes: tuple[int, ...]) -> int:
    count = 1
    for n in sizes:
        count *= n
    return count


def _parts(value: Any) -> list[Tensor]:
    return list(tensors_of(value, 2))


def _is_zero(args: Any, kwargs: Any) -> bool:
    return kwargs.get("fill_value", args[-1] if args else None) == 0


def _is_uniform(other: Tensor, labels: Tensor) -> bool:
    """Does it multiply all channels alike? Those are the last axis, if labels differ there."""
    shape = (1,) * (labels.ndim - other.ndim) + tuple(other.shape)
    if labels.ndim and shape[-1] == 1 and not _is_constant(labels, -1):
        return True
    return all(size == 1 or _is_constant(labels, axis) for axis, size in enumerate(shape))


def _is_constant(labels: Tensor, axis: int) -> bool:
    if labels.shape[axis] <= 1 or labels.stride(axis) == 0:
        return True
    return bool((labels == labels.narrow(axis, 0, 1)).all())
