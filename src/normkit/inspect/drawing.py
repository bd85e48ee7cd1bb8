"""The residual stream of a model and its norms, as an SVG: layers that are alike are drawn once.

The stream runs down on the left; sublayers leave it, and come back to a sum. Lines and letters have the
colour of the text around the drawing, so it suits a light page and a dark one.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from normkit.inspect.graph import Graph, Residual
from normkit.inspect.outline import Marks, Run, Stream, Sublayer, outline
from normkit.inspect.sites import Site, folded

__all__ = ["draw", "shown"]

WIDTH, STREAM, LANE, SECOND, RIGHT = 360, 30, 88, 58, 350  # where things stand, from the left
ROW, PILL = 24, 17  # heights
MOST = 60  # runs of a stream; a model with more kinds of layers is cut off, and says so
COLOURS = {"info": "#0f766e", "warning": "#9a5b00", "error": "#b42318"}
SHORT = {"batch": "BN", "instance": "IN", "group": "GN", "layer": "LN", "rms": "RMS"}
FIXED = "ui-monospace,Menlo,DejaVu Sans Mono,monospace"
LETTER = 6.65  # the width of one of it


def draw(
    sites: Sequence[Site], residuals: Sequence[Residual], graph: Graph, marks: Marks | None = None
) -> str:
    """``marks``: path of a norm -> a severity, which gives its colour, and a few words beside its name."""
    canvas = _Canvas(marks or {})
    streams = [s for s in outline(sites, residuals, graph, canvas.marks) if s.runs]
    for stream in streams:
        _stream(canvas, stream, is_named=len(streams) > 1)
    if not streams:
        canvas.text(10, canvas.y, "no norm, and no residual sum")
        canvas.y += ROW
    height = round(canvas.y + 4)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="system-ui,sans-serif" font-size="12" '
        f'fill="currentColor" role="img">'
        f"<title>The residual stream and its norms</title>{''.join(canvas.parts)}</svg>"
    )


def shown(words: str) -> str:
    """Anyone's words as text in HTML or SVG; what cannot be seen, or turns a line around, as one types it.

    Example:
        >>> print(shown("<b>bold"), shown("\\x1b[31mred"))
        &lt;b&gt;bold \\x1b[31mred
    """
    return escape(_visible(words))


def _visible(words: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in words)


class _Canvas:
    def __init__(self, marks: Marks) -> None:
        self.parts: list[str] = []
        self.marks = marks
        self.y = 14.0
        self.drawn = 0.0  # how far down the line of the stream has come

    def line(self, d: str, width: float = 1.2) -> None:
        self.parts.append(
            f'<path d="{d}" fill="none" stroke="currentColor" stroke-opacity=".7" stroke-width="{width}"/>'
        )

    def text(self, x: float, y: float, words: str, more: str = "") -> None:
        self.parts.append(f'<text x="{x}" y="{y}" dy=".35em" {more}>{shown(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, strength: float) -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width:.0f}" height="{height}" rx="7" fill="currentColor" '
            f'fill-opacity="{strength}" stroke="currentColor" stroke-opacity="{4 * strength}"/>'
        )

    def stream(self, until: float) -> None:
        """The stream's own line, down to here."""
        if until > self.drawn:
            self.line(f"M{STREAM} {self.drawn}V{until}", 2)
        self.drawn = until

    def norm(self, site: Site, x: float, y: float, label: str, room: float) -> None:
        """A pill, its name to the right, and all about it when it is pointed at."""
        severity, words = self.marks.get(site.path, ("", ""))
        label = _visible(label)
        says = " · ".join(filter(None, (site.path, site.name, site.place, f"eps {site.spec.eps:g}", words)))
        fits = int((room - 22) / LETTER)
        words = f"  {words}"[:fits] if words else ""
        self.parts.append(
            f'<g><title>{shown(says)}</title><rect x="{x - 17}" y="{y - PILL / 2}" width="34" '
            f'height="{PILL}" rx="5" fill="{COLOURS.get(severity, COLOURS["info"])}"/>'
        )
        short = SHORT.get(site.spec.kind, "N")
        self.text(x, y, short, 'fill="#fff" font-size="10" font-weight="600" text-anchor="middle"')
        if fits > 0:
            style = f'font-family="{FIXED}" font-size="11"'
            self.text(x + 23, y, _cut(label, fits - len(words)), style)
        if words:
            gone = min(len(label), fits - len(words)) * LETTER
            self.text(x + 23 + gone, y, words.strip(), f'{style} font-weight="700" dx="{2 * LETTER}"')
        self.parts.append("</g>")


def _stream(canvas: _Canvas, stream: Stream, *, is_named: bool) -> None:
    if is_named and stream.name:
        canvas.text(10, canvas.y, stream.name, 'font-weight="600"')
        canvas.y += 14
    canvas.drawn = canvas.y
    canvas.y += 10
    for run in stream.runs[:MOST]:
        _run(canvas, run)
    left = sum(run.count * len(run.blocks) for run in stream.runs[MOST:])
    if left:
        canvas.y += 6
        canvas.text(STREAM + 16, canvas.y, f"… and {left} more layers of other kinds")
        canvas.y += 10
    end = canvas.y + 8
    canvas.stream(end)
    canvas.line(f"M{STREAM - 5} {end - 6}L{STREAM} {end}L{STREAM + 5} {end - 6}", 2)
    canvas.y = end + 20


def _run(canvas: _Canvas, run: Run) -> None:
    """Layers in a frame, with their path and how often they come."""
    times = f"× {run.count}" if run.count > 1 else ""
    if run.blocks[0].norm is not None and len(run.blocks) == 1:
        path = run.blocks[0].path
        _on_stream(canvas, run.blocks[0].norm, f"{folded(path)}  {times}" if times else path)
        return
    top, first = canvas.y, len(canvas.parts)
    is_framed = bool(times or run.path)
    if is_framed:
        canvas.y += 14
        canvas.text(STREAM + 16, canvas.y, _cut(run.path, 42), 'font-size="11" opacity=".75"')
        canvas.text(RIGHT - 8, canvas.y, times, 'font-weight="700" text-anchor="end"')
        canvas.y += 14
    for block in run.blocks:
        if block.norm is not None:
            _on_stream(canvas, block.norm, folded(block.path) if times else block.path)
        for sublayer in block.sublayers:
            _sublayer(canvas, sublayer, block.path)
            for site in sublayer.post:
                label = _tail(site, block.path)
                _on_stream(canvas, site, folded(label) if times and label == site.path else label)
        canvas.y += 4
    if is_framed:
        canvas.box(6, top, RIGHT - 6, canvas.y - top, 0.05)
        canvas.parts.insert(first, canvas.parts.pop())  # behind what stands in it
        canvas.y += 8


def _on_stream(canvas: _Canvas, site: Site, label: str) -> None:
    y = canvas.y + ROW / 2
    canvas.stream(y - PILL / 2)
    canvas.norm(site, STREAM, y, label, RIGHT - STREAM - 8)
    canvas.drawn = y + PILL / 2
    canvas.y += ROW + 2


def _sublayer(canvas: _Canvas, sublayer: Sublayer, path: str) -> None:
    """Lanes that leave the stream at one point, and the sums in which they end."""
    leave = canvas.y + 4
    at, canvas.y = leave, leave + 10
    x = STREAM
    for site in sublayer.shared:
        canvas.y += 6
        canvas.line(f"M{x} {at}H{LANE}V{canvas.y}" if x != LANE else f"M{x} {at}V{canvas.y}")
        canvas.norm(site, LANE, canvas.y, _tail(site, path), RIGHT - LANE - 8)
        x, at, canvas.y = LANE, canvas.y + PILL / 2, canvas.y + PILL
    for k, lane in enumerate(sublayer.lanes):
        if k == 0:
            start = f"M{x} {at}H{LANE}V" if x != LANE else f"M{x} {at}V"
        else:  # it reads what the first lane reads, and passes it on the inside
            turn = at if x != LANE else at + 4
            start = f"M{x} {turn}H{SECOND}V{canvas.y}H{LANE}V"
            canvas.y += 8
        for site in lane.pre:
            canvas.y += 6
            canvas.line(f"{start}{canvas.y}")
            canvas.norm(site, LANE, canvas.y, _tail(site, path), RIGHT - LANE - 8)
            canvas.y += PILL / 2
            start, canvas.y = f"M{LANE} {canvas.y}V", canvas.y + 8
        top = canvas.y
        canvas.line(f"{start}{top}")
        _work(canvas, lane.kind.replace("_", "-"), lane.inner, path)
        if k == 0:
            _on_shortcut(canvas, sublayer, (top + canvas.y) / 2)
        below = canvas.y
        for site in lane.out:
            canvas.y += 16
            canvas.line(f"M{LANE} {below}V{canvas.y}")
            canvas.norm(site, LANE, canvas.y, _tail(site, path), RIGHT - LANE - 8)
            below = canvas.y = canvas.y + PILL / 2
        canvas.y += 12
        canvas.line(f"M{LANE} {below}V{canvas.y}H{STREAM + 9}")
        _plus(canvas)
        canvas.y += 14


def _work(canvas: _Canvas, name: str, inner: Sequence[Site], path: str) -> None:
    """What the sublayer does, with the norms inside of it."""
    labels = [_tail(site, path) for site in inner]
    marked = [len(canvas.marks.get(site.path, ("", ""))[1]) for site in inner]
    widest = max((len(label) + 3 + more for label, more in zip(labels, marked, strict=True)), default=0)
    width = min(RIGHT - 8 - (LANE - 17), max(110, 52 + widest * LETTER))
    height = ROW + len(inner) * 21 + (3 if inner else 0)
    canvas.box(LANE - 17, canvas.y, width, height, 0.1)
    canvas.text(LANE - 7, canvas.y + ROW / 2, name)
    for k, (site, label) in enumerate(zip(inner, labels, strict=True)):
        canvas.norm(site, LANE + 9, canvas.y + ROW + 9 + 21 * k, label, width - 30)
    canvas.y += height


def _on_shortcut(canvas: _Canvas, sublayer: Sublayer, y: float) -> None:
    for k, site in enumerate(sublayer.shortcut):
        at = y + 20 * (k - (len(sublayer.shortcut) - 1) / 2)
        canvas.stream(at - PILL / 2)
        canvas.norm(site, STREAM, at, "", 0)
        canvas.drawn = at + PILL / 2


def _plus(canvas: _Canvas) -> None:
    y = canvas.y
    canvas.stream(y - 8)
    canvas.parts.append(
        f'<circle cx="{STREAM}" cy="{y}" r="8" fill="none" stroke="currentColor" stroke-width="1.4"/>'
    )
    canvas.line(f"M{STREAM - 4} {y}H{STREAM + 4}M{STREAM} {y - 4}V{y + 4}", 1.6)
    canvas.drawn = y + 8


def _tail(site: Site, block: str) -> str:
    """Its path, from the layer on."""
    path = site.path
    return path[len(block) + 1 :] if block and path.startswith((f"{block}.", f"{block}:")) else path


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else "…" + text[len(text) - room + 1 :]
