"""What a model does with a batch: one run of it, as a graph of calls.

torch's functions are seen as they are called (a ``TorchFunctionMode``), modules as they are entered and left.
So any model that runs can be traced, in training too, on the meta device too; nothing is rewritten. A norm is
one node, whatever it is made of.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from normkit.inspect import meta
from normkit.inspect.functional_norm import FunctionalNorm
from normkit.inspect.operations import FUNCTIONAL_NORMS, kind_of, name_of
from normkit.inspect.recognition import SpecCache
from normkit.inspect.record import ModuleCall, Node, NormCall, NotNorm, Trace
from normkit.inspect.source_line import calling_line
from normkit.inspect.spec import NormSpec

__all__ = ["Observer", "tensors_of", "trace", "watched"]

UNKNOWN = NormSpec(True, (-1,), None, 0.0, True, None, False, False, None, None, 1.0)  # until it is found out
Observer = Callable[[Node, Tensor, list[Tensor]], None]


@contextmanager
def _patched(target: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


def trace(
    model: nn.Module,
    call: Callable[[], Any],
    *,
    inputs: Any = None,
    observe: Observer | None = None,
) -> Trace:
    """Run ``call``, which calls ``model``, and record it. ``observe`` gets each norm and each sum as it
    happens: the node, its output, and what it read."""
    tracer = _Tracer(model, observe)
    for tensor in tensors_of(inputs):
        tracer.new_node("input", "input", (), tensor)
    with ExitStack() as stack:
        stack.enter_context(watched(tracer.module_call))
        stack.callback(tracer.put_back)
        stack.enter_context(tracer)
        tracer.graph.result = call()
    graph = tracer.finish()
    graph.outputs = tuple(tracer.known[t] for t in tensors_of(graph.result) if t in tracer.known)
    return graph


@contextmanager
def watched(module_call: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Every call of a module goes through ``module_call(nn.Module.__call__)``, and none is fused, compiled or
    taken by a fast path."""
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model's own run says them
        stack.enter_context(_patched(nn.Module, "__call__", module_call(nn.Module.__call__)))
        # Whoever fuses a norm into what stands beside it calls the module where somebody watches.
        hook = register_module_forward_pre_hook(lambda module, args: None)
        stack.callback(hook.remove)
        stack.enter_context(_no_fast_path())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def _no_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def tensors_of(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists, dicts and simple objects, such as Hugging Face's outputs."""
    if isinstance(value, Tensor):
        yield value
    elif depth == 0 or isinstance(value, (str, bytes, nn.Module, type)) or value is None:
        return
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_of(part, depth - 1)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_of(part, depth - 1)
    elif hasattr(value, "__dict__") and not callable(value):
        for part in vars(value).values():
            yield from tensors_of(part, depth - 1)


class _Tracer(TorchFunctionMode):
    def __init__(self, model: nn.Module, observe: Observer | None) -> None:
        super().__init__()
        self.graph = Trace()
        self.tensors: list[weakref.ref[Tensor]] = []
        self.known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> index of its node
        self.names = {module: name for name, module in model.named_modules()}
        self.parameters: WeakIdKeyDictionary = WeakIdKeyDictionary()
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self.parameters[tensor] = name
        for module, name in self.names.items():  # a mask, or a table of rotations, that is no buffer
            for attribute, value in vars(module).items():
                if isinstance(value, (Tensor, list, tuple, dict)):
                    for tensor in tensors_of(value, 2):
                        self.parameters.setdefault(tensor, f"{name}.{attribute}".lstrip("."))
        self.storages = {_address(p): p for p in model.parameters() if not p.is_meta}
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []
        self.stack: list[ModuleCall] = []
        self.specs = SpecCache()
        self.observe = observe
        self.thread = threading.get_ident()

    # nodes

    def new_node(self, kind: str, name: str, inputs: tuple[int, ...], tensor: Tensor, **more: Any) -> Node:
        here = self.stack[-1] if self.stack else None
        read = [self.graph.nodes[i] for i in inputs]
        live = kind == "input" or any(node.live for node in read)
        if kind == "linear" and sum(node.live for node in read) > 1 and all(node.live for node in read):
            kind = "product"
        node = Node(
            len(self.graph.nodes),
            kind,
            name,
            inputs,
            live,
            tuple(dict.fromkeys(w for node in read if not node.live for w in node.weights)),
            here.path if here else "",
            here.index if here else -1,
            tuple(tensor.shape),
            tensor.dtype,
            **more,
        )
        self.graph.nodes.append(node)
        self.tensors.append(weakref.ref(tensor))
        self.known[tensor] = node.index
        return node

    def forget(self, start: int) -> None:
        """The nodes from here on: they are the inside of something that is one node."""
        for index, reference in enumerate(self.tensors[start:], start):
            tensor = reference()
            if tensor is not None and self.known.get(tensor) == index:
                del self.known[tensor]
        del self.graph.nodes[start:], self.tensors[start:]

    def node_of(self, tensor: Tensor) -> int:
        """Of a tensor that is read. What nobody saw being made comes from what its module was given."""
        if tensor in self.known:
            return self.known[tensor]
        name = self._parameter_name(tensor)
        if name is not None:
            node = self.new_node("parameter", name, (), tensor)
            node.weights = (name,) if isinstance(tensor, nn.Parameter) else ()
            return node.index
        base = tensor._base
        if base is not None and base in self.known:
            return self.new_node("view", "view", (self.known[base],), tensor).index
        given = self.stack[-1].inputs if self.stack else ()
        return self.new_node("opaque" if given else "constant", "?", given, tensor).index

    def _parameter_name(self, tensor: Tensor) -> str | None:
        if tensor in self.parameters:
            return self.parameters[tensor]
        for call in reversed(self.stack[-3:]):  # shards are gathered into new tensors
            for kind in (call.module._parameters, call.module._buffers):
                for name, own in kind.items():
                    if own is tensor:
                        return f"{call.path}.{name}" if call.path else name
        return self.parameters.setdefault(tensor, "?") if isinstance(tensor, nn.Parameter) else None

    # functions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if threading.get_ident() != self.thread:
            return func(*args, **kwargs)
        name = name_of(func)
        if _is_in_place(name, kwargs) or name == "__set__":
            self._keep(args, kwargs)
        try:
            result = func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            result = meta.answer(func, args, kwargs)
            if result is NotImplemented:
                raise
            self.graph.assumed.append(f"{name}: {error}".splitlines()[0])
        made = list(tensors_of(result, 2))
        target = args[0] if args and isinstance(args[0], Tensor) else None
        if name == "__setitem__" and target is not None:
            made = [target]
        if made:
            self._record(func, name, args, kwargs, made)
        return result

    def _keep(self, args: Any, kwargs: Any) -> None:
        """A parameter that is about to be written to, by its own name or another."""
        for tensor in tensors_of((args[:1], kwargs.get("out"))):
            owner = self.storages.get(_address(tensor))
            if owner is not None and not any(owner is kept for kept, _, _ in self.kept):
                self.kept.append((owner, owner.data, owner.data.clone()))

    def put_back(self) -> None:
        for owner, data, value in self.kept:
            owner.data = data
            data.copy_(value)

    def _record(self, func: Any, name: str, args: Any, kwargs: Any, made: list[Tensor]) -> None:
        read = [*tensors_of(args), *tensors_of(kwargs)]
        kind = kind_of(name)
        inputs = tuple(dict.fromkeys(self.node_of(t) for t in read))
        in_place = _is_in_place(name, kwargs)
        line = calling_line() if kind in ("add", "norm") else ""
        roles = tuple(self.node_of(t) for t in read[:3]) if kind == "attention" else ()
        for tensor in made:
            if not in_place and any(tensor is t for t in read):
                continue  # it is what it was
            node = self.new_node(kind, name, inputs, tensor, line=line, roles=roles)
            if in_place and tensor._base is not None and tensor._base in self.known:
                self.new_node("view", name, (self.known[tensor._base], node.index), tensor._base)
                self.known[tensor] = node.index
            if kind == "add" and self.observe is not None:
                self.observe(node, tensor, read)
        if kind == "norm" and name in FUNCTIONAL_NORMS and read and made[0].shape == read[0].shape:
            self._functional_norm(func, name, args, kwargs, self.graph.nodes[self.known[made[0]]], made[0])

    def _functional_norm(
        self, func: Any, name: str, args: Any, kwargs: Any, node: Node, output: Tensor
    ) -> None:
        own = FunctionalNorm(func, args, kwargs)
        x = own.x
        own.x = None
        if x is None:
            node.kind = "other"
            return
        owners = [weight.rpartition(".")[0] for weight in node.weights]
        path = f"{owners[0] if owners else node.module}:{name}"
        node.norm = NormCall(own, path, UNKNOWN, (), {}, node.module, is_function=True)
        if self.observe is not None:
            self.observe(node, output, [x])

    def finish(self) -> Trace:
        """What functions compute is found out in the end: most of them were the inside of a module."""
        for node in self.graph.nodes:
            if node.norm is not None and node.norm.is_function:
                shape = self.graph.nodes[node.inputs[0]].shape
                spec = self.specs.find(node.norm.module, torch.empty(shape, device="meta"))
                if isinstance(spec, NormSpec):
                    node.norm.spec = spec
                    continue
                if isinstance(spec, str) and node.module not in self.graph.not_norms:
                    found = NotNorm(node.norm.module, spec, shape, node.line)
                    self.graph.not_norms.setdefault(node.norm.path, found)
                node.kind, node.norm = "other", None
        return self.graph

    # modules

    def module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self.thread or module not in self.names:
                return original(module, *args, **kwargs)
            with torch._C.DisableTorchFunction():
                given = list(tensors_of((args, kwargs)))
                inputs = tuple(self.node_of(t) for t in given)
            graph = self.graph
            record = ModuleCall(
                len(graph.calls),
                self.names[module],
                module,
                self.stack[-1].index if self.stack else -1,
                inputs,
                len(graph.nodes),
            )
            graph.calls.append(record)
            self.stack.append(record)
            try:
                result = original(module, *args, **kwargs)
            finally:
                self.stack.pop()
            with torch._C.DisableTorchFunction():
                self._leave(record, given, args, kwargs, result)
            return result

        return call

    def _leave(self, record: ModuleCall, given: list[Tensor], args: Any, kwargs: Any, result: Any) -> None:
        graph = self.graph
        if len(given) and isinstance(result, Tensor):
            x = given[0]
            inside = graph.nodes[record.start :]
            holds_norm = any(n.norm is not None and not n.norm.is_function for n in inside)
            may_be = not holds_norm and _may_be_norm(x, result)
            spec = self.specs.find(record.module, x, given[1:]) if may_be else None
            if isinstance(spec, NormSpec):
                self.forget(record.start)
                for call in graph.calls[record.index + 1 :]:
                    call.start = call.stop = record.start
                caller = self.stack[-1].path if self.stack else ""
                norm = NormCall(record.module, record.path, spec, args, kwargs, caller)
                inputs = tuple(dict.fromkeys(record.inputs))
                kept = len(graph.nodes)
                assert all(i < kept for i in inputs)
                node = self.new_node("norm", type(record.module).__name__, inputs, result, norm=norm)
                node.line = calling_line()
                node.weights = tuple(f"{record.path}.{n}" for n, _ in record.module.named_parameters())
                if self.observe is not None:
                    self.observe(node, result, given)
            elif isinstance(spec, str):
                found = NotNorm(record.module, spec, tuple(x.shape), calling_line())
                graph.not_norms.setdefault(record.path, found)
        record.outputs = tuple(self.node_of(t) for t in tensors_of(result))
        record.stop = len(graph.nodes)


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or -1
    except (RuntimeError, NotImplementedError, ValueError):  # no storage: a wrapper, a shard that is not here
        return -1


def _may_be_norm(x: Tensor, y: Tensor) -> bool:
    return x.is_floating_point() and y.is_floating_point() and x.shape == y.shape and x.ndim > 0


def _is_in_place(name: str, kwargs: dict[str, Any]) -> bool:
    return (
        (name.endswith("_") and not name.endswith("__"))
        or name in ("__setitem__", "__iadd__", "__imul__", "__isub__", "__itruediv__")
        or bool(kwargs.get("inplace"))
        or kwargs.get("out") is not None
    )
