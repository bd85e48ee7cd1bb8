"""The named placements: one row of data each, with its source and the released models that use it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from normkit import checks
from normkit.errors import user_error
from normkit.placement.rule import DepthFormula, Learned, Placement

__all__ = [
    "KINDS",
    "PLACEMENTS",
    "PlacementEntry",
    "PlacementLike",
    "encoder_decoder_placements",
    "placement_at",
]

# What a sublayer is: a function of (layer, depth, kind) may give each kind a placement of its own.
KINDS = ("attention", "cross_attention", "feed_forward")
PlacementLike = str | Placement | Callable[[int, int, str], Placement]


@dataclass(frozen=True)
class PlacementEntry:
    """A placement with its name. ``encoder_decoder`` gives those of an encoder and of a decoder for their
    two depths, where a paper has numbers of their own for them."""

    title: str
    rule: Placement | Callable[[int, int, str], Placement]
    source: str
    models: tuple[str, ...] = ()
    encoder_decoder: Callable[[int, int], tuple[Placement, Placement]] | None = None

    def _repr_svg_(self) -> str:
        """For a notebook: the figure of :func:`draw`, of the first layer where layers differ."""
        from normkit.placement.drawing import draw  # which looks up names in this table

        return str(draw(self.rule))

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


def _deepnorm_pair(encoder: int, decoder: int) -> tuple[Placement, Placement]:
    both = encoder**4 * decoder
    return (
        Placement(post=True, skip=0.81 * both ** (1 / 16), gain=0.87 * both ** (-1 / 16)),
        Placement(post=True, skip=(3 * decoder) ** 0.25, gain=(12 * decoder) ** -0.25),
    )


def _subln_pair(encoder: int, decoder: int) -> tuple[Placement, Placement]:
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


def _admin_pair(encoder: int, decoder: int) -> tuple[Placement, Placement]:
    return Placement(post=True, skip=_omega(2 * encoder)), Placement(post=True, skip=_omega(3 * decoder))


def _keel_pair(encoder: int, decoder: int) -> tuple[Placement, Placement]:
    keel = [Placement(pre=True, post=True, skip=n) for n in (2 * encoder, 3 * decoder)]
    return keel[0], keel[1]


PLACEMENTS: dict[str, PlacementEntry] = {
    "none": PlacementEntry("No norm", Placement(), "He et al. 2016, arXiv:1603.05027, without its norms"),
    "post": PlacementEntry("Post-LN", POST, "Vaswani et al. 2017, arXiv:1706.03762", ("BERT", "GPT-1")),
    "pre": PlacementEntry("Pre-LN", PRE, "Xiong et al. 2020, arXiv:2002.04745", ("GPT-2", "Llama", "Qwen3")),
    "peri": PlacementEntry(
        "Peri-LN, Sandwich-LN",
        Placement(pre=True, out=True, final=True),
        "Ding et al. 2021, arXiv:2105.13290; Kim et al. 2025, arXiv:2502.02732",
        ("Gemma 2", "Gemma 3", "GLM-4"),
    ),
    "output": PlacementEntry(
        "Output norm, res-post-norm",
        Placement(out=True, final=True),
        "Liu et al. 2021, arXiv:2111.09883; OLMo 2024, arXiv:2501.00656",
        ("Swin-V2", "OLMo-2", "EXAONE-4"),
    ),
    "deepnorm": PlacementEntry(
        "DeepNorm",
        Placement(
            post=True,
            skip=DepthFormula("(2L)^1/4", lambda layer, depth: (2 * depth) ** 0.25),
            gain=DepthFormula("(8L)^-1/4", lambda layer, depth: (8 * depth) ** -0.25),
        ),
        "Wang et al. 2022, arXiv:2203.00555",
        ("GLM-130B",),
        encoder_decoder=_deepnorm_pair,
    ),
    "admin": PlacementEntry(
        "Admin, closed form",
        Placement(
            post=True, skip=DepthFormula("((2L+1)/ln(2L+1)-1)^1/2", lambda layer, depth: _omega(2 * depth))
        ),
        "Liu et al. 2020, arXiv:2004.08249",
        encoder_decoder=_admin_pair,
    ),
    "subln": PlacementEntry(
        "Sub-LN (Magneto)",
        Placement(
            pre=True,
            inner=("output",),
            gain=DepthFormula("(ln 2L)^1/2", lambda layer, depth: math.sqrt(math.log(2 * depth))),
            final=True,
        ),
        "Wang et al. 2022, arXiv:2210.06423",
        ("BEiT-3", "Kosmos-1"),
        encoder_decoder=_subln_pair,
    ),
    "lns": PlacementEntry(
        "LayerNorm Scaling",
        Placement(pre=True, scale=DepthFormula("l^-1/2", lambda layer, depth: layer**-0.5), final=True),
        "Sun et al. 2025, arXiv:2502.05795",
    ),
    "mix": PlacementEntry("Mix-LN: a quarter Post-LN, then Pre-LN", _mix, "Li et al. 2025, arXiv:2412.13795"),
    "hybrid": PlacementEntry("HybridNorm", _hybrid, "Zhuo et al. 2025, arXiv:2503.04598"),
    "keel": PlacementEntry(
        "Keel",
        Placement(pre=True, post=True, skip=DepthFormula("2L", lambda layer, depth: 2 * depth)),
        "Chen & Wei 2026, arXiv:2601.19895",
        encoder_decoder=_keel_pair,
    ),
    "rezero": PlacementEntry(
        "ReZero", Placement(gate=Learned(0.0)), "Bachlechner et al. 2020, arXiv:2003.04887"
    ),
    "layerscale": PlacementEntry(
        "LayerScale",
        Placement(
            pre=True,
            gate=Learned(DepthFormula("0.1, 1e-5 or 1e-6", _layerscale), per_feature=True),
            final=True,
        ),
        "Touvron et al. 2021, arXiv:2103.17239",
        ("CaiT", "DINOv2"),
    ),
    "normformer": PlacementEntry("NormFormer", _normformer, "Shleifer et al. 2021, arXiv:2110.09456"),
    "dual": PlacementEntry("ResiDual", Placement(post=True, dual=True), "Xie et al. 2023, arXiv:2304.14802"),
}


def placement_at(where: PlacementLike, layer: int, depth: int, kind: str) -> Placement:
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


def encoder_decoder_placements(
    where: PlacementLike, encoder: int, decoder: int
) -> tuple[PlacementLike, PlacementLike]:
    """What the two stacks of an encoder-decoder use."""
    named = PLACEMENTS.get(where) if isinstance(where, str) else None
    return (
        named.encoder_decoder(encoder, decoder)
        if named is not None and named.encoder_decoder is not None
        else (where, where)
    )
