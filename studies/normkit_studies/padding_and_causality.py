"""Does a token see padding, or the future, through its norm?

Question: In a batch of sequences of unequal length, does padding change the output of real tokens? In a
causal language model, does the last token change the outputs before it?

Hypothesis: With LayerNorm neither does, exactly. With BatchNorm in training both do: padding shifts its
statistics, and a causal model leaks the future. A mask cures the first.

Method: A norm over (batch, length, features) with 0, 50 and 100 % of padding added: the largest change of
real tokens. A language model of two layers: the change of the logits before the last token when that
token is another one, over their standard deviation.

Refuted if: LayerNorm changes anything, BatchNorm changes by 0.01 or less, or with a mask padding changes
it by 1e-5 or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import normkit as nk
from normkit.lab.design import Plot, Rule, Study, grid

BATCH, LENGTH, DIM = 8, 16, 32


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    if cell["what"] == "future":
        return {"change": _future(cell["norm"])}
    x = torch.randn(BATCH, LENGTH, DIM) + 1
    padding = torch.zeros(BATCH, round(LENGTH * cell["padding"]), DIM)
    longer = torch.cat([x, padding], dim=1)
    real = torch.arange(longer.shape[1]) < LENGTH
    if cell["norm"] == "layer":
        layer: Any = nk.LayerNorm(DIM)
        return {"change": (layer(longer)[:, :LENGTH] - layer(x)).abs().max().item()}
    layer = nk.BatchNorm1d(DIM, axis=-1, track_running_stats=False)
    mask = real.expand(BATCH, -1) if cell["norm"] == "batch, masked" else None
    return {"change": (layer(longer, mask=mask)[:, :LENGTH] - layer(x)).abs().max().item()}


def _future(norm: str) -> float:
    model = nk.LanguageModel(vocab=64, dim=DIM, depth=2, heads=4, norm=norm.split(",")[0], context=LENGTH)
    ids = torch.randint(64, (BATCH, LENGTH))
    other = ids.clone()
    other[:, -1] = (other[:, -1] + 1) % 64
    with torch.no_grad():
        before, after = model(ids)[:, :-1], model(other)[:, :-1]
    return ((after - before).abs().max() / before.std()).item()


STUDY = Study(
    claims=(11, 27),
    cells=(
        *grid(what=["padding"], norm=["layer", "batch", "batch, masked"], padding=[0.0, 0.5, 1.0]),
        *grid(what=["future"], norm=["layer", "batch"], padding=[0.0]),
    ),
    measure=run,
    kind="checked",
    scale="8 random sequences of 16 tokens, 32 features; an untrained language model of 2 layers",
    rules=(
        Rule(
            "layer",
            "Padding changes nothing in LayerNorm",
            lambda r: max(r.column("change", what="padding", norm="layer")),
            below=1e-12,
            yes="LayerNorm does not see padding: the largest change is {effect}.",
            no="LayerNorm sees padding: the largest change is {effect}.",
        ),
        Rule(
            "batch",
            "Padding of 100 % changes BatchNorm by more than 0.01",
            lambda r: r.get("change", what="padding", norm="batch", padding=1.0),
            above=0.01,
            yes="BatchNorm in training does: with as much padding as text it changes real tokens by up to "
            "{effect}, beside outputs of a standard deviation of 1.",
            no="BatchNorm in training hardly does: {effect}.",
        ),
        Rule(
            "masked",
            "With a mask it changes nothing but rounding",
            lambda r: max(r.column("change", what="padding", norm="batch, masked")),
            below=1e-5,
            yes="A mask cures that entirely.",
            no="A mask does not cure that entirely: {effect}.",
        ),
        Rule(
            "causal",
            "With LayerNorm no logit sees the future",
            lambda r: r.get("change", what="future", norm="layer"),
            below=1e-12,
            yes="In a causal language model LayerNorm shows no token the future.",
            no="In a causal language model LayerNorm shows tokens the future: {effect}.",
        ),
        Rule(
            "leak",
            "With BatchNorm in training logits see the future",
            lambda r: r.get("change", what="future", norm="batch"),
            above=0.01,
            unit="standard deviations of the logits",
            yes="BatchNorm in training does: another last token moves earlier logits by up to {effect}.",
            no="BatchNorm in training hardly does: {effect}.",
        ),
    ),
    plots=(
        Plot(
            "padding",
            "change",
            "norm",
            "How much real tokens change as padding is added. Only BatchNorm without a mask moves.",
            where={"what": "padding"},
            x_title="padding, as a share of the real length",
            y_title="largest change",
        ),
    ),
    cheap=True,
    limits="What a norm lets through, not what a trained model makes of it. In evaluation mode BatchNorm "
    "sees neither padding nor the future.",
)
