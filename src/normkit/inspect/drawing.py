"""The residual stream of a model and its norms, as an SVG: layers that are alike are drawn once."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from normkit.inspect.graph import Graph, Residual, block_of
from normkit.inspect.sites import Site, folded

__all__ = ["draw"]

STEP, TOP, STREAM, BOX, HEIGHT = 128, 26, 96, 96, 150
INK, NORM, WORK = "#334155", "#0f766e", "#64748b"


def draw(sites: Sequence[Site], residuals: Sequence[Residual], graph: Graph) -> str:
    """From left to right: norms on the stream, sublayers above it."""
    parts: list[str] = []
    x = 30
    x = _on_stream(parts, [s for s in sites if s.place in ("stem", "after-conv") and s.branch is None], x)
    for layer, count in _layers(residuals, graph):
        start = x
        for residual in layer:
            own = [s for s in sites if _belongs(s, residual, graph)]
            x = _sublayer(parts, residual, own, x)
        if count > 1:
            parts.append(f'<text x="{(start + x) / 2}" y="{HEIGHT - 8}" fill="{WORK}">× {count}</text>')
            parts.append(f'<path d="M{start} {HEIGHT - 26} v6 H{x - 12} v-6" fill="none" stroke="{WORK}"/>')
    x = _on_stream(parts, [s for s in sites if s.place in ("final", "head")], x)
    if not residuals:
        x = _on_stream(parts, [s for s in sites if s.place in ("after-linear", "other")], x)
    line = f'<line x1="8" y1="{STREAM}" x2="{x + 10}" y2="{STREAM}" stroke="{INK}" stroke-width="2"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x + 20}" height="{HEIGHT}" '
        f'viewBox="0 0 {x + 20} {HEIGHT}" font-family="system-ui,sans-serif" font-size="11" text-anchor="middle" '
        f'role="img"><title>The residual stream and its norms</title>{line}{"".join(parts)}</svg>'
    )


def _layers(residuals: Sequence[Residual], graph: Graph) -> list[tuple[list[Residual], int]]:
    """Blocks in order, with how often one follows another of the same make."""
    blocks: dict[str, list[Residual]] = {}
    for residual in residuals:
        path = graph.nodes[residual.node].module
        blocks.setdefault(block_of(path) or f"{path}#{residual.node}", []).append(residual)
    found: list[tuple[list[Residual], int, object]] = []
    for block in blocks.values():
        make = [(r.kind, folded(graph.nodes[r.node].module)) for r in block]
        if found and found[-1][2] == make:
            found[-1] = (found[-1][0], found[-1][1] + 1, make)
        else:
            found.append((block, 1, make))
    return [(block, count) for block, count, _ in found]


def _belongs(site: Site, residual: Residual, graph: Graph) -> bool:
    n = site.nodes[0]
    if site.place == "post":
        return graph.root(graph.nodes[n].inputs[0]) in (residual.node, *residual.parts)
    inside = graph.is_between(n, residual.skip, residual.node)
    return site.place not in ("final", "head", "stem") and inside and site.branch == residual.kind


def _sublayer(parts: list[str], residual: Residual, sites: Sequence[Site], x: int) -> int:
    on_branch = [s for s in sites if s.place != "post"]
    width = max(STEP, 24 + 20 * len({s.path for s in on_branch}) + BOX)
    end = x + width - 24
    parts.append(
        f'<path d="M{x} {STREAM} V{TOP + 18} H{end} V{STREAM - 8}" fill="none" stroke="{INK}"/>'
        f'<rect x="{x + width / 2 - BOX / 2 - 10}" y="{TOP}" width="{BOX}" height="36" rx="6" fill="#fff" '
        f'stroke="{WORK}"/><text x="{x + width / 2 - 10}" y="{TOP + 22}" fill="{INK}">'
        f"{escape(residual.kind.replace('_', ' '))}</text>"
        f'<circle cx="{end}" cy="{STREAM}" r="8" fill="#fff" stroke="{INK}"/>'
        f'<text x="{end}" y="{STREAM + 4}" fill="{INK}">+</text>'
    )
    places = {"pre": (x, STREAM - 24), "out": (end, STREAM - 30), "shortcut": (x + width / 2 - 10, STREAM)}
    inner = [s for s in on_branch if s.place not in places]
    for site in on_branch:
        if site.place in places:
            _norm(parts, site, *places[site.place])
    for k, site in enumerate(inner[:4]):
        _norm(parts, site, x + width / 2 - 10 + 24 * (k - (min(len(inner), 4) - 1) / 2), TOP - 4)
    end += 24
    return _on_stream(parts, [s for s in sites if s.place == "post"], end)


def _on_stream(parts: list[str], sites: Sequence[Site], x: int) -> int:
    for site in sites:
        _norm(parts, site, x + 14, STREAM)
        x += 44
    return x


def _norm(parts: list[str], site: Site, x: float, y: float) -> None:
    says = escape(f"{site.path} · {site.name} · {site.place} · eps {site.spec.eps:g}")
    parts.append(
        f'<g><title>{says}</title><rect x="{x - 11}" y="{y - 9}" width="22" height="18" rx="5" fill="{NORM}"/>'
        f'<text x="{x}" y="{y + 4}" fill="#fff">{"LN" if site.spec.centered else "RMS"[:2]}</text></g>'
    )
