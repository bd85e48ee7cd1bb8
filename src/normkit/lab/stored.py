"""What a folder holds, read with suspicion: disks fail, and folders come from anywhere.

Every function gives what was stored, or raises ``NormkitError`` with the reason in a few words.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

from normkit.errors import NormkitError
from normkit.lab.design import Cell
from normkit.lab.measuring import ENDINGS, Outcome
from normkit.lab.run import Run
from normkit.transformer.description import short

__all__ = ["check_about", "stored_keys", "stored_outcome", "stored_run", "stored_table"]

Check = Callable[[Any], bool]
LARGEST = 2**63  # what every reader of ours can count to


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    """Any, infinity and NaN included: a task may give such a metric."""
    return isinstance(value, float) or _integer(value)


def _integer(value: Any) -> bool:
    return type(value) is int and -LARGEST <= value < LARGEST


def _amount(value: Any) -> bool:
    """Finite, not negative."""
    return _number(value) and 0 <= value < float("inf")


def _finite(value: Any) -> bool:
    return _number(value) and abs(value) < float("inf")


def _plain(value: Any) -> bool:
    """What a field of a task can be."""
    return isinstance(value, str | bool) or _number(value)


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _table(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _curve(value: Any) -> bool:
    return _list(
        lambda pair: (
            isinstance(pair, list) and len(pair) == 2 and _amount(pair[0]) and _maybe(_finite)(pair[1])
        )
    )(value)


_OUTCOME: dict[str, Check] = {
    "status": lambda value: value in tuple(ENDINGS),
    **dict.fromkeys(("best_loss", "final_loss"), _maybe(_finite)),
    "judged": _list(_finite),
    "baselines": _table(_finite),
    **dict.fromkeys(("floor", "leak"), _maybe(_finite)),
    **dict.fromkeys(("steps", "parameters", "threads"), lambda value: _integer(value) and value >= 0),
    **dict.fromkeys(("curve", "validation"), _curve),
    "by_depth": _table(_table(_list(_maybe(_amount)))),
    "metrics": _table(_number),
    **dict.fromkeys(("seconds", "step_ms", "units_per_second"), _amount),
    "peak_mb": _maybe(_amount),
    "device": _text,
    "error": _maybe(_text),
}
_RUN: dict[str, Check] = {
    **dict.fromkeys(("task", "norm", "placement", "schedule", "device"), _text),
    "options": _table(_plain),
    "lr": _finite,
    **dict.fromkeys(("depth", "width", "batch_size", "warmup", "steps", "seed"), _integer),
    "until": _maybe(lambda value: _integer(value) and value >= 1),
}
_CELL: dict[str, Check] = {"study": _text, "settings": lambda v: isinstance(v, dict), "seed": _integer}
_ABOUT: dict[str, Check] = {
    **dict.fromkeys(("command", "task", "title", "loss_name", "unit", "code", "engine", "started"), _text),
    **dict.fromkeys(("source", "data", "problem"), _list(_text)),
    "axes": _table(_list(_plain)),
    "common": _table(_plain),
    **dict.fromkeys(("runs", "workers", "full_steps"), lambda value: _integer(value) and value >= 0),
    "machine": _table(_maybe(_plain)),
    "prune": _maybe(_list(_amount)),
    "budget": _maybe(_amount),
    "asked": _text,
    "planned": _maybe(_table(lambda value: _integer(value) or _list(_amount)(value))),
}
_ABOUT_TOO: dict[str, Check] = {"finished": _text, "seconds": _amount, "copied": _amount}


def check_about(found: dict[str, Any]) -> None:
    """Is it what a comparison says of itself?"""
    if "studies" in found:
        raise NormkitError("it is about studies, not about a comparison")
    _checked(found, _ABOUT, _ABOUT_TOO)


def stored_table(text: Any) -> dict[str, Any]:
    found: dict[str, Any] = _read(text)
    if not isinstance(found, dict):
        raise NormkitError(f"it is a {type(found).__name__}, and no table")
    return found


def stored_keys(text: Any) -> list[str]:
    found: list[str] = _read(text)
    if not _list(_text)(found):
        raise NormkitError("its keys are no list of texts")
    return found


def stored_run(text: Any, key: str, data: Any, code: Any) -> Run | Cell:
    """A run, which must be the one that its key was made from."""
    found = _read(text)
    if isinstance(found, dict) and "study" in found:
        return Cell.from_config(_checked(found, _CELL))
    run = Run.from_config(_checked(found, _RUN))
    if re.fullmatch("[0-9a-f]{32}", key) and key != run.key_with(str(data), str(code)):
        raise NormkitError("its settings do not belong to its key")
    return run


def stored_outcome(text: Any) -> Outcome:
    return Outcome(**_checked(_read(text), _OUTCOME))


def _read(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise NormkitError(f"it is not JSON ({type(error).__name__})") from None


def _checked(found: Any, needed: dict[str, Check], free: dict[str, Check] | None = None) -> dict[str, Any]:
    """A table with everything that is needed, and nothing that is not known."""
    if not isinstance(found, dict):
        raise NormkitError(f"it is a {type(found).__name__}, and no table")
    known = {**needed, **(free or {})}
    for name in (*needed, *found):
        if name not in found:
            raise NormkitError(f"it has no {name}")
        if name not in known:
            raise NormkitError(f"it has {name!r}, which this version of normkit does not know")
        if not known[name](found[name]):
            raise NormkitError(f"its {name} is {short(found[name])}")
    return found


# Whoever adds a field to one of these has to say here what it may be.
assert set(_OUTCOME) == {f.name for f in dataclasses.fields(Outcome)}
assert set(_RUN) == {f.name for f in dataclasses.fields(Run)}
