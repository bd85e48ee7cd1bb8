"""One run of a comparison: everything that decides its numbers, as one value."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normkit import checks, kernels
from normkit._version import __version__
from normkit.errors import user_error
from normkit.lab import own
from normkit.lab.devices import check_name
from normkit.lab.task import Task, find, imported, loaded_defaults, source_of
from normkit.placement.norm_factory import NORMS, NormFactory, make_norm
from normkit.placement.table import PLACEMENTS, PlacementLike
from normkit.transformer.description import short

__all__ = ["SCHEDULES", "Run", "code_version"]

SCHEDULES = ("constant", "cosine")
# The parts of normkit that decide numbers; a change to any of them makes earlier runs another version's.
_DECIDING = (
    "functional.py",
    "kernels",
    "norms",
    "pattern.py",
    "placement",
    "torch_semantics.py",
    "transformer",
)
_DECIDING_LAB = (
    *("causality.py", "devices.py", "judging.py", "measuring.py", "run.py", "task.py", "tasks"),
    "training.py",
)


@dataclass(frozen=True)
class Run:
    """What is trained, how, and on what.

    Args:
        task: "text", "digits", "lines", "stream", "series", or ``package.module:Class``.
        options: the fields of the task, as pairs.
        norm, placement: names, or ``package.module:name`` of one's own.
        lr: the learning rate, after ``warmup`` steps in which it rises in a line.
        depth, width: layers, and features of the residual stream.
        batch_size: rows a step.
        steps: how long to train; ``until`` stops earlier on the same schedule.
        schedule: "constant", or "cosine", which falls to a tenth.
        seed: of the weights, of the data's order, and of what is kept apart.
        device: where it is trained: "cpu", "cuda", "cuda:1", "mps".
    """

    task: str = "text"
    options: tuple[tuple[str, Any], ...] = ()
    norm: str = "layer"
    placement: str = "pre"
    lr: float = 1e-3
    depth: int = 6
    width: int = 64
    batch_size: int = 16
    warmup: int = 0
    steps: int = 100
    schedule: str = "constant"
    seed: int = 0
    until: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if ":" not in self.norm and not own.is_object(self.norm):
            checks.one_of(self.norm, [*NORMS, *MORE_NORMS], what="norm=")
        if ":" not in self.placement and not own.is_object(self.placement):
            checks.one_of(self.placement, PLACEMENTS, what="placement=")
        checks.one_of(self.schedule, SCHEDULES, what="schedule=")
        for name, least in (("depth", 1), ("width", 1), ("batch_size", 1), ("warmup", 0), ("steps", 1)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value < 2**63:
                raise user_error(f"{name}= got {short(value)}.", expected=f"an integer of at least {least}")
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise user_error(f"seed= got {short(self.seed)}.", expected="an integer from 0 to 2^63 - 1")
        check_name(self.device)
        if not (isinstance(self.lr, float) and 0 < self.lr < float("inf")):
            raise user_error(f"lr= got {self.lr!r}.", expected="a number above 0, for example 1e-3")

    @property
    def last(self) -> int:
        """The step at which training ends."""
        return self.steps if self.until is None else min(self.until, self.steps)

    @property
    def norm_factory(self) -> NormFactory:
        factory: NormFactory = _part(self.norm, "norm")
        return factory

    def make_norm(self, dim: int) -> nn.Module:
        """A new norm of ``dim`` features, for a model that is not made of normkit's blocks.

        Example:
            >>> Run(norm="rms").make_norm(8)
            RMSNorm((8,), eps=1e-06, elementwise_affine=True)
        """
        return make_norm(self.norm_factory, dim)

    @property
    def placement_rule(self) -> PlacementLike:
        rule: PlacementLike = _part(self.placement, "placement")
        return rule

    def build_task(self) -> Task:
        return find(self.task, dict(self.options))

    def config(self) -> dict[str, Any]:
        """As plain data: what is stored."""
        return {**dataclasses.asdict(self), "options": dict(self.options)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Run:
        return cls(**{**config, "options": tuple(sorted(config["options"].items()))})

    def key(self, data: str) -> str:
        """What the run is known by: a hash of its configuration, its data and the code."""
        return self.key_with(data, self.code)

    def key_with(self, data: str, code: str) -> str:
        """The same for any code, which is not looked at: a stored run can be checked against its key."""
        config = self.config()
        config["options"].pop("data", None)  # where the data lie does not matter; what they are, does
        config["device"] = config["device"].partition(":")[0]  # nor which one of its kind
        text = json.dumps([config, data, code], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def code(self) -> str:
        """The version of all code that decides its numbers, a user's own modules included."""
        text = "".join(source_of(name) for name in (self.task, self.norm, self.placement))
        mark = f", own code {hashlib.sha256(text.encode()).hexdigest()[:12]}" if text else ""
        return code_version() + mark

    def value(self, name: str) -> Any:
        """Of an axis: a field of the task, or of the run. Nothing else: a property may import what it names,
        and the axes of a stored comparison may be anyone's words."""
        known = {**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}, **dict(self.options)}
        checks.one_of(name, known, what="an axis:")
        return known[name]

    @property
    def label(self) -> str:
        """In few letters, for a bar."""
        return f"{own.short_name(self.norm)} {own.short_name(self.placement)} {self.lr:.2g}"

    def __str__(self) -> str:
        usual = loaded_defaults(self.task)
        sizes = ("depth", "width", "batch_size", "warmup")
        extra = [
            f"{n} {getattr(self, n)}" for n in sizes if getattr(self, n) != usual.get(n, getattr(Run, n))
        ]
        extra += [f"{name} {value}" for name, value in self.options if name != "data"]
        names = (own.short_name(name) for name in (self.norm, self.placement))
        return ", ".join([*names, f"lr {self.lr:.3g}", *extra, f"seed {self.seed}"])


def _part(name: str, what: str) -> Any:
    """What a name stands for; that of a part of normkit is enough."""
    if own.is_object(name):
        return own.get(name)
    return imported(name, what=what) if ":" in name else name


# Norms that are for images only, beside those of a Transformer.
MORE_NORMS = ("group", "instance")


@functools.cache
def code_version() -> str:
    """Of all that decides the numbers: normkit and its sources, and torch."""
    root = Path(__file__).parent.parent
    parts = [*(root / part for part in _DECIDING), *(root / "lab" / part for part in _DECIDING_LAB)]
    found = (f for part in parts for f in ([part] if part.is_file() else part.rglob("*")))
    files = sorted(f for f in found if f.suffix in (".py", ".so", ".pyd"))
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:12]
    return f"normkit {__version__}+{digest}, {kernels.isa() or 'no'} kernels, torch {torch.__version__}"
