"""How a model is called with what its user has: a tensor, a tuple, a dict, or nothing but a config."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normkit.errors import NormkitError, user_error
from normkit.inspect.trace import tensors_of

__all__ = ["Call", "build_batch", "prepare", "unwrap"]

Call = tuple[tuple[Any, ...], dict[str, Any]]  # args and kwargs


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside of torch.compile, DataParallel and DDP, which only call it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def prepare(model: nn.Module, batch: Any) -> Call:
    """What the model is called with: copies of the batch's tensors, where its parameters are."""
    if batch is None:
        batch = build_batch(model)
    device = _device(model)
    if isinstance(batch, Mapping):
        keywords = {str(k): _copied(v, device) for k, v in batch.items()}
        if _binds(model, (), keywords) or not _binds(model, (keywords,), {}):
            return (), keywords
        return (keywords,), {}
    if isinstance(batch, (tuple, list)):
        args = tuple(_copied(v, device) for v in batch)
        if not _binds(model, args, {}) and args and _binds(model, args[:1], {}):
            return args[:1], {}  # (inputs, targets), as a DataLoader gives them
        return args, {}
    if isinstance(batch, Tensor):
        return (_copied(batch, device),), {}
    raise user_error(
        f"the batch is of type {type(batch).__name__}.",
        expected="a tensor, a tuple of arguments, or a dict of keyword arguments, as the model takes them",
    )


def _binds(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True


def _device(model: nn.Module) -> torch.device | None:
    return next((t.device for t in (*model.parameters(), *model.buffers())), None)


def _copied(value: Any, device: torch.device | None) -> Any:
    """A forward may write into what it gets, a cache above all."""
    if isinstance(value, Tensor):
        found = value.detach().clone()
        return found if device is None or found.device == device else found.to(device)
    if isinstance(value, Mapping) and type(value) is dict:
        return {k: _copied(v, device) for k, v in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_copied(v, device) for v in value)
    memo: dict[int, Any] = {id(t): t.detach().clone() for t in tensors_of(value, 6)}
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # what cannot be copied is handed on: a tokenizer, a process group
        return value


def build_batch(model: nn.Module, rows: int = 2, length: int = 16) -> dict[str, Tensor]:
    """A random batch for a model with a config: Hugging Face's, and ours."""
    config = getattr(model, "config", None)
    vocab = _first(config, ("vocab_size", "vocab"))
    generator = torch.Generator("cpu").manual_seed(0)
    main = getattr(model, "main_input_name", "input_ids" if vocab else None)
    if type(model).__module__.startswith("normkit.") and vocab:
        return {_first_argument(model): _ids(vocab, rows, length, generator)}
    makers: dict[str, Callable[[], Tensor]] = {
        "input_ids": lambda: _ids(int(vocab or 2), rows, length, generator),
        "pixel_values": lambda: _images(config, rows, generator),
        "input_values": lambda: torch.randn(rows, 4000, generator=generator, dtype=torch.float32),
    }
    if config is None or main not in makers or (main == "input_ids" and not vocab):
        raise user_error(
            f"{type(model).__name__} was given no batch, and has no config that says what it reads.",
            expected="a batch as the model takes it: a tensor, a tuple or a dict",
            fix="nk.doctor(model, batch), or --batch my_module:one_batch on the command line.",
        )
    batch = {main: makers[main]()}
    names = _arguments(model)
    if main == "input_ids" and "attention_mask" in names:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
        batch["decoder_input_ids"] = _ids(int(vocab or 2), rows, length, generator)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    places = (config, getattr(config, "text_config", None))
    found = (getattr(place, name, None) for place in places for name in names)
    return next((v for v in found if type(v) is int and v > 0), None)


def _ids(vocab: int, rows: int, length: int, generator: torch.Generator) -> Tensor:
    low = min(5, vocab - 1)  # beyond the special tokens of most vocabularies
    return torch.randint(low, vocab, (rows, length), generator=generator)


def _images(config: Any, rows: int, generator: torch.Generator) -> Tensor:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or getattr(config, "image_size", None) or 64
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    channels = getattr(vision, "num_channels", 3)
    return torch.randn(rows, channels, height, width, generator=generator, dtype=torch.float32)


def _arguments(model: nn.Module) -> list[str]:
    return list(inspect.signature(model.forward).parameters)


def _first_argument(model: nn.Module) -> str:
    return _arguments(model)[0]


def could_not_run(model: nn.Module, call: Call, error: BaseException) -> NormkitError:
    """One clear line about a forward that failed: what was tried, and what it said."""
    args, kwargs = call
    given = [_said(a) for a in args] + [f"{k}={_said(v)}" for k, v in kwargs.items()]
    said = " ".join(str(error).split())[:300] or "no message"
    return user_error(
        f"{type(model).__name__}({', '.join(given)}) raised {type(error).__name__}: {said}",
        expected="a batch that the model's forward takes",
        fix="call model(batch) yourself first; a dict is given as keyword arguments, a tuple as arguments.",
    )


def _said(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__ if not isinstance(value, (int, float, str, bool, type(None))) else repr(value)
