"""A surgery on a folder of Hugging Face's: another folder, which the same classes load, with its certificate.

The new folder is written beside its place, loaded again and compared, and only then put there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normkit.errors import NormkitError, user_error
from normkit.loading.folder import load_folder
from normkit.loading.offline import offline
from normkit.loading.safetensors_files import PICKLES
from normkit.surgery.certificate import Certificate, digests, model_hash
from normkit.surgery.operating import batch_for, outputs_of, told
from normkit.surgery.proving import difference
from normkit.surgery.table import Surgery

__all__ = ["CERTIFICATES", "Checked", "check_folder", "operate_on_folder"]

CERTIFICATES = "surgery.json"  # of all surgeries on what is in the folder, in order
MADE_ANEW = {"config.json", "generation_config.json", CERTIFICATES}


def operate_on_folder(
    surgery: Surgery, folder: Path, out: Path | None, batch: Any, notes: list[str], **options: Any
) -> Certificate:
    """``out`` None: a dry run."""
    if surgery.in_files is None and out is not None:
        raise user_error(
            f"{surgery.name.replace('_', '-')} makes a model with other modules, which no class of "
            "transformers' would load.",
            fix=f"--dry-run shows the plan; in Python: normkit.surgery.{surgery.name}(model, batch).",
        )
    if out is not None:
        _refuse_place(out, folder)
    told(f"loading {folder}")
    model = load_folder(folder, notes)
    batch = batch_for(model, batch)
    options = {**(surgery.in_files or {}), **options}
    certificate = surgery.operate(model, batch, dry_run=out is None, **options)
    if out is not None and certificate.edits:
        _save(model, batch, folder, out, certificate)
    return certificate


def _refuse_place(out: Path, folder: Path) -> None:
    """Asked before minutes of work."""
    if out.resolve() == folder.resolve():
        raise user_error(f"--out is {folder} itself.", expected="a new folder: the old one is kept")
    if os.path.lexists(out) and not (out.is_dir() and not out.is_symlink() and not any(out.iterdir())):
        raise user_error(f"--out got {out}, which is there.", expected="a folder that is new or empty")
    parent = next(p for p in (out.absolute().parent, *out.absolute().parents) if p.is_dir())
    if not os.access(parent, os.W_OK):
        raise user_error(f"--out got {out}: {parent} cannot be written.")


def _save(model: Any, batch: Any, folder: Path, out: Path, certificate: Certificate) -> None:
    beside = out.absolute().with_name(f".{out.name}.{os.getpid()}")
    try:
        told(f"writing {out}")
        with offline():
            model.save_pretrained(beside)
        _copy_rest(folder, beside)
        told("loading it again")
        _refuse_other(model, load_folder(beside, []), batch)
        earlier = read_certificates(folder) if (folder / CERTIFICATES).is_file() else []
        text = json.dumps([*earlier, json.loads(certificate.to_json())], indent=1)
        (beside / CERTIFICATES).write_text(text + "\n", encoding="utf-8")
        if out.is_dir():
            out.rmdir()
        os.replace(beside, out)
    except OSError as error:
        raise user_error(f"{out} could not be written: {error.strerror or error}.") from error
    except NormkitError:
        raise
    except Exception as error:  # safetensors' own, on a full disk
        said = " ".join(str(error).split())[:200]
        raise user_error(f"{out} could not be written: {type(error).__name__}: {said}") from error
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(beside)


def _copy_rest(folder: Path, new: Path) -> None:
    """The tokenizer and whatever else is there, but no weights, no pickles and no code."""
    left = PICKLES | {".safetensors", ".py", ".gguf"}
    for path in folder.iterdir():
        is_ours = path.name in MADE_ANEW or path.name.endswith(".index.json") or path.suffix in left
        if path.is_file() and not is_ours and not (new / path.name).exists():
            shutil.copyfile(path, new / path.name)


def _refuse_other(model: nn.Module, loaded: nn.Module, batch: Any) -> None:
    """What was saved must be what was made."""
    before, after = digests(model), digests(loaded)
    off, where = difference(outputs_of(model, batch), outputs_of(loaded, batch))
    if model_hash(before) != model_hash(after) or off > 0:
        names = [n for n in dict.fromkeys((*before, *after)) if before.get(n, "")[:1] != after.get(n, "")[:1]]
        raise user_error(
            f"{type(model).__name__} does not load what it saved: {', '.join(names[:4]) or where} differs. "
            "Nothing was written.",
            fix="in Python, the surgery can be done in memory.",
        )


def read_certificates(folder: Path) -> list[dict[str, Any]]:
    path = folder / CERTIFICATES
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sound = isinstance(found, list) and all(
            c["format"] == 1 and isinstance(c["after"], str) and isinstance(c["tensors"], list) for c in found
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else repr(error)
        raise user_error(
            f"{path} cannot be read: {said}.", expected="the certificates that normkit surgery --out wrote"
        ) from error
    if not sound or not found:
        raise user_error(f"{path} holds no certificate of this version.")
    return list(found)


@dataclass(frozen=True)
class Checked:
    """``changed``: tensors that are not what the certificate says. ``difference``: from the original."""

    certificates: list[dict[str, Any]]
    changed: tuple[str, ...]
    same_original: bool | None = None
    difference: float | None = None

    @property
    def ok(self) -> bool:
        allowed = 1e-2 if all(c["exact"] for c in self.certificates) else float("inf")
        is_near = self.difference is None or self.difference <= allowed
        return not self.changed and self.same_original is not False and is_near


def check_folder(folder: Path, original: Path | None, notes: list[str]) -> Checked:
    """Are the weights those of its certificate? With the original: was it made from that, and does it compute
    the same?"""
    told(f"loading {folder}")
    model = load_folder(folder, notes)
    certificates = read_certificates(folder)
    last, state = certificates[-1], digests(model)
    changed: list[str] = []
    if model_hash(state) != last["after"]:
        said = {str(t["name"]): str(t["digest"]) for t in last["tensors"]}
        changed = [n for n, digest in said.items() if (state[n][0] if n in state else "") != digest]
        changed = changed or ["a tensor that the surgery left alone"]
    if original is None:
        return Checked(certificates, tuple(changed))
    told(f"loading {original}")
    first = load_folder(original, notes)
    batch = batch_for(model, None)
    with torch.no_grad():
        off, _ = difference(outputs_of(first, batch), outputs_of(model, batch))
    same = model_hash(digests(first)) == certificates[0]["before"]
    return Checked(certificates, tuple(changed), same, off)
