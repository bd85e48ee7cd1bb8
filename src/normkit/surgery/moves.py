"""What torch's functions do to labels: one function for each kind of operation.

Each puts the labels of what was made into the books and returns True, or returns False if nobody can tell.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normkit.inspect.trace import tensors_of
from normkit.surgery.books import Books, Operation
from normkit.surgery.flow import Attention, Read, WeightView
from normkit.surgery.labels import UNKNOWN, ZERO, Source, values
from normkit.surgery.weighted import Meeting, meeting

__all__ = ["follow_operation"]

ZEROS = {
    "zeros",
    "new_zeros",
    "zeros_like",
    "empty",
    "new_empty",
    "empty_like",
}  # or written before it is read
FACTORIES = ("ones", "full", "arange", "rand", "randn", "eye", "linspace", "tensor", "as_tensor")
CATS = ("cat", "concat", "concatenate", "stack", "vstack", "hstack")


def follow_operation(books: Books, op: Operation) -> bool:
    """Labels for what was made; False if nobody can tell."""
    if op.name in ZEROS:
        books.known[op.out] = torch.zeros((1,) * op.out.ndim, dtype=torch.long).expand(op.out.shape)
        return True
    if op.name.removeprefix("new_").removesuffix("_like") in FACTORIES:
        return True  # it took a shape, or a dtype
    if op.kind not in _WAYS:
        return False
    if op.kind != "embedding" and not any(books.is_followed(t) for t in op.read):
        return True  # nothing that anyone follows
    return _WAYS[op.kind](books, op)


def _view(books: Books, op: Operation) -> bool:
    x, *rest = op.args
    view = books.weights.get(x)
    if view is None and x not in books.known:
        return False
    if view is None:
        for tensor, part in zip(op.made, _parts(op.func(books.known[x], *rest, **op.kwargs)), strict=True):
            books.known[tensor] = part
        return True
    index = torch.arange(x.numel()).reshape(x.shape) if view.index is None else view.index
    size = view.size or x.numel()
    for tensor, part in zip(op.made, _parts(op.func(index, *rest, **op.kwargs)), strict=True):
        books.weights[tensor] = WeightView(view.name, part, view.is_buffer, size)
    return True


def _same(books: Books, op: Operation) -> bool:
    """Casts, copies, dropout."""
    x = op.args[0]
    if x.shape != op.out.shape:
        return False
    if x in books.weights:
        books.weights[op.out] = books.weights[x]
    elif x in books.known:
        books.known[op.out] = books.known[x]
    return True


def _join(books: Books, op: Operation) -> bool:
    args, kwargs = op.args, op.kwargs
    if op.name in CATS:
        parts = args[0] if args else kwargs["tensors"]
        rest = {k: v for k, v in kwargs.items() if k != "tensors"}
        books.known[op.out] = op.func([books.all_labels(t) for t in parts], *args[1:], **rest)
        return True
    if op.name in ("pad", "constant_pad_nd"):
        return _pad(books, op)
    if op.name == "where" and len(args) == 3:
        one, two = (books.all_labels(value) for value in args[1:])
        _choose(books, one, two)
        found = torch.where(args[0], one, two)
        # With another condition there may be other zeros: a shift cannot be taken through.
        books.known[op.out] = books.labels.scaled(found, None, uniform=_is_uniform(args[0], found))
        return True
    if args and args[0] in books.weights:
        return False
    if op.name in ("__setitem__", "copy_", "index_copy_"):
        labels, new = books.all_labels(args[0]).clone().contiguous(), books.all_labels(args[-1])
        if any(True for _ in tensors_of(args[1:-1])):
            _choose(books, labels, new)
        op.func(labels, *args[1:-1], new)
        books.known[op.out] = labels
        return True
    return _index_add(books, op) if op.name in ("index_add_", "index_add") else False


def _choose(books: Books, one: Tensor, two: Tensor) -> None:
    """Which of two stands where depends on the data: in another batch it may be the other. What is to be in
    one place alone, a norm's output, is read by that; so is everything beside what nobody follows."""
    for this, other in ((one, two), (two, one)):
        beside = values(other)
        found = [
            source
            for source in books.labels.sources_of(this)
            if UNKNOWN in beside or (any(v != ZERO for v in beside) and _is_of_norm(books, source))
        ]
        if found:
            books.flow.reads.append(Read("a choice that depends on the data", books.here, tuple(found)))


def _is_of_norm(books: Books, source: Source) -> bool:
    while source.kind == "scaled" and source.parts is not None:
        inner = books.labels.sources_of(source.parts)
        if len(inner) != 1:
            return any(_is_of_norm(books, s) for s in inner)
        source = inner[0]
    return source.kind == "norm"


def _pad(books: Books, op: Operation) -> bool:
    x, pad, *rest = [*op.args, *op.kwargs.values()] if "pad" in op.kwargs else op.args
    mode = op.kwargs.get("mode", next((v for v in rest if isinstance(v, str)), "constant"))
    value = op.kwargs.get("value") or next((v for v in rest if not isinstance(v, str) and v), 0)
    labels = books.labels_of(x)
    if labels is None:
        return False
    if mode != "constant":
        books.known[op.out] = torch.nn.functional.pad(labels.double(), pad, mode).long()
        return True
    found = torch.nn.functional.pad(labels.contiguous(), pad, value=UNKNOWN if value else ZERO)
    # With other sizes there may be other zeros: a shift cannot be taken through.
    books.known[op.out] = books.labels.scaled(found, None)
    return True


