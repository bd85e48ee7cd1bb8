"""From what a user asks for to a list of runs: axes, ranges, files of settings."""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
import os
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normkit import checks
from normkit.errors import user_error
from normkit.lab import own
from normkit.lab.run import Run
from normkit.lab.task import Task, task_class
from normkit.transformer.description import short

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Plan", "check_warm_up", "make_plan", "read_toml", "values"]

NUMBERS = {"lr": float, "depth": int, "width": int, "batch_size": int, "warmup": int, "steps": int}
NON_AXES = ("task", "data", "seeds", "steps", "schedule", "device", "budget")  # settings that are not axes
MAX_RUNS = 100_000  # runs of one comparison, and values of one axis
LARGEST = 2**63  # what torch can count to
KEYS = (*NON_AXES, "norm", "placement", *(n for n in NUMBERS if n not in NON_AXES), "set")


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison, and what they have in common.

    ``axes`` has the values of everything that varies.
    """

    runs: tuple[Run, ...]
    axes: dict[str, tuple[Any, ...]]

    @property
    def steps(self) -> int:
        return sum(run.last for run in self.runs)


def make_plan(settings: Mapping[str, Any]) -> Plan:
    """Every combination of the values of all axes.

    Seeds change last: whenever a sweep is stopped, every arm has been seen about as often as any other.
    """
    for name in settings:
        checks.one_of(name, KEYS, what="a comparison's settings:")
    given = {key: _named(value, key) for key, value in settings.items() if value is not None}
    name = given.get("task", "text")
    cls = task_class(name)
    chosen = {**cls.defaults, **given}
    axes: dict[str, tuple[Any, ...]] = {}
    for axis in ("norm", "placement"):
        axes[axis] = values(chosen.get(axis, getattr(Run, axis)), str, axis)
    for axis, kind in NUMBERS.items():
        axes[axis] = values(chosen.get(axis, getattr(Run, axis)), kind, axis)
    if not isinstance(given.get("set", {}), Mapping):
        raise user_error(f"set= got {short(given['set'])}.", expected="fields of the task, with their values")
    fields = {**cls.defaults.get("set", {}), **given.get("set", {})}
    if "data" in given:
        fields["data"] = given["data"]
    options = _options(name, cls, fields)
    schedule = chosen.get("schedule", Run.schedule)
    seeds = _seeds(chosen.get("seeds", 3))
    count = math.prod(map(len, (*axes.values(), *options.values(), seeds)))
    if count > MAX_RUNS:
        raise user_error(
            f"The comparison has {count:,} runs.",
            expected=f"at most {MAX_RUNS:,}: fewer values, or fewer axes",
        )
    device = given.get("device", Run.device)
    runs = [
        Run(
            task=name,
            device=device,
            options=tuple(sorted(zip(options, combination[len(axes) :], strict=True))),
            schedule=schedule,
            seed=seed,
            **dict(zip(axes, combination[: len(axes)], strict=True)),
        )
        for seed in seeds
        for combination in itertools.product(*axes.values(), *options.values())
    ]
    varied = {k: v for k, v in {**axes, **options, "seed": tuple(seeds)}.items() if len(v) > 1}
    return Plan(tuple(runs), varied)


def check_warm_up(runs: Sequence[Run]) -> None:
    """Does it end before the run does?"""
    for run in runs:
        if run.warmup > run.steps:
            raise user_error(
                f"warmup got {run.warmup:,}, and a run has {run.steps:,} steps.",
                expected="a warm-up that ends before the run does",
                fix=f"--warmup {run.steps // 10}, or more steps, or a larger budget.",
            )


def _named(value: Any, key: str) -> Any:
    """Norms, placements and tasks that are objects get names."""
    if key not in ("task", "norm", "placement"):
        return value
    if isinstance(value, list | tuple) and key != "task":
        return [own.name_of(part, key) for part in value]
    return own.name_of(value, key)


def values(given: Any, kind: type, what: str) -> tuple[Any, ...]:
    """Several values of one axis: a list, or a string of values and ranges with commas between them.

    Example:
        >>> values("1e-3:1e-1:3", float, "lr")
        (0.001, 0.01, 0.1)
        >>> values("layer,rms", str, "norm")
        ('layer', 'rms')
        >>> values([2, 4], int, "depth")
        (2, 4)
    """
    parts = given.split(",") if isinstance(given, str) else given
    if isinstance(parts, str) or not isinstance(parts, Sequence):
        parts = [parts]
    found: list[Any] = []
    for part in parts:
        ranged = isinstance(part, str) and ":" in part and kind in (int, float)
        found += _range(part, kind, what) if ranged else [_one(part, kind, what)]
        if len(found) > MAX_RUNS:
            raise user_error(f"{what} got more than {MAX_RUNS:,} values.", expected=f"at most {MAX_RUNS:,}")
    if not found:
        raise user_error(f"{what} got no value.", expected="at least one")
    return tuple(dict.fromkeys(found))


def _range(text: str, kind: type, what: str) -> list[Any]:
    try:
        first, last, count = text.split(":")
        low, high, points = float(first), float(last), int(count)
        if not (0 < low < high < math.inf and high / low < math.inf and points >= 2):
            raise ValueError
    except ValueError:
        raise user_error(
            f"{what} got {short(text)}, which is not a range.",
            expected="first:last:count, 0 < first < last, at least two values, evenly spaced in logarithm",
            fix="for example 1e-3:1e-1:5",
        ) from None
    if points > MAX_RUNS:
        raise user_error(f"{what} got {short(text)}.", expected=f"at most {MAX_RUNS:,} values")
    steps = [low * (high / low) ** (k / (points - 1)) for k in range(points)]
    return [kind(float(f"{v:.3g}")) if kind is float else round(v) for v in steps]


def _one(value: Any, kind: type, what: str) -> Any:
    text = value.strip() if isinstance(value, str) else value
    try:
        if kind is bool and isinstance(text, str):
            return {"true": True, "false": False, "yes": True, "no": False}[text.lower()]
        if kind is int and (isinstance(text, bool) or (isinstance(text, float) and not text.is_integer())):
            raise ValueError
        if kind is str and (not isinstance(text, str) or not text):
            raise ValueError
        found = kind(text)
        if (kind is float and not math.isfinite(found)) or (kind is int and abs(found) >= LARGEST):
            raise ValueError
        return found
    except (ValueError, TypeError, KeyError, OverflowError):
        names = {int: "integers", float: "numbers", bool: "true or false", str: "names"}
        raise user_error(
            f"{what} got {short(value)}.",
            expected=f"{names.get(kind, kind.__name__)}, with commas between them"
            + (", or a range first:last:count" if kind in (int, float) else ""),
        ) from None


def _seeds(given: Any) -> list[int]:
    """A number of seeds, or the seeds themselves."""
    if isinstance(given, str) and "," not in given:
        given = _one(given, int, "seeds")
    if isinstance(given, numbers.Real) and not isinstance(given, bool):
        given = _one(given, int, "seeds")
        if not 1 <= given <= MAX_RUNS:
            raise user_error(
                f"seeds got {short(given)}.", expected="at least 1; from 3 on there are intervals"
            )
        return list(range(given))
    return list(values(given, int, "seeds"))


def _options(name: str, cls: type[Task], given: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The fields of a task that were set, with their values."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    options: dict[str, tuple[Any, ...]] = {}
    for field, value in given.items():
        if field == "data" and "data" not in fields:
            raise user_error(f"The task {name} takes no data.", expected="its own, without --data")
        checks.one_of(field, fields, what=f"task {name}, a field:")
        kinds = [k for k in (typing.get_args(hints[field]) or (hints[field],)) if k is not type(None)]
        kind = kinds[0] if kinds and kinds[0] in (int, float, bool, str) else str
        if field in {f.name for f in dataclasses.fields(Run)}:
            raise user_error(
                f"The task {name} has a field {field!r}.",
                expected="other names than those that every run has",
            )
        if field == "data":
            if not isinstance(value, str) or not value.strip():
                raise user_error(
                    f"data got {short(value)}.", expected="a file, a folder, or a glob in quotes"
                )
            options[field] = (os.path.abspath(os.path.expanduser(value)),)
        else:
            options[field] = values(value, kind, field)
    return options


def read_toml(path: str | Path) -> dict[str, Any]:
    """The settings in a file; ``[set]`` holds the fields of the task."""
    try:
        text = Path(path).read_bytes().decode()
        found: dict[str, Any] = tomllib.loads(text)
    except OSError as error:
        raise user_error(f"{path} cannot be read: {error.strerror}.", expected="a TOML file") from error
    except UnicodeDecodeError as error:
        raise user_error(f"{path} is not text.", expected="a TOML file in UTF-8") from error
    except RecursionError as error:
        raise user_error(f"{path} is nested too deeply.", expected="lists of values") from error
    except ValueError as error:  # TOMLDecodeError is one, and so is that of a number with too many digits
        raise user_error(
            f"{path} is not TOML: {short(error, str)}.",
            expected='lines like  lr = "1e-3:1e-1:5"  or  norm = ["rms"]',
        ) from error
    for key in found:
        checks.one_of(key, KEYS, what=f"{path}, a setting:")
    return found
