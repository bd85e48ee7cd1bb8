"""The description in a model's file, held against the weights beside it before anything is built.

A header is a few words that anyone can write: a depth of ten million would be built for hours, and only then
be found to have no weights. Every error is a ``NormkitError`` with the reason in a few words.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from normkit.errors import NormkitError
from normkit.transformer.config import Config

__all__ = ["check_sizes", "check_weights", "read_description"]

LARGEST = 2**63  # what torch can count to
LONGEST = 100  # letters of a name
# Positions are a table that no weight bounds: as large as 2^26 numbers, or as sixteen times the model.
TABLE, TIMES = 1 << 26, 16
_OPTIONAL = ("vocab", "kv_heads", "head_dim", "hidden", "eps")


def read_description(text: str | None, model: str) -> dict[str, Any]:
    """The options of a model of this name."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError) as error:
        raise NormkitError(f"its description is not JSON ({type(error).__name__})") from None
    if found is None:
        raise NormkitError("it holds no model of normkit")
    if not isinstance(found, dict) or not isinstance(found.get("model"), str):
        raise NormkitError("its description names no model")
    if found["model"] != model:
        raise NormkitError(f"it holds a {short(found['model'], str)}")
    options = found.get("options")
    if not isinstance(options, dict):
        raise NormkitError("its description has no options")
    return options


def check_sizes(options: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Every option is of its kind, and as large as the weights are."""
    for name, value in options.items():
        if not _fits(name, value):
            raise NormkitError(f"its {name} is {short(value)}")
    _check_dim(options, weights)
    depth = options.get("depth", Config.depth)
    for stack, layers in (
        ("stack", depth),
        ("encoder", options.get("encoder_depth", depth)),
        ("decoder", depth),
    ):
        known = {int(k) for k in re.findall(rf"(?m)^{stack}\.blocks\.(\d{{1,9}})\.", "\n".join(weights))}
        if known and known != set(range(min(layers, len(known) + 1))):
            raise NormkitError(f"its depth is {layers}, and its weights are those of {len(known)} layers")
        if stack == "stack" and not known and not any(name.startswith("decoder.") for name in weights):
            raise NormkitError(f"its depth is {layers}, and it has the weights of no layer")
    _check_bulk({**{f.name: f.default for f in dataclasses.fields(Config)}, **options}, weights)


def _check_dim(options: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """By the table of tokens; by what reads the stream first, in an Encoder that has no table."""
    vocab, dim = options.get("vocab"), options.get("dim", Config.dim)
    if vocab is None:
        reader = next((name for name in weights if name.endswith("qkv.weight")), None)
        if reader is None:
            raise NormkitError("it has neither a vocab nor a qkv.weight")
        if list(weights[reader].shape[1:]) != [dim]:
            raise NormkitError(f"{reader} has the shape {tuple(weights[reader].shape)}, for dim {dim}")
        return
    table = weights.get("embedding.token.weight")
    if table is None:
        raise NormkitError("it has no embedding.token.weight")
    if table.ndim != 2 or [vocab, dim] != list(table.shape):
        sizes = f"vocab {vocab} and dim {dim}"
        raise NormkitError(f"embedding.token.weight has the shape {tuple(table.shape)}, for {sizes}")


def _check_bulk(options: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """No part of the model may be larger than all weights together: then it can be built, if only to be
    compared with them."""
    total = sum(weight.numel() for weight in weights.values())
    dim, depth, context = options["dim"], options["depth"], options["context"]
    size = options["head_dim"] or 1
    learned = options["positions"] == "learned"
    parts = {
        "hidden": (options["hidden"] or 1) * dim * depth,
        "heads": options["heads"] * size * dim * depth,
        "kv_heads": (options["kv_heads"] or 1) * size * dim * depth,
        "head_dim": size * dim * depth,
        "token_types": options["token_types"] * dim,
        "context": context * dim if learned else context * dim / max(TIMES, TABLE / max(1, total)),
    }
    for name, numbers in parts.items():
        if numbers > total:
            raise NormkitError(f"its {name} is {options[name]}, for a model of {total:,} weights")


def check_weights(model: torch.nn.Module, weights: Mapping[str, Tensor], repeated: Collection[str]) -> None:
    """A model, and the weights that are to fill it: all there, of the right shape and kind."""
    wanted = {name: tensor for name, tensor in model.state_dict().items() if name not in repeated}
    for name in (*wanted, *weights):
        if name not in weights:
            raise NormkitError(f"it has no {name}")
        if name not in wanted:
            raise NormkitError(f"it has {short(name, str)}, which such a model has not")
        if weights[name].shape != wanted[name].shape:
            shapes = tuple(weights[name].shape), tuple(wanted[name].shape)
            raise NormkitError(
                f"{name} has the shape {shapes[0]}, where its description asks for {shapes[1]}"
            )
        if weights[name].is_floating_point() != wanted[name].is_floating_point():
            raise NormkitError(f"{name} has the dtype {weights[name].dtype}")


def _fits(name: str, value: Any) -> bool:
    """Is it of the kind that the option has by default? A name that is not known is Config's to refuse."""
    if value is None:
        return name in _OPTIONAL
    default = {f.name: f.default for f in dataclasses.fields(Config)}.get(name)
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, str):
        return isinstance(value, str) and len(value) <= LONGEST
    if isinstance(default, float) or name == "eps":
        return type(value) in (int, float) and abs(value) < LARGEST and math.isfinite(value)
    return type(value) is int and abs(value) < LARGEST


def short(value: Any, spell: Callable[[Any], str] = repr) -> str:
    """In an error: not a page of it."""
    try:
        text = spell(value)
    except ValueError:  # a number of thousands of digits
        return "a huge number"
    return text if len(text) <= 60 else f"{text[:60]}…"
