"""A model from a folder of Hugging Face's: its config, and safetensors where there are any.

The folder may be anyone's. Nothing in it is run: no pickle is read, no code is imported, nothing is
downloaded, and settings that would make transformers fetch something are left out. Without weights the model
is built on the meta device.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normkit.errors import NormkitError, user_error
from normkit.loading.offline import offline
from normkit.loading.safetensors_files import pickles, read_weights, weight_files

__all__ = ["load_folder", "with_random_weights"]

SMALL = 500_000_000  # parameters that are made up where the meta device does not do

# Left out wherever they stand: code and kernels from elsewhere, and ways to load weights that are not ours.
IGNORED = re.compile(
    r"auto_map|_?(attn|experts)_implementation\w*|quantization_config|(fusion|kernel|distributed)_config"
    r"|transformers_weights|custom_pipelines|trust_remote_code|_commit_hash"
)


def load_folder(folder: Path, notes: list[str]) -> nn.Module:
    """In evaluation mode. ``notes`` takes what was left out, missing or left over."""
    given = _read_config(folder)
    transformers = _transformers(folder)
    with offline():
        config = _config(transformers, given, folder, notes)
        build = _model_class(transformers, config, given, notes)
        files = weight_files(folder, notes)
        if unread := pickles(folder):
            notes.append(f"Not read, for pickle runs code: {_some(unread)}.")
        if "quantization_config" in given and files:
            notes.append("The weights are quantised, and were not read.")
            files = []
        try:
            if files:
                return _with_weights(build, config, read_weights(files), notes)
            model: nn.Module
            with torch.device("meta"):
                model = build._from_config(config)
        except (Exception, SystemExit) as error:
            raise _cannot_build(build.__name__, folder, error) from error
    notes.append("No weights were read: the config alone was examined, on the meta device.")
    return model.to("meta").eval()  # some make a tensor without asking for the device


def with_random_weights(model: nn.Module) -> nn.Module | None:
    """The same on the CPU, if it is one of transformers' without numbers, and not too large."""
    config: Any = getattr(model, "config", None)
    build: Any = getattr(type(model), "_from_config", None)
    parameters = list(model.parameters())
    if config is None or build is None or not parameters or not all(p.is_meta for p in parameters):
        return None
    if sum(p.numel() for p in parameters) > SMALL:
        return None
    with offline(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found: nn.Module = build(config)
    return found.train(model.training)


def _with_weights(build: Any, config: Any, weights: dict[str, Tensor], notes: list[str]) -> nn.Module:
    """transformers' own loading, which knows how each architecture stores its weights."""
    model: nn.Module
    model, found = build.from_pretrained(
        None,
        config=config,
        state_dict=weights,
        local_files_only=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    missing, left = sorted(found["missing_keys"]), sorted(found["unexpected_keys"])
    other = sorted(f"{name} {list(a)} for {list(b)}" for name, a, b in found["mismatched_keys"])
    if missing:
        notes.append(f"Missing in the files, so random: {_some(missing)}.")
    if left:
        notes.append(f"In the files, without a place in the model: {_some(left)}.")
    if other:
        notes.append(f"Of another shape in the files, so random: {_some(other)}.")
    return model.eval()


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not folder.is_dir():
        raise _no_folder(folder)
    if not path.is_file():
        below = sorted(p.parent.name for p in folder.glob("*/config.json"))
        there = sorted(p.name for p in folder.iterdir())[:6]
        raise user_error(
            f"{folder} has no config.json.",
            expected=f"a folder of Hugging Face's; there is {', '.join(there) or 'nothing'}",
            fix=f"normkit doctor {folder / below[0]}" if below else None,
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise user_error(f"{path} cannot be read: {error}.", expected="a JSON object") from error
    if not isinstance(found, dict):
        raise user_error(f"{path} holds a JSON {type(found).__name__}.", expected="a JSON object")
    return found


def _no_folder(path: Path) -> Exception:
    if path.exists():
        beside = path.parent if (path.parent / "config.json").is_file() else None
        return user_error(
            f"{path} is a file.",
            expected="a folder with a config.json, or package.module:attribute",
            fix=f"normkit doctor {beside}" if beside else None,
        )
    if path.is_symlink():
        return user_error(f"{path} is a link to {path.readlink()}, which is not there.")
    name = path.as_posix()
    is_hub_name = re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not name.startswith(".")
    close = difflib.get_close_matches(path.name, os.listdir(path.parent) if path.parent.is_dir() else [], n=1)
    fix = f"did you mean {path.with_name(close[0])}?" if close else None
    if fix is None and is_hub_name:
        fix = f"nothing is downloaded; first  hf download {name} --local-dir {path.name}"
    return user_error(
        f"there is no {path}.", expected="a folder with a config.json, or package.module:attribute", fix=fix
    )


def _transformers(folder: Path) -> Any:
    try:
        import transformers
        import transformers.models.auto.modeling_auto
    except ImportError as error:
        raise user_error(
            f"{folder} is a folder of Hugging Face's, and transformers cannot be imported: {error}.",
            fix="pip install transformers",
        ) from error
    return transformers


def _config(transformers: Any, given: dict[str, Any], folder: Path, notes: list[str]) -> Any:
    known = transformers.CONFIG_MAPPING
    kind = given.get("model_type")
    if kind is None:  # an old one: its class says it
        built = next(_classes(transformers, given), None)
        kind = getattr(getattr(built, "config_class", None), "model_type", None)
    if not isinstance(kind, str) or kind not in known:
        words = f"is of the model type {kind!r}, which transformers {transformers.__version__} does not have"
        words = words if kind is not None else "names no model_type, and no architecture of transformers'"
        close = difflib.get_close_matches(kind, list(known), n=1) if isinstance(kind, str) else []
        fix = f"did you mean {close[0]!r}?" if close else None
        if "auto_map" in given:
            fix = (
                "its code is in the folder, and is not run; build it yourself: normkit doctor my_module:build"
            )
        raise user_error(
            f"{folder}/config.json {words}.",
            expected="a type that it has, such as 'llama' or 'bert'",
            fix=fix,
        )
    if "auto_map" in given:
        notes.append(f"The folder's own code was not run: {kind} is transformers' own.")
    try:
        return known[kind].from_dict(_cleaned(known[kind]._decode_special_floats(given)))
    except Exception as error:
        raise _cannot_build(f"the config of a {kind}", folder, error) from error


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: _cleaned(v) for k, v in value.items() if not IGNORED.fullmatch(k)}
        return kept | {k: False for k in kept if k == "use_pretrained_backbone"}
    return [_cleaned(v) for v in value] if isinstance(value, list) else value


def _classes(transformers: Any, given: dict[str, Any]) -> Iterator[Any]:
    """Those of its architectures that are transformers' own."""
    names = given.get("architectures")
    for name in names if isinstance(names, list) else []:
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            yield found


def _model_class(transformers: Any, config: Any, given: dict[str, Any], notes: list[str]) -> Any:
    for found in _classes(transformers, given):
        if isinstance(config, found.config_class or ()):
            return found
    auto = transformers.models.auto.modeling_auto
    for mapping in (auto.MODEL_FOR_CAUSAL_LM_MAPPING, auto.MODEL_MAPPING):
        if type(config) in mapping:
            found = mapping[type(config)]
            found = found[0] if isinstance(found, tuple) else found
            if given.get("architectures"):
                notes.append(
                    f"Built as {found.__name__}: transformers has no {given['architectures']!r} for it."
                )
            return found
    raise user_error(f"transformers has no model for a {type(config).__name__}.")


def _cannot_build(what: str, folder: Path, error: BaseException) -> Exception:
    if isinstance(error, NormkitError):
        return error
    said = " ".join(str(error).split())[:300] or "no message"
    return user_error(
        f"{what} could not be built from {folder}: {type(error).__name__}: {said}",
        expected="a config.json that transformers takes",
    )


def _some(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
