"""What does a norm cost on a CPU?

Question: Is the time of LayerNorm linear in batch, length and features? And which share of a small
Transformer's training step do norms take on one thread, with torch's and with ours?

Hypothesis: It is linear: ten times the numbers take ten times as long, to a factor of about the root of two,
for each of the three. Norms take less than a fifth of a step with either.

Method: One thread. Forward of (8, 128, 256) numbers, and of ten times as many in each of the three
dimensions; with an output that is there already, so that memory that has never been used does not count.
Small and large in turn, 40 times. Forward and backward of a language model of 4 layers of 256 features with
norms, and with the norms left out, in turn, 25 times. An earlier version (seeds 200 to 204, 40 turns for
all) had the same rules and bounds, and supported all of them.

Refuted if: a ratio is outside of 7 to 14, or a share is a fifth or more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from normkit import functional as F
from normkit.lab.design import Plot, Rule, Study, grid
from normkit.placement.norm_factory import NormFactory
from normkit.transformer import LanguageModel
from normkit_studies.timing import take_turns

BASE = {"batch": 8, "length": 128, "features": 256}
NORMS: dict[str, NormFactory] = {"torch": nn.LayerNorm, "normkit": "layer", "none": "none"}


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    if cell["what"] == "share":
        return {"share": _share(cell["norm"], cell["turns"])}
    large = {**BASE, cell["what"]: 10 * BASE[cell["what"]]}
    with torch.no_grad():
        times = take_turns({"small": _forward(BASE), "large": _forward(large)}, cell["turns"])
    return {"ratio": times["large"] / times["small"]}


def _forward(sizes: Mapping[str, int]) -> Callable[[], Any]:
    x = torch.randn(*sizes.values())
    out, weight = torch.empty_like(x), torch.ones(sizes["features"])
    return lambda: F.layer_norm(x, (sizes["features"],), weight, out=out)


def _share(norm: str, turns: int) -> float:
    """Of the time of forward and backward, what goes when the norms go."""
    calls: dict[str, Callable[[], Any]] = {}
    for name in (norm, "none"):
        model = LanguageModel(vocab=256, dim=256, depth=4, heads=4, context=64, norm=NORMS[name])
        ids = torch.randint(256, (8, 64))

        def step(model: LanguageModel = model, ids: torch.Tensor = ids) -> None:
            model.loss(ids).backward()
            model.zero_grad()

        calls[name] = step
    times = take_turns(calls, turns)
    return 1 - times["none"] / times[norm]


def _linear(what: str) -> Rule:
    return Rule(
        what,
        f"Ten times the {what} takes seven to fourteen times as long",
        lambda rows: rows.get("ratio", what=what),
        7,
        14,
        unit="times as long",
        log=True,
        yes=f"The time of LayerNorm is linear in the {what}, to a factor of root two: ten times the {what} "
        "takes {effect}.",
        no=f"The time of LayerNorm is not linear in the {what}: ten times the {what} takes {{effect}}.",
    )


STUDY = Study(
    claims=(23,),
    cells=grid(what=list(BASE), turns=[40]) + grid(what=["share"], norm=["torch", "normkit"], turns=[25]),
    quick_cells=grid(what=list(BASE), turns=[2]) + grid(what=["share"], norm=["torch", "normkit"], turns=[1]),
    measure=run,
    headline="share-torch",
    scale="one CPU thread; 0.3 to 2.6 million numbers, a language model of 4 layers of 256 features",
    rules=(
        *(_linear(what) for what in BASE),
        Rule(
            "share-torch",
            "torch's norms take less than a fifth of forward and backward",
            lambda r: r.get("share", norm="torch"),
            below=0.2,
            unit="of the time",
            yes="On one CPU thread torch's norms take less than a fifth of a small Transformer's forward and "
            "backward: {effect}. An interval with 0 in it says that the share is too small to be seen.",
            no="Even on one CPU thread torch's norms take a fifth of a small Transformer's forward and "
            "backward, or more: {effect}.",
        ),
        Rule(
            "share-ours",
            "Ours take less than a fifth of forward and backward",
            lambda r: r.get("share", norm="normkit"),
            below=0.2,
            unit="of the time",
            yes="normkit's take {effect}.",
            no="normkit's take a fifth or more: {effect}.",
        ),
    ),
    plots=(
        Plot(
            "what",
            "ratio",
            None,
            "How many times as long ten times the numbers take. 10 is linear.",
            kind="bar",
            y_title="times as long",
        ),
        Plot(
            "norm",
            "share",
            None,
            "The share of norms in forward and backward of a small model.",
            kind="bar",
            y_title="share of the time",
        ),
    ),
    limits="Two shared cores: times vary by a tenth from run to run. On a GPU products are faster and norms "
    "are bound by memory, so that their share is larger there; that was not measured.",
)