def _index_add(books: Books, op: Operation) -> bool:
    """As experts' outputs are put together."""
    target, axis, index, source = op.args[:4] if len(op.args) > 3 else (*op.args, op.kwargs["source"])
    if op.kwargs.get("alpha", 1) != 1 or len(torch.unique(index)) != len(index):
        return False
    labels = books.all_labels(target).clone().contiguous()
    here = labels.index_select(axis, index)
    labels.index_copy_(axis, index, books.labels.sum(here, books.all_labels(source)).contiguous())
    books.known[op.out] = labels
    return True


def _add(books: Books, op: Operation) -> bool:
    a, b = [*op.args, *op.kwargs.values()][:2]
    first, second = (b, a) if op.name in ("__rsub__", "rsub") else (a, b)
    factor = float(op.kwargs.get("alpha", 1)) * (-1 if "sub" in op.name else 1)
    labels = books.all_labels(second)
    labels = books.labels.scaled(labels, factor) if factor != 1 else labels
    books.known[op.out] = books.labels.sum(books.all_labels(first), labels)
    return True


def _mul(books: Books, op: Operation) -> bool:
    if op.name in ("addcmul", "addcmul_"):
        return _addcmul(books, op)
    if op.name == "neg":
        books.known[op.out] = books.labels.scaled(books.all_labels(op.args[0]), -1.0)
        return True
    a, b = [*op.args, *op.kwargs.values()][:2]
    divides = "div" in op.name
    if a not in books.known if isinstance(a, Tensor) else True:  # what is followed comes first
        if divides or not isinstance(b, Tensor):
            return False
        a, b = b, a
    if a not in books.known or (isinstance(b, Tensor) and b in books.known):
        return False  # both are followed, and neither can be changed alone; or none
    if not isinstance(b, Tensor):
        factor = (1 / float(b) if b else None) if divides else float(b)
        books.known[op.out] = books.labels.scaled(books.known[a], factor)
        return True
    if b in books.weights:
        books.flow.params.setdefault(books.weights[b].name, set()).add(op.name)
    labels = books.known[a].expand(op.out.shape)
    books.known[op.out] = books.labels.scaled(labels, None, uniform=_is_uniform(b, labels))
    return True


def _addcmul(books: Books, op: Operation) -> bool:
    """x + a · b, as in a rotation."""
    x, a, b = op.args[:3]
    if a not in books.known:
        a, b = b, a
    if a not in books.known or b in books.known:
        return False
    labels = books.known[a].expand(op.out.shape)
    product = books.labels.scaled(labels, None, uniform=_is_uniform(b, labels))
    books.known[op.out] = books.labels.sum(books.all_labels(x), product)
    return True


def _pool(books: Books, op: Operation) -> bool:
    """A mean over numbers with one label, as over all tokens, keeps it."""
    if op.args[0] not in books.known:
        return False
    labels, rest = books.known[op.args[0]], op.args[1:]
    if op.name == "mean":
        more = {k: v for k, v in op.kwargs.items() if k != "dtype"}
        low, high = labels.amin(*rest, **more), labels.amax(*rest, **more)
    elif op.name.startswith("adaptive_avg_pool"):
        pooled = getattr(torch.nn.functional, op.name.replace("avg", "max"))
        low, high = (sign * pooled(sign * labels.double(), *rest).long() for sign in (-1, 1))
    else:
        return False
    if low.shape != op.out.shape or not torch.equal(low, high):
        return False
    books.known[op.out] = low
    return True


def _embedding(books: Books, op: Operation) -> bool:
    weight: Any = op.args[1] if len(op.args) > 1 else op.kwargs.get("weight")
    if op.name != "embedding" or weight not in books.weights or weight.ndim != 2:
        return False
    books.note_use(op.name, Meeting(op.out, weight, None, -1, 0, (1,), (-1,)), None, op.out)
    return True


def _matrix(books: Books, op: Operation) -> bool:
    met = meeting(op.name, op.args, op.kwargs, lambda t: isinstance(t, Tensor) and t in books.weights)
    if met is not None:
        books.note_use(op.name, met, books.all_labels(met.x), op.out)
        return True
    if op.name in ("matmul", "__matmul__", "bmm") and all(t in books.known for t in op.args[:2]):
        query, key = (books.known[t] for t in op.args[:2])
        if query.ndim == key.ndim >= 3:
            books.flow.attentions.append(Attention(books.here, query, key.transpose(-1, -2)))
    return False


def _attention(books: Books, op: Operation) -> bool:
    given = dict(zip(("query", "key"), op.args, strict=False)) | op.kwargs
    if all(given.get(n) in books.known for n in ("query", "key")):
        query, key = (books.known[given[n]] for n in ("query", "key"))
        books.flow.attentions.append(Attention(books.here, query, key))
    return False


_WAYS = {
    "view": _view,
    "cast": _same,
    "dropout": _same,
    "join": _join,
    "add": _add,
    "mul": _mul,
    "pool": _pool,
    "embedding": _embedding,
    "linear": _matrix,
    "conv": _matrix,
    "attention": _attention,
}


def _parts(value: Any) -> list[Tensor]:
    return list(tensors_of(value, 2))


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
