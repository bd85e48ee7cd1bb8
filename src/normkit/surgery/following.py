"""One run of a model with labels beside every tensor.

What moves numbers moves their labels. What sums or scales them makes new ones. A matrix that reads them is a
``Use``; anything else is a ``Read``, and whoever wants to change what is read must stop there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normkit.inspect.batch import prepare
from normkit.inspect.inspection import Inspection
from normkit.inspect.operations import FUNCTIONAL_NORMS, kind_of, name_of, norm_arguments
from normkit.inspect.trace import tensors_of, watched
from normkit.inspect.untouched import untouched
from normkit.surgery.books import Books, Operation, Target
from normkit.surgery.flow import Flow
from normkit.surgery.moves import follow_operation

__all__ = ["follow"]

# Numbers leave torch by these, and come back as something that nobody follows.
LEAVES = {"item", "tolist", "numpy", "__array__", "__float__", "__int__", "__bool__", "__index__", "equal"}
FAILURES = (RuntimeError, TypeError, ValueError, IndexError, KeyError, NotImplementedError, AssertionError)


@torch.no_grad()
def follow(inspection: Inspection, batch: Any, targets: dict[Any, Target]) -> Flow:
    """``targets``: a module that is a norm, or the name of the parameter that a function is given -> what to
    call it."""
    model = inspection.model
    args, kwargs = prepare(model, batch)
    follower = _Follower(model, targets)
    books = follower.books
    with untouched(model), watched(follower.module_call), follower:
        for tensor in tensors_of((args, kwargs)):
            books.seen[tensor] = True
        result = model(*args, **kwargs)
    for tensor in tensors_of(result):
        books.read("output", tensor)
    return books.flow


class _Follower(TorchFunctionMode):
    def __init__(self, model: nn.Module, targets: dict[Any, Target]) -> None:
        super().__init__()
        self.books = Books(model)
        self.targets = targets
        self.paths = {module: name for name, module in model.named_modules()}
        self.paused = 0
        self.thread = threading.get_ident()

    # modules

    def module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self.thread or module not in self.paths or self.paused:
                return original(module, *args, **kwargs)
            given = list(tensors_of((args, kwargs)))
            self.books.stack.append((self.paths[module], given))
            target = self.targets.get(module)
            try:
                if target is None:
                    result = original(module, *args, **kwargs)
                    for tensor in tensors_of(result):
                        self.books.look_at(tensor)  # made where nobody could see it?
                    return result
                with self._pause():
                    result = original(module, *args, **kwargs)
            finally:
                self.books.stack.pop()
            with torch._C.DisableTorchFunction():
                self.books.note_norm(target, given, result)
            return result

        return call

    @contextmanager
    def _pause(self) -> Iterator[None]:
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    # functions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused or threading.get_ident() != self.thread:
            return func(*args, **kwargs)
        name = name_of(func)
        if name == "multi_head_attention_forward":
            return self._open(func, args, kwargs)
        read = [t for t in tensors_of((args, kwargs)) if t.is_floating_point()]
        target = self._functional(func, name, args, kwargs)
        result = func(*args, **kwargs)
        tensors = list(tensors_of(result, 2))
        made = [t for t in tensors if t.is_floating_point()]
        is_written = name in ("__setitem__", "copy_") or (name.endswith("_") and not name.endswith("__"))
        if not made and is_written and args and isinstance(args[0], Tensor) and args[0].is_floating_point():
            made = [args[0]]
        if made:
            self._note(Operation(func, name, kind_of(name), args, kwargs, read, made), target)
            for tensor in made:
                self.books.seen[tensor] = True
        elif name in LEAVES or (tensors and not name.startswith("new_") and not name.endswith("_like")):
            self.books.read(name, *read)  # an argmax, a comparison
        return result

    def _open(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Attention that is written in Python, with its own functions seen."""
        functional: Any = torch.nn.functional
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
        if not isinstance(weight, Tensor) or weight not in self.books.weights:
            return None
        return self.targets.get(self.books.weights[weight].name)

    def _note(self, op: Operation, target: Target | None) -> None:
        books = self.books
        if target is not None:
            books.note_norm(target, [op.read[0]], op.out)
            return
        if op.in_place and op.kind in ("view", "cast", "dropout"):
            if op.name == "bernoulli_":
                books.known.pop(op.out, None)
            return  # it is what it was
        if len(op.made) == 1 and op.out.numel() == 0:
            return
        if op.in_place and op.out._base is not None and books.is_followed(op.out._base):
            books.read("a write into a part of it", op.out._base, *op.read)
            books.known.pop(op.out, None)
            return
        try:
            done = follow_operation(books, op)
        except FAILURES:  # torch refuses the same with integers
            done = False
        if not done:
            books.read(op.name, *op.read)
            for tensor in op.made:
                books.known.pop(tensor, None)
