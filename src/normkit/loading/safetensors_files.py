"""The weights in a folder: safetensors, whole or in parts, and nothing else."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from torch import Tensor

from normkit.errors import user_error

__all__ = ["pickles", "read_weights", "weight_files"]

PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack"}
INDEX = "model.safetensors.index.json"


def weight_files(folder: Path, notes: list[str]) -> list[Path]:
    """The file, or the parts that the index names; empty if there is none, or no room for them."""
    whole, index = folder / "model.safetensors", folder / INDEX
    if whole.is_file():
        files = [whole]
    elif index.is_file():
        files = _parts(index)
    else:
        files = sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith("adapter"))
        if len(files) > 1:
            notes.append(f"{', '.join(p.name for p in files[:4])} were not read: there is no {INDEX}.")
            files = []
    size, room = sum(path.stat().st_size for path in files), _memory()
    if room is not None and size > 0.8 * room:
        notes.append(
            f"The weights take {size / 2**30:.0f} GiB, and there is {room / 2**30:.0f}: they were not read."
        )
        return []
    return files


def read_weights(files: list[Path]) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    for path in files:
        try:
            found |= load_file(path)
        except Exception as error:  # SafetensorError, an OSError, a dtype that torch has not
            said = " ".join(str(error).split())[:200]
            raise user_error(
                f"{path} cannot be read: {said}.", expected="a whole safetensors file", fix="get it again."
            ) from error
    return found


def pickles(folder: Path) -> list[str]:
    """Files that hold weights in a form that is not read."""
    return sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES)


def _parts(index: Path) -> list[Path]:
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = [index.parent / name for name in sorted(set(names))]
        is_sound = all(path.parent == index.parent and path.suffix == ".safetensors" for path in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise user_error(f"{index} cannot be read: {error!r}.", expected='{"weight_map": {…}}') from error
    if not is_sound:
        raise user_error(f"{index} names other files than safetensors beside it.")
    for path in files:
        if not path.is_file():
            raise user_error(f"{path} is missing; {INDEX} names it.", fix="get it, or remove the index.")
    return files


def _memory() -> int | None:
    """Free bytes, where the system says so."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
