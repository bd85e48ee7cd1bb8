"""A rule as a small drawing: where it holds, what every seed gave, and the interval that decides."""

from __future__ import annotations

import math

from normkit.lab.rules import Rule, Ruling

__all__ = ["strip"]

WIDTH, HEIGHT, EDGE = 160, 24, 8


def strip(rule: Rule, ruling: Ruling) -> str:
    """As SVG. A ratio has a logarithmic axis, as its interval has."""
    effect = ruling.effect
    bounds = [bound for bound in (rule.above, rule.below) if bound is not None]
    ends = [end for end in (effect.low, effect.high) if end is not None]
    values = [value for value in ruling.values if math.isfinite(value)]
    shown = [*bounds, *ends, *values]
    turn = math.log if rule.log and min(shown) > 0 else float
    least, most = min(map(turn, shown)), max(map(turn, shown))
    scale = (WIDTH - 2 * EDGE) / ((most - least) or 1)

    def at(value: float) -> float:
        return round(EDGE + (turn(value) - least) * scale, 1)

    start = 0 if rule.above is None else at(rule.above)
    stop = WIDTH if rule.below is None else at(rule.below)
    middle = HEIGHT / 2
    parts = [f'<rect class="holds" x="{start}" y="0" width="{round(stop - start, 1)}" height="{HEIGHT}"/>']
    parts += [f'<line class="bound" x1="{at(b)}" x2="{at(b)}" y1="0" y2="{HEIGHT}"/>' for b in bounds]
    parts += [f'<circle class="seed" cx="{at(value)}" cy="{middle}" r="2"/>' for value in values]
    if ends:
        parts.append(
            f'<line class="interval" x1="{at(ends[0])}" x2="{at(ends[1])}" y1="{middle}" y2="{middle}"/>'
        )
    if math.isfinite(effect.mean):
        parts.append(f'<circle class="mean" cx="{at(effect.mean)}" cy="{middle}" r="4"/>')
    label = f"{rule.bound} wanted; measured {ruling.problem or effect.say(rule.unit)}"
    return (
        f'<svg class="strip" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{label.replace("<", "below").replace(">", "above")}">{"".join(parts)}</svg>'
    )
