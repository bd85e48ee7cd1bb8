"""What does a norm cost?

Question: Is the time of LayerNorm linear in batch, length and features? And which share of a
Transformer's training step do norms take, with torch's and with ours?

Hypothesis: It is linear: ten times the numbers take seven to fourteen times as long, for each of the
three. Norms take less than a fifth of a step with either.

Method: One thread. Forward of (8, 128, 256) numbers, and of ten times as many in each of the three
dimensions; with an output that is there already, so that memory that has never been used does not count.
Small and large in turn. The step of a language model of 4 layers of 256 features with norms, and with the
norms left out, in turn.

Refuted if: a ratio is outside of 7 to 14, or a share is a fifth or more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from normkit import functional as F
from normkit.lab.studies.base import Plot, Rule, Study, grid
from normkit.lab.studies.timing import take_turns
from normkit.placement.choice import Maker
from normkit.transformer import LanguageModel

BASE = {"batch": 8, "length": 128, "features": 256}
NORMS: dict[str, Maker] = {"torch": nn.LayerNorm, "normkit": "layer", "none": "none"}


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    if cell["what"] == "share":
        return _share(cell["steps"])
    large = {**BASE, cell["what"]: 10 * BASE[cell["what"]]}
    with torch.no_grad():
        times = take_turns({"small": _forward(BASE), "large": _forward(large)}, cell["turns"])
    return {"ratio": times["large"] / times["small"]}


def _forward(sizes: Mapping[str, int]) -> Callable[[], Any]:
    x = torch.randn(*sizes.values())
    out, weight = torch.empty_like(x), torch.ones(sizes["features"])
    return lambda: F.layer_norm(x, (sizes["features"],), weight, out=out)


def _share(steps: int) -> dict[str, float]:
    """Of the time of a training step, what goes when the norms go."""
    calls: dict[str, Callable[[], Any]] = {}
    for name, norm in NORMS.items():
        model = LanguageModel(vocab=256, dim=256, depth=4, heads=4, context=64, norm=norm)
        ids = torch.randint(256, (8, 64))

        def step(model: LanguageModel = model, ids: torch.Tensor = ids) -> None:
            model.loss(ids).backward()
            model.zero_grad()

        calls[name] = step
    times = take_turns(calls, steps)
    return {f"share, {name}": 1 - times["none"] / times[name] for name in ("torch", "normkit")}


def _linear(what: str) -> Rule:
    says = f"Ten times the {what} takes seven to fourteen times as long"
    return Rule(what, says, lambda rows: rows.get("ratio", what=what), 7, 14, unit="times", log=True)


STUDY = Study(
    claims=(23,),
    cells=(*grid(what=list(BASE), turns=[40]), {"what": "share", "steps": 40}),
    quick_cells=(*grid(what=list(BASE), turns=[2]), {"what": "share", "steps": 1}),
    measure=run,
    rules=(
        *(_linear(what) for what in BASE),
        Rule(
            "share-torch",
            "torch's norms take less than a fifth of a training step",
            lambda r: r.get("share, torch", what="share"),
            below=0.2,
            unit="of the step",
        ),
        Rule(
            "share-ours",
            "Ours take less than a fifth of a training step",
            lambda r: r.get("share, normkit", what="share"),
            below=0.2,
            unit="of the step",
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
    ),
    limits="Two shared cores: times vary by a tenth from run to run.",
)
