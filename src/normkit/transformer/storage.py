"""A model in one file: safetensors, with the description of the model in its header."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from normkit.errors import NormkitError, user_error
from normkit.transformer.description import check_sizes, check_weights, read_description, short

__all__ = ["load", "save"]

HEADER = "normkit"


def save(model: Any, path: str | Path) -> None:
    """Write weights and description. What was there is replaced when all is written, or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    options = {f.name: getattr(model.config, f.name) for f in dataclasses.fields(model.config)}
    for name in ("placement", "norm"):
        if not isinstance(options[name], str):
            raise user_error(
                f"This model has a {name} that is no name.",
                expected=f"a named {name}: a file cannot hold a function",
                fix="torch.save(model.state_dict(), ...), and build the model anew to load it.",
            )
    options |= {"tied": _is_tied(model), **model.more_options}
    described = {"model": type(model).__name__, "options": options}
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if not _repeats(model, k)}
    path = Path(path)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(weights, half, metadata={HEADER: json.dumps(described)})
        half.replace(path)
    except (OSError, SafetensorError) as error:
        raise user_error(
            f"{path} cannot be written: {error}.", expected="a folder with room for it"
        ) from error
    finally:
        half.unlink(missing_ok=True)


def load(build: type[Any], path: str | Path) -> Any:
    """The model that ``save`` has written."""
    described, weights = _read(path)
    try:
        options = read_description(described, build.__name__)
        check_sizes(options, weights)
        model = build(**options)
        repeated = [name for name in model.state_dict() if _repeats(model, name)]
        check_weights(model, weights, repeated)
    except NormkitError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise user_error(
            f"{path}: {reason}.",
            expected=f"a {build.__name__} as save() has written it",
            fix="get the file again, or load it with the class and the version of normkit that wrote it.",
        ) from error
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(weights[name].dtype)
    model.load_state_dict(weights | dict.fromkeys(repeated, weights.get("embedding.token.weight")))
    return model


def _read(path: str | Path) -> tuple[str | None, dict[str, Tensor]]:
    """Description and weights, as they are."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            described = (file.metadata() or {}).get(HEADER)
            return described, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no dict
    except Exception as error:  # a dtype that torch has not, a folder, half a file: each another one
        raise user_error(
            f"{path} cannot be read: {short(str(error))}.", expected="a file that save() has written"
        ) from error


def _repeats(model: Any, name: str) -> bool:
    """A tied head is the embedding, and is not stored twice."""
    return name == "head.weight" and _is_tied(model)


def _is_tied(model: Any) -> bool:
    """As it is, not as it was built."""
    head = model._modules.get("head")
    return head is None or head.weight is model.embedding.token.weight
