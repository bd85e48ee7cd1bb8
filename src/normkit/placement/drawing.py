"""A placement as a figure: the residual stream, what is read from it, and what is added to it."""

from __future__ import annotations

from html import escape
from pathlib import Path

from normkit.placement.rule import DepthFormula, Learned, Number, Placement
from normkit.placement.table import PLACEMENTS, PlacementLike, placement_at

__all__ = ["Drawing", "draw"]

INK, STREAM, NORM, SUBLAYER, NUMBER = "#374151", "#1d4ed8", "#fde68a", "#e5e7eb", "#ffffff"
TOP, BRANCH, GAP, HEIGHT = 46, 112, 24, 30


class Drawing(str):
    """The text of an SVG; a notebook shows it, ``save`` writes it."""

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self, encoding="utf-8")


def draw(where: PlacementLike, *, layer: int = 1, depth: int = 12, kind: str = "attention") -> Drawing:
    """The residual stream of one sublayer, as SVG.

    The stream runs along the top, past the sublayer F. Yellow boxes are norms; numbers multiply.

    Example:
        >>> draw("pre").startswith("<svg")
        True
    """
    rule = _symbolic(where, layer, depth, kind)
    boxes = [("N", NORM)] * rule.pre + _number(rule.scale) + [("F", SUBLAYER)]
    boxes += [("N", NORM)] * rule.out + _number(rule.gate)
    skip, post = _number(rule.skip), rule.post
    start, split, at = 40.0, 62.0, 62.0 + GAP
    places = []
    for label, _ in boxes:
        places.append(at + _width(label) / 2)
        at += _width(label) + GAP
    plus = max(at, split + 2 * GAP + sum(_width(label) for label, _ in skip)) + 12
    end = plus + 44 + (GAP + _width("N")) * post
    parts = [_line(start, TOP, end, TOP, STREAM, 3), _text(start - 14, TOP, "x", STREAM)]
    parts += [_path(f"M {split} {TOP} V {BRANCH} H {plus} V {TOP + 13}")]
    parts += [_box(place, BRANCH, *box) for place, box in zip(places, boxes, strict=True)]
    parts += [_box((split + plus) / 2, TOP, *box) for box in skip]
    parts.append(_plus(plus, TOP))
    if post:
        parts.append(_box(plus + 12 + GAP + _width("N") / 2, TOP, "N", NORM))
    if rule.dual:
        low = BRANCH + 44
        parts += [_line(start, low, end, low, STREAM, 3, dash=True), _text(start - 14, low, "r", STREAM)]
        parts += [_path(f"M {plus} {BRANCH} V {low - 13}"), _plus(plus, low)]
    bottom = BRANCH + 34 + (62 if rule.dual else 0)
    parts.append(_text(20, bottom, str(rule), INK, anchor="start", size=13))
    width = max(end + 30, 24 + 7.2 * len(str(rule)))
    body = "\n  ".join(parts)
    return Drawing(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {bottom + 14}" '
        f'width="{width:.0f}" height="{bottom + 14}" font-family="sans-serif" role="img">\n'
        f"  <title>{escape(str(rule))}</title>\n"
        f'  <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="context-stroke"/></marker></defs>\n'
        f"  {body}\n</svg>\n"
    )


def _symbolic(where: PlacementLike, layer: int, depth: int, kind: str) -> Placement:
    """The rule as it is written where there is one, because (2L)^1/4 says more than 2.21."""
    placement_at(where, layer, depth, kind)  # which checks it
    rule = PLACEMENTS[where].rule if isinstance(where, str) else where
    return rule if isinstance(rule, Placement) else rule(layer, depth, kind)


def _number(value: Number | Learned) -> list[tuple[str, str]]:
    if isinstance(value, Learned):
        return [("γ" if value.per_feature else "α", NUMBER)]
    if value == 1:
        return []
    return [
        (
            value.text if isinstance(value, DepthFormula) else "f(l,L)" if callable(value) else f"{value:g}",
            NUMBER,
        )
    ]


def _line(x0: float, y0: float, x1: float, y1: float, colour: str, width: float, dash: bool = False) -> str:
    dashes = ' stroke-dasharray="7 4"' if dash else ""
    return (
        f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" stroke="{colour}" stroke-width="{width}"{dashes} '
        f'marker-end="url(#tip)"/>'
    )


def _path(d: str) -> str:
    return f'<path d="{d}" fill="none" stroke="{INK}" stroke-width="1.5" marker-end="url(#tip)"/>'


def _box(x: float, y: float, label: str, colour: str) -> str:
    width = _width(label)
    return (
        f'<rect x="{x - width / 2}" y="{y - HEIGHT / 2}" width="{width}" height="{HEIGHT}" rx="6" '
        f'fill="{colour}" stroke="{INK}"/>' + _text(x, y, label, INK)
    )


def _width(label: str) -> float:
    return max(36, 14 + 8 * len(label))


def _plus(x: float, y: float) -> str:
    return f'<circle cx="{x}" cy="{y}" r="11" fill="white" stroke="{INK}"/>' + _text(x, y, "+", INK)


def _text(x: float, y: float, text: str, colour: str, anchor: str = "middle", size: int = 15) -> str:
    place = f'x="{x}" y="{y}" dy="0.35em" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}">{escape(text)}</text>'
