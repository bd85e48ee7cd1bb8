"""A model in one file: safetensors, with the description of the model in its header."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from normkit.errors import refusal

__all__ = ["load", "save"]

HEADER = "normkit"


def save(model: Any, path: str | Path) -> None:
    """Write weights and description. What was there is replaced when all is written, or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    options = {f.name: getattr(model.config, f.name) for f in dataclasses.fields(model.config)}
    for name in ("placement", "norm"):
        if not isinstance(options[name], str):
            raise refusal(
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
        raise refusal(f"{path} cannot be written: {error}.", expected="a folder with room for it") from error
    finally:
        half.unlink(missing_ok=True)


def load(build: type[Any], path: str | Path) -> Any:
    """The model that ``save`` has written."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            described = json.loads((file.metadata() or {}).get(HEADER, "null"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (OSError, SafetensorError) as error:
        raise refusal(
            f"{path} cannot be read: {error}.", expected="a file that save() has written"
        ) from error
    if described is None or described["model"] != build.__name__:
        what = "no model of normkit" if described is None else f"a {described['model']}"
        raise refusal(f"{path} holds {what}.", expected=f"a {build.__name__}")
    model = build(**described["options"])
    for name, parameter in model.named_parameters():
        if name in weights:
            parameter.data = parameter.data.to(weights[name].dtype)
    repeated = [name for name in model.state_dict() if _repeats(model, name)]
    try:
        model.load_state_dict(weights | dict.fromkeys(repeated, weights["embedding.token.weight"]))
    except (KeyError, RuntimeError) as error:
        raise refusal(f"{path} does not hold what it describes: {error}.") from error
    return model


def _repeats(model: Any, name: str) -> bool:
    """A tied head is the embedding, and is not stored twice."""
    return name == "head.weight" and _is_tied(model)


def _is_tied(model: Any) -> bool:
    """As it is, not as it was built."""
    head = model._modules.get("head")
    return head is None or head.weight is model.embedding.token.weight
