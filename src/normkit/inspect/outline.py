"""The order of a drawing: the streams of a model, their layers and norms, what repeats said once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from normkit.inspect.graph import Graph, Residual, block_of
from normkit.inspect.sites import Site, folded

__all__ = ["Block", "Lane", "Marks", "Run", "Stream", "Sublayer", "outline"]

LONGEST = 8  # layers that repeat together

Marks = Mapping[str, tuple[str, str]]  # path of a norm -> severity, and a word or two


@dataclass
class Lane:
    """A branch of a residual sum: its norms by place, in the order of their calls."""

    kind: str
    pre: list[Site] = field(default_factory=list)
    inner: list[Site] = field(default_factory=list)
    out: list[Site] = field(default_factory=list)


@dataclass
class Sublayer:
    """A residual sum. ``shared``: norms that all its lanes read; ``post``: norms of the sum."""

    lanes: list[Lane]
    shared: list[Site] = field(default_factory=list)
    shortcut: list[Site] = field(default_factory=list)
    post: list[Site] = field(default_factory=list)

    @property
    def sites(self) -> list[Site]:
        lanes = [s for lane in self.lanes for s in (*lane.pre, *lane.inner, *lane.out)]
        return [*self.shared, *lanes, *self.shortcut, *self.post]


@dataclass
class Block:
    """A layer, by its path; or a norm that stands on the stream between layers."""

    path: str
    first: int  # its first node
    sublayers: list[Sublayer] = field(default_factory=list)
    norm: Site | None = None
    nodes: set[int] = field(default_factory=set)  # of its sums

    def make(self, marks: Marks) -> Hashable:
        """The same for layers that are drawn alike."""
        if self.norm is not None:
            return self._said(self.norm, marks)
        return folded(self.path), tuple(
            (tuple(lane.kind for lane in s.lanes), *(self._said(site, marks) for site in s.sites))
            for s in self.sublayers
        )

    def _said(self, site: Site, marks: Marks) -> Hashable:
        place = site.place if self.norm is None else ""
        return place, folded(site.path), site.spec.kind, site.spec.eps, marks.get(site.path)


@dataclass
class Run:
    """Blocks that follow one another, so many times."""

    blocks: list[Block]
    count: int = 1

    @property
    def path(self) -> str:
        """Of one layer; of several, what they have in common: "model.layers.*"."""
        paths = [b.path for b in self.blocks if b.norm is None]
        if self.count == 1 and len(paths) == 1:
            return paths[0]
        return _common([folded(p) for p in paths])


@dataclass
class Stream:
    name: str
    runs: list[Run]

    @property
    def has_norms(self) -> bool:
        blocks = [b for run in self.runs for b in run.blocks]
        return any(b.norm is not None or any(s.sites for s in b.sublayers) for b in blocks)


def outline(sites: Sequence[Site], residuals: Sequence[Residual], graph: Graph, marks: Marks) -> list[Stream]:
    """In the order of their first sums; without any sum, one stream with all norms."""
    streams = _streams(residuals, graph)
    inside: dict[int, list[Site]] = {}
    beside: list[Site] = []
    for site in sites:
        home = _home(site, residuals, graph)
        if home is None:
            beside.append(site)
        else:
            inside.setdefault(home.node, []).append(site)
    rows = [_blocks(stream, inside, graph) for stream in streams] or [[]]
    for site in beside:
        _insert(site, rows, graph)
    found = [_folded_runs(row, marks) for row in rows]
    names = [_common([b.path for b in row if b.norm is None]) for row in rows]
    all_ = [Stream(name, runs) for name, runs in zip(names, found, strict=True)]
    return [stream for stream in all_ if stream.has_norms] or all_  # a lone sum with a mask or a position: no


def _streams(residuals: Sequence[Residual], graph: Graph) -> list[list[Residual]]:
    """An encoder's sums and a decoder's apart: a sum belongs to the stream that its skip comes from."""
    streams: list[list[Residual]] = []
    of: dict[int, list[Residual]] = {}
    for r in sorted(residuals, key=lambda r: r.node):
        start = r.skip
        if graph.nodes[start].norm is not None and graph.nodes[start].inputs:
            start = graph.root(graph.nodes[start].inputs[0])
        stream = of.get(start)
        if stream is None:
            above = [n for n in of if graph.ancestors[r.skip] >> n & 1]
            stream = of[max(above)] if above else []
        if not stream:
            streams.append(stream)
        stream.append(r)
        of.update(dict.fromkeys((r.node, *r.parts), stream))
    return streams


def _home(site: Site, residuals: Sequence[Residual], graph: Graph) -> Residual | None:
    """The sum whose sublayer it is in, or whose norm it is; None: it stands between layers."""
    n = site.nodes[0]
    if site.place == "post":
        source = graph.root(graph.nodes[n].inputs[0])
        return next((r for r in residuals if source in (r.node, *r.parts)), None)
    if site.place in ("stem", "transition", "final", "head"):
        return None
    around = [r for r in residuals if graph.is_between(n, r.skip, r.node)]
    return min(around, key=lambda r: r.node - r.skip, default=None)


def _blocks(stream: list[Residual], inside: dict[int, list[Site]], graph: Graph) -> list[Block]:
    found: dict[str, Block] = {}
    for r in stream:
        module = graph.nodes[r.node].module
        path = _layer_of(r, graph)
        block = found.setdefault(path or f"{module}#{r.node}", Block(path or module, r.node))
        block.sublayers.append(_sublayer(r, inside.get(r.node, []), graph))
        block.nodes.add(r.node)
    return list(found.values())


def _layer_of(r: Residual, graph: Graph) -> str:
    """The layer in which the sum is taken; if others take it, fused with the next norm, where the work is."""
    own = block_of(graph.nodes[r.node].module)
    work = _common(
        [
            graph.nodes[i].module
            for i in range(r.skip + 1, r.node)
            if graph.is_weighted(graph.nodes[i])
            and graph.ancestors[i] >> r.skip & 1
            and any(i == b or graph.ancestors[b] >> i & 1 for b in r.branches)
        ]
    )
    return own if own and f"{work}.".startswith(f"{own}.") else block_of(work) or own


def _sublayer(r: Residual, sites: list[Site], graph: Graph) -> Sublayer:
    branches = sorted(r.branches)
    lanes = [Lane(graph._kind(replace(r, branches=(b,)))) for b in branches] or [Lane(r.kind)]
    found = Sublayer(lanes)
    for site in sites:
        n = site.nodes[0]
        if site.place in ("post", "shortcut"):
            getattr(found, site.place).append(site)
            continue
        reading = [
            lane for lane, b in zip(lanes, branches, strict=False) if b == n or graph.ancestors[b] >> n & 1
        ] or lanes[:1]
        if len(reading) > 1 and site.place == "pre":
            found.shared.append(site)
        else:
            place = site.place if site.place in ("pre", "out") else "inner"
            getattr(reading[0], place).append(site)
    return found


def _insert(site: Site, rows: list[list[Block]], graph: Graph) -> None:
    """Behind the last layer that it follows from; or before the first that follows from it."""
    n = site.nodes[0]
    block = Block(site.path, n, norm=site)
    above = [(max(b.nodes), row) for row in rows for b in row if _all_above(b, n, graph)]
    if above:
        _, row = max(above, key=lambda pair: pair[0])
        last = max(k for k, b in enumerate(row) if b.first < n and (b.norm or _all_above(b, n, graph)))
        row.insert(last + 1, block)
        return
    below = [(b.first, row, b) for row in rows for b in row if _any_below(b, n, graph)]
    if below:
        _, row, next_one = min(below, key=lambda found: found[0])
        row.insert(row.index(next_one), block)
    else:
        rows[0].append(block)


def _all_above(block: Block, n: int, graph: Graph) -> bool:
    return bool(block.nodes) and all(graph.ancestors[n] >> m & 1 for m in block.nodes)


def _any_below(block: Block, n: int, graph: Graph) -> bool:
    return any(graph.ancestors[m] >> n & 1 for m in block.nodes)


def _folded_runs(row: list[Block], marks: Marks) -> list[Run]:
    """What repeats, once: the run that covers most of what follows, of the shortest period."""
    makes = [block.make(marks) for block in row]
    runs, at = [], 0
    while at < len(row):
        best, count = 1, 1
        for period in range(1, min(LONGEST, (len(row) - at) // 2) + 1):
            times = 1
            while makes[at + times * period : at + (times + 1) * period] == makes[at : at + period]:
                times += 1
            if times > 1 and times * period > best * count:
                best, count = period, times
        runs.append(Run(row[at : at + best], count))
        at += best * count
    return runs


def _common(paths: Sequence[str]) -> str:
    """What they all begin with: "encoder" of "encoder.a" and "encoder.b"."""
    parts = [path.split(".") for path in paths]
    same = []
    for words in zip(*parts, strict=False):
        if len(set(words)) > 1:
            break
        same.append(words[0])
    return ".".join(same)
