"""What would get an answer: more steps, other learning rates, and the command that asks for them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from normkit.lab.arms import Arm

__all__ = ["EDGES", "around", "changed", "last_step", "slope_of", "steps_to", "wider"]

EDGES = ("largest", "smallest")  # of the learning rates that were tried
DECADE = 10.0
FLATTENS = 1.3  # a curve falls ever more slowly, on this scale too
FURTHEST = 30  # times the steps so far; beyond, nobody should trust a line through two points


def last_step(arm: Arm) -> int:
    return arm.validation[-1][0] if arm.validation else 100


def steps_to(arm: Arm, floor: float) -> int | None:
    """Where the curve would be below, if it goes on to fall as it did in the last half, by the logarithm of
    the steps; None if it does not fall, or only in another world."""
    slope = slope_of(arm)
    if slope <= 0.0 or math.isinf(floor):
        return None
    last, low = arm.validation[-1]
    target = floor - 0.02 * abs(floor)
    growth = max(0.3, FLATTENS * (low - target) / slope)
    return None if growth > math.log(FURTHEST) else _round(last * math.exp(growth))


def slope_of(arm: Arm) -> float:
    """By how much the curve falls in its last half, for each e-fold of the steps; 0 if it is flat."""
    curve = arm.validation
    if len(curve) < 3:
        return 0.0
    (first, high), (last, low) = curve[len(curve) // 2 - 1], curve[-1]
    slope = (high - low) / math.log(last / first) if last > first else 0.0
    return slope if slope > 0.002 * abs(low) else 0.0


def _round(steps: float) -> int:
    """Upwards, two digits."""
    power = 10 ** max(0, math.floor(math.log10(steps)) - 1)
    return int(math.ceil(steps / power) * power)


def around(rate: float) -> str:
    """Two smaller and two larger rates beside one.

    Example:
        >>> around(0.001)
        '0.0001,0.000316,0.001,0.00316,0.01'
    """
    return ",".join(repr(float(f"{rate * 10 ** (k / 2):.3g}") if k else rate) for k in range(-2, 3))


def wider(arms: Sequence[Arm], *sides: str) -> str:
    """A range with all the rates that are done, and two more on each side named, as far apart as the last:
    at most ``DECADE``, as next to rates that are worlds apart a third would be in another.

    Args:
        sides: of ``EDGES``.
    """
    rates = sorted({rate for arm in arms for rate in arm.tried})
    steps = (rates[1] / rates[0], rates[-1] / rates[-2]) if len(rates) > 1 else (10**0.5, 10**0.5)
    steps = (min(steps[0], DECADE), min(steps[1], DECADE))
    above = [rates[-1] * steps[1] ** k for k in (1, 2)] if "largest" in sides else []
    below = [rates[0] / steps[0] ** k for k in (2, 1)] if "smallest" in sides else []
    known = [*(float(f"{rate:.3g}") for rate in below), *rates, *(float(f"{rate:.3g}") for rate in above)]
    return ",".join(repr(rate).removesuffix(".0") for rate in known)  # to the last digit: keys are of it


def changed(command: str, change: Mapping[str, Any]) -> str:
    """The same command with other settings.

    Example:
        >>> changed("normkit compare --steps 100 --norm rms", {"steps": 300})
        'normkit compare --norm rms --steps 300'
        >>> changed("normkit.lab.compare(task='text', steps=100)", {"steps": 300})
        "normkit.lab.compare(task='text', steps=300)"
        >>> changed("normkit compare --budget 4m", {"budget": None, "steps": 400, "prune": True})
        'normkit compare --steps 400 --prune'
    """
    if command.endswith(")"):
        called, _, rest = command.partition("(")
        given = {part.partition("=")[0].strip(): part for part in _arguments(rest[:-1])}
        for name, value in change.items():
            given.pop(name, None)
            given |= {} if value is None else {name: f"{name}={value!r}"}
        return f"{called}({', '.join(given.values())})"
    words = shlex.split(command)
    for name, value in change.items():
        flag = f"--{name.replace('_', '-')}"
        for place in reversed([k for k, word in enumerate(words) if word.partition("=")[0] == flag]):
            alone = value is True or "=" in words[place]
            del words[place : place + (1 if alone else 2)]
        words += [] if value is None else [flag] if value is True else [flag, str(value)]
    return shlex.join(words)


def _arguments(text: str) -> list[str]:
    """Of a call, as they are written: the commas in their own brackets and strings do not count."""
    found, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += (letter in "([{") - (letter in ")]}") if not quote else 0
        if letter == "," and not depth and not quote:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found if part.strip()]
