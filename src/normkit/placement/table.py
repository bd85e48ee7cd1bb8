"""The named placements: one row of data each, with its source and the released models that use it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from normkit import checks
from normkit.errors import user_error
from normkit.placement.rule import By, Learned, Placement

__all__ = ["KINDS", "PLACEMENTS", "Anywhere", "Named", "placement_at", "sides"]

# What a sublayer is: a function of (layer, depth, kind) may give each kind a placement of its own.
KINDS = ("attention", "cross_attention", "feed_forward")
Anywhere = str | Placement | Callable[[int, int, str], Placement]


@dataclass(frozen=True)
class Named:
    """A placement with its name. ``sides`` gives those of an encoder and of a decoder for their two depths,
    where a paper has numbers of their own for them."""

    title: str
    rule: Placement | Callable[[int, int, str], Placement]
    source: str
    models: tuple[str, ...] = ()
    sides: Callable[[int, int], tuple[Placement, Placement]] | None = None

    def __str__(self) -> str:
        if isinstance(self.rule, Placement):
            return str(self.rule)
        first = [(kind, self.rule(1, 4, kind)) for kind in (KINDS[0], KINDS[2])]
        last = [(kind, self.rule(4, 4, kind)) for kind in (KINDS[0], KINDS[2])]
        if first == last:
            return " | ".join(f"{kind}: {placement}" for kind, placement in first)
        return f"first layers: {first[0][1]} | later: {last[0][1]}"


PRE, POST = Placement(pre=True, final=True), Placement(post=True)


def _mix(layer: int, depth: int, kind: str) -> Placement:
    return Placement(post=True, final=True) if layer <= depth // 4 else PRE


def _hybrid(layer: int, depth: int, kind: str) -> Placement:
    if kind == "feed_forward":
        return Placement(final=True)  # the norm after attention serves both; the last sum has none
    return Placement(post=True, inner=("qkv",))


def _normformer(layer: int, depth: int, kind: str) -> Placement:
    if kind == "feed_forward":
        return Placement(pre=True, inner=("activation",), final=True)
    return Placement(pre=True, out=True, inner=("heads",), final=True)


def _deepnorm_sides(encoder: int, decoder: int) -> tuple[Placement, Placement]:
    both = encoder**4 * decoder
    return (
        Placement(post=True, skip=0.81 * both ** (1 / 16), gain=0.87 * both ** (-1 / 16)),
        Placement(post=True, skip=(3 * decoder) ** 0.25, gain=(12 * decoder) ** -0.25),
    )


def _subln_sides(encoder: int, decoder: int) -> tuple[Placement, Placement]:
    gain = math.sqrt(math.log(3 * decoder) * math.log(2 * encoder) / 3)
    return (
        Placement(pre=True, inner=("output",), gain=gain, final=True),
        Placement(pre=True, inner=("output",), gain=math.sqrt(math.log(3 * decoder)), final=True),
    )


def _layerscale(layer: int, depth: int) -> float:
    return 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6


def _omega(sublayers: int) -> float:
    """ω² = (n + 1) / ln(n + 1) - 1"""
    return math.sqrt((sublayers + 1) / math.log(sublayers + 1) - 1)


def _admin_sides(encoder: int, decoder: int) -> tuple[Placement, Placement]:
    return Placement(post=True, skip=_omega(2 * encoder)), Placement(post=True, skip=_omega(3 * decoder))


def _keel_sides(encoder: int, decoder: int) -> tuple[Placement, Placement]:
    keel = [Placement(pre=True, post=True, skip=n) for n in (2 * encoder, 3 * decoder)]
    return keel[0], keel[1]


PLACEMENTS: dict[str, Named] = {
    "none": Named("No norm", Placement(), "He et al. 2016, arXiv:1603.05027, without its norms"),
    "post": Named("Post-LN", POST, "Vaswani et al. 2017, arXiv:1706.03762", ("BERT", "GPT-1")),
    "pre": Named("Pre-LN", PRE, "Xiong et al. 2020, arXiv:2002.04745", ("GPT-2", "Llama", "Qwen3")),
    "peri": Named(
        "Peri-LN, Sandwich-LN",
        Placement(pre=True, out=True, final=True),
        "Ding et al. 2021, arXiv:2105.13290; Kim et al. 2025, arXiv:2502.02732",
        ("Gemma 2", "Gemma 3", "GLM-4"),
    ),
    "output": Named(
        "Output norm, res-post-norm",
        Placement(out=True, final=True),
        "Liu et al. 2021, arXiv:2111.09883; OLMo 2024, arXiv:2501.00656",
        ("Swin-V2", "OLMo-2", "EXAONE-4"),
    ),
    "deepnorm": Named(
        "DeepNorm",
        Placement(
            post=True,
            skip=By("(2L)^1/4", lambda layer, depth: (2 * depth) ** 0.25),
            gain=By("(8L)^-1/4", lambda layer, depth: (8 * depth) ** -0.25),
        ),
        "Wang et al. 2022, arXiv:2203.00555",
        ("GLM-130B",),
        sides=_deepnorm_sides,
    ),
    "admin": Named(
        "Admin, closed form",
        Placement(post=True, skip=By("((2L+1)/ln(2L+1)-1)^1/2", lambda layer, depth: _omega(2 * depth))),
        "Liu et al. 2020, arXiv:2004.08249",
        sides=_admin_sides,
    ),
    "subln": Named(
        "Sub-LN (Magneto)",
        Placement(
            pre=True,
            inner=("output",),
            gain=By("(ln 2L)^1/2", lambda layer, depth: math.sqrt(math.log(2 * depth))),
            final=True,
        ),
        "Wang et al. 2022, arXiv:2210.06423",
        ("BEiT-3", "Kosmos-1"),
        sides=_subln_sides,
    ),
    "lns": Named(
        "LayerNorm Scaling",
        Placement(pre=True, scale=By("l^-1/2", lambda layer, depth: layer**-0.5), final=True),
        "Sun et al. 2025, arXiv:2502.05795",
    ),
    "mix": Named("Mix-LN: a quarter Post-LN, then Pre-LN", _mix, "Li et al. 2025, arXiv:2412.13795"),
    "hybrid": Named("HybridNorm", _hybrid, "Zhuo et al. 2025, arXiv:2503.04598"),
    "keel": Named(
        "Keel",
        Placement(pre=True, post=True, skip=By("2L", lambda layer, depth: 2 * depth)),
        "Chen & Wei 2026, arXiv:2601.19895",
        sides=_keel_sides,
    ),
    "rezero": Named("ReZero", Placement(gate=Learned(0.0)), "Bachlechner et al. 2020, arXiv:2003.04887"),
    "layerscale": Named(
        "LayerScale",
        Placement(pre=True, gate=Learned(By("0.1, 1e-5 or 1e-6", _layerscale), per_feature=True), final=True),
        "Touvron et al. 2021, arXiv:2103.17239",
        ("CaiT", "DINOv2"),
    ),
    "normformer": Named("NormFormer", _normformer, "Shleifer et al. 2021, arXiv:2110.09456"),
    "dual": Named("ResiDual", Placement(post=True, dual=True), "Xie et al. 2023, arXiv:2304.14802"),
}


def placement_at(where: Anywhere, layer: int, depth: int, kind: str) -> Placement:
    """The placement of one sublayer, with its numbers."""
    if isinstance(where, str):
        checks.one_of(where, PLACEMENTS, what="placement=")
        where = PLACEMENTS[where].rule
    placement = where(layer, depth, kind) if callable(where) else where
    if not isinstance(placement, Placement):
        raise user_error(
            f"placement= is {placement!r} for layer {layer} of {depth}, {kind}.",
            expected="a name, a Placement, or a function (layer, depth, kind) -> Placement",
        )
    return placement.at(layer, depth)


def sides(where: Anywhere, encoder: int, decoder: int) -> tuple[Anywhere, Anywhere]:
    """What the two stacks of an encoder-decoder use."""
    named = PLACEMENTS.get(where) if isinstance(where, str) else None
    return named.sides(encoder, decoder) if named is not None and named.sides is not None else (where, where)
