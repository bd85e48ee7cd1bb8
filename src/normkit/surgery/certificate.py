"""What was changed in a model, and the proof that it computes the same: a value that can be read, saved,
checked again and undone."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normkit._version import __version__
from normkit.errors import user_error
from normkit.inspect.edit import Edits
from normkit.inspect.sites import folded
from normkit.loading.writing import write as write_text

__all__ = ["Certificate", "Left", "TensorChange", "digests", "model_hash"]


@dataclass(frozen=True)
class TensorChange:
    """A parameter or buffer: its norm (the root of the sum of squares) before and after; None: not there."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    before: float | None
    after: float | None
    digest: str  # of what it is now; empty if it is gone


@dataclass(frozen=True)
class Left:
    """A norm, or another place, that was left as it is, and why."""

    path: str
    why: str


@dataclass
class Certificate:
    """Of one surgery. ``print`` it; ``undo()`` brings the model back, bit for bit.

    surgery     its name, and ``arguments``
    exact       the model must compute the same; else it is labelled as changing the function
    edits       what was done, in order
    error       the largest difference of the outputs, of the largest output, on a copy with random norms in
                float64; of a surgery that changes the function, ``drift`` alone is measured
    gradients   the same of the gradients of all parameters that were left alone
    tolerance   what was allowed: 1e-10, or twice ``floor``, the noise of the model before the edit
    drift       the difference on this model itself, in its own dtype, on the batch
    tensors     every tensor that was changed
    left        what was left, and why
    before, after   hashes of the model
    """

    surgery: str
    exact: bool
    edits: Edits = field(repr=False)
    left: tuple[Left, ...]
    tensors: tuple[TensorChange, ...] = ()
    error: float | None = None
    gradients: float | None = None
    tolerance: float | None = None
    floor: float | None = None
    drift: float | None = None
    before: str = ""
    after: str = ""
    notes: tuple[str, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    batch: str = ""
    proven_in: str = ""
    versions: dict[str, str] = field(default_factory=lambda: _versions())

    @property
    def certified(self) -> bool:
        """Something was changed, and proven."""
        return self.exact and self.error is not None and len(self.edits) > 0

    def undo(self) -> None:
        """The model as it was, bit for bit."""
        self.edits.undo()

    def to_json(self) -> str:
        data = {k: v for k, v in vars(self).items() if k not in ("edits", "left", "tensors")}
        data["edits"] = [{"where": e.where, "what": e.what} for e in self.edits]
        data["left"] = [asdict(entry) for entry in self.left]
        data["tensors"] = [asdict(t) for t in self.tensors]
        return json.dumps({"format": 1, **data}, indent=1)

    def save(self, path: str | Path) -> Path:
        """As JSON, to keep beside the checkpoint; ``normkit surgery --check`` reads it."""
        return write_text(Path(path), self.to_json() + "\n")

    def __str__(self) -> str:
        lines = [self.verdict]
        alike: dict[str, list[str]] = {}
        for edit in self.edits:
            alike.setdefault(folded(str(edit)), []).append(str(edit))
        lines += _counted(alike)
        reasons: dict[str, list[str]] = {}
        for entry in self.left:
            said = f"{entry.path or 'the model'}: {entry.why}"
            reasons.setdefault(folded(said), []).append(said)
        lines += [f"  left {line.strip()}" for line in _counted(reasons)]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """One line."""
        if self.edits and not self.edits.applied and not self.after:
            return f"{self.surgery}, a dry run: {len(self.edits)} edits; nothing was changed."
        if not self.edits:
            return f"{self.surgery}: nothing was changed."
        count = f"{len(self.tensors)} tensors changed" if len(self.tensors) != 1 else "1 tensor changed"
        drift = f"; on the batch itself it differs by {self.drift:.2g}" if self.drift is not None else ""
        if not self.exact:
            return f"{self.surgery}: {count}. It changes the function{drift} of the largest output."
        if self.error is None:
            return f"{self.surgery}: {count}; not proven."
        gradients = f", gradients to {self.gradients:.1g}" if self.gradients is not None else ""
        return (
            f"{self.surgery}: {count}; certified, outputs are the same to {self.error:.1g}{gradients} "
            f"(allowed: {self.tolerance:.1g}, in {self.proven_in}){drift}."
        )


def _counted(alike: dict[str, list[str]]) -> list[str]:
    """Lines that differ only in the number of their layer, once."""
    width = len(str(max(map(len, alike.values()), default=1)))
    return [f"  {len(same):{width}} x {words if len(same) > 1 else same[0]}" for words, same in alike.items()]


def _versions() -> dict[str, str]:
    return {"normkit": __version__, "torch": torch.__version__, "python": platform.python_version()}


def digests(model: nn.Module) -> dict[str, tuple[str, float, Tensor]]:
    """Of every parameter and buffer that is saved with the model: a hash of its bytes, and its norm."""
    found = {}
    seen: dict[tuple[int, int, tuple[int, ...]], tuple[str, float]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            continue
        key = (id(tensor), tensor._version, tuple(tensor.shape))
        if key not in seen:
            seen[key] = digest(tensor), _norm(tensor)
        found[name] = (*seen[key], tensor)
    return found


def digest(tensor: Tensor) -> str:
    """Of shape, dtype and bytes."""
    found = hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode())
    if not tensor.is_meta:
        plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        found.update(plain.numpy().data if _has_numpy() else bytes(plain.tolist()))
    return found.hexdigest()


def _has_numpy() -> bool:
    try:
        import numpy  # noqa: F401
    except ImportError:
        return False
    return True


def _norm(tensor: Tensor) -> float:
    if tensor.is_meta:
        return float("nan")
    return float(tensor.detach().double().norm()) if tensor.is_floating_point() else float(tensor.sum())


def model_hash(of: dict[str, tuple[str, float, Tensor]]) -> str:
    """Of all names and tensors."""
    found = hashlib.sha256()
    for name in sorted(of):
        found.update(f"{name}={of[name][0]};".encode())
    return found.hexdigest()


def changes(
    before: dict[str, tuple[str, float, Tensor]], after: dict[str, tuple[str, float, Tensor]]
) -> tuple[TensorChange, ...]:
    """What differs between two states, whoever changed it."""
    found = []
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old is not None and new is not None and old[0] == new[0]:
            continue
        like = (new or old or ("", 0.0, torch.empty(0)))[2]
        found.append(
            TensorChange(
                name,
                tuple(like.shape),
                str(like.dtype).removeprefix("torch."),
                old[1] if old else None,
                new[1] if new else None,
                new[0] if new else "",
            )
        )
    return tuple(found)


def load(path: str | Path) -> dict[str, Any]:
    """A saved certificate, as data."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        sound = (
            found["format"] == 1 and isinstance(found["tensors"], list) and isinstance(found["after"], str)
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else repr(error)
        raise user_error(
            f"{path} cannot be read: {said}.", expected="a certificate that was saved"
        ) from error
    if not sound:
        raise user_error(f"{path} is no certificate of this version.", expected='{"format": 1, …}')
    return dict(found)
