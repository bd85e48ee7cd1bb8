"""The changes that surgeries are made of. Each names what it changes, finds it in the model it is given, and
can be undone bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normkit.errors import user_error
from normkit.inspect.edit import Edit

__all__ = [
    "add_bias",
    "remove_parameter",
    "replace_module",
    "set_requires_grad",
    "tensor_at",
    "untie",
    "write",
]

Undo = Callable[[], None]
# nn.TransformerEncoderLayer hands gain, bias and eps of its norms to one operator for all of it, without
# gradients, whatever class they are of; unless this attribute is 0.
FAST_PATH = "activation_relu_or_gelu"


def tensor_at(model: nn.Module, name: str) -> Tensor:
    """The parameter or buffer of that name."""
    path, _, attribute = name.rpartition(".")
    found = getattr(model.get_submodule(path), attribute)
    assert isinstance(found, Tensor), name
    return found


def write(model: nn.Module, name: str, what: str, compute: Callable[[Tensor], Tensor]) -> Edit:
    """New numbers for a parameter or buffer, computed from the old ones in float64 and rounded once."""

    @torch.no_grad()
    def make() -> Undo:
        tensor = tensor_at(model, name)
        before = tensor.detach().clone()
        after = compute(before.double()).to(tensor.dtype)
        lost = ~after.isfinite() & before.isfinite()
        if bool(lost.any()):
            raise user_error(
                f"{name} would overflow {str(tensor.dtype).removeprefix('torch.')} in {int(lost.sum())} of "
                f"{lost.numel()} numbers.",
                fix="convert the model to float32 or bfloat16 before.",
            )
        _copy(tensor, after)
        return lambda: _copy(tensor, before)

    return Edit(name, what, make)


def _copy(tensor: Tensor, value: Tensor) -> None:
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.copy_(value)


def add_bias(model: nn.Module, path: str) -> Edit:
    """A bias of zeros for a layer that has none."""

    def make() -> Undo:
        module = model.get_submodule(path)
        weight = module._parameters["weight"]
        assert weight is not None
        assert module._parameters["bias"] is None
        groups = getattr(module, "groups", 1)
        size = weight.shape[1] * groups if getattr(module, "transposed", False) else weight.shape[0]
        bias = torch.zeros(size, dtype=weight.dtype, device=weight.device)
        module._parameters["bias"] = nn.Parameter(bias, requires_grad=weight.requires_grad)

        def undo() -> None:
            module._parameters["bias"] = None

        return undo

    return Edit(f"{path}.bias", "a new parameter of zeros", make)


def remove_parameter(model: nn.Module, name: str, what: str) -> Edit:
    """None in its place."""

    def make() -> Undo:
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        before = module._parameters[attribute]
        module._parameters[attribute] = None

        def undo() -> None:
            module._parameters[attribute] = before

        return undo

    return Edit(name, what, make)


def set_requires_grad(model: nn.Module, name: str, value: bool) -> Edit:
    def make() -> Undo:
        tensor = tensor_at(model, name)
        before = tensor.requires_grad
        tensor.requires_grad_(value)

        def undo() -> None:
            tensor.requires_grad_(before)

        return undo

    return Edit(name, "takes a gradient" if value else "takes no gradient", make)


def untie(model: nn.Module, path: str, attribute: str, other: str) -> Edit:
    """A weight of its own, for a module that shares one; where a config says that they are tied, it does not
    any more."""

    def make() -> Undo:
        module = model.get_submodule(path)
        shared = module._parameters[attribute]
        assert shared is not None
        own = nn.Parameter(shared.detach().clone(), requires_grad=shared.requires_grad)
        module._parameters[attribute] = own
        undo_config = _say_untied(model, f"{path}.{attribute}")

        def undo() -> None:
            module._parameters[attribute] = shared
            undo_config()

        return undo

    return Edit(f"{path}.{attribute}", f"untied from {other}", make)


def _say_untied(model: nn.Module, name: str) -> Undo:
    """In the config of every part of the model that has one, as Hugging Face's have."""
    before: list[tuple[Any, str, Any]] = []
    for module in model.modules():
        config = getattr(module, "config", None)
        text = getattr(config, "text_config", None)
        for place in (config, text):
            if getattr(place, "tie_word_embeddings", False) is True:
                before.append((place, "tie_word_embeddings", True))
                setattr(place, "tie_word_embeddings", False)  # noqa: B010  # of any object
        tied = vars(module).get("all_tied_weights_keys")
        if isinstance(tied, dict) and tied:
            before.append((module, "all_tied_weights_keys", tied))
            kept = {k: v for k, v in tied.items() if not name.endswith(k) and not name.endswith(v)}
            setattr(module, "all_tied_weights_keys", kept)  # noqa: B010

    def undo() -> None:
        for place, attribute, value in reversed(before):
            setattr(place, attribute, value)

    return undo


def replace_module(model: nn.Module, path: str, what: str, build: Callable[[nn.Module], nn.Module]) -> Edit:
    """Another module, wherever the old one stands. Hooks of the old one are carried over."""

    def make() -> Undo:
        old = model.get_submodule(path)
        new = build(old).train(old.training)
        places = [(p, n) for p in model.modules() for n, child in p._modules.items() if child is old]
        for name, hooks in vars(old).items():
            if "hooks" in name and isinstance(hooks, dict) and hooks and name in vars(new):
                vars(new)[name] = hooks
        fast = {parent: vars(parent)[FAST_PATH] for parent, _ in places if FAST_PATH in vars(parent)}
        for parent, name in places:
            parent._modules[name] = new
        for parent in fast:
            setattr(parent, FAST_PATH, 0)

        def undo() -> None:
            for parent, name in places:
                parent._modules[name] = old
            for parent, value in fast.items():
                setattr(parent, FAST_PATH, value)

        return undo

    return Edit(path, what, make)
