"""Do the late layers of Pre-LN do anything?

Question: How much does each layer of a trained stack turn its input, and how much is lost without it?

Hypothesis: Sun et al. 2025 (arXiv:2502.05795): in Pre-LN the second half of the layers matters less than
a third as much as the first half, by the loss when a layer is left out; LayerNorm Scaling raises their
share by at least a tenth.

Method: 12 layers, trained for 150 steps at 3e-3 (DeepNorm at 1e-3); then each layer alone is left out,
and the held-out loss is measured again; and the angle between the input and the output of every layer.
Means over the two halves.

Refuted if: the ratio of the halves in Pre-LN is a third or more, or LayerNorm Scaling does not raise it
by 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import torch

from normkit.lab.design import Plot, Rule, Study, grid
from normkit.lab.run import Run
from normkit.lab.tasks.text import TextTask
from normkit.lab.training import Training

RATES = {"pre": 3e-3, "lns": 3e-3, "deepnorm": 1e-3}


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    task = TextTask()
    sizes = {"depth": cell["depth"], "steps": cell["steps"], "seed": cell["seed"]}
    training = Training(Run(placement=cell["placement"], lr=RATES[cell["placement"]], **sizes), task)
    while training.step < cell["steps"]:
        training.advance()
    model: Any = training.model
    model.eval()
    batch = torch.cat(task.held_out())[:32]
    angles: list[float] = []

    def watch(_: Any, given: Any, output: Any) -> None:
        cosine = torch.cosine_similarity(given[0].total, output.total, dim=-1)
        angles.append((cosine.clamp(-1, 1).acos() / math.pi).mean().item())

    with torch.no_grad():
        hooks = [block.register_forward_hook(watch) for block in model.stack.blocks]
        whole = task.loss(model, batch).item()
        for hook in hooks:
            hook.remove()
        drops = []
        for block in model.stack.blocks:
            hook = block.register_forward_hook(lambda _, given, __: given[0])
            drops.append(task.loss(model, batch).item() - whole)
            hook.remove()
    half = len(drops) // 2
    first, second = fmean(drops[:half]), fmean(drops[half:])
    return {
        "loss": whole,
        "first half": first,
        "second half": second,
        "ratio": second / first,
        "angle first half": fmean(angles[:half]),
        "angle second half": fmean(angles[half:]),
    }


STUDY = Study(
    claims=(75,),
    cells=grid(placement=["pre", "lns", "deepnorm"], depth=[12], steps=[150]),
    quick_cells=grid(placement=["pre", "lns"], depth=[2], steps=[3]),
    measure=run,
    rules=(
        Rule(
            "pre",
            "In Pre-LN a late layer matters less than a third of an early one",
            lambda r: r.get("ratio", placement="pre"),
            below=1 / 3,
            unit="of what an early one costs",
        ),
        Rule(
            "lns",
            "LayerNorm Scaling raises the share of the late layers by a tenth",
            lambda r: r.get("ratio", placement="lns") - r.get("ratio", placement="pre"),
            above=0.1,
            unit="of what an early one costs",
        ),
    ),
    plots=(
        Plot(
            "placement",
            "ratio",
            None,
            "What is lost without a layer of the second half, over what is lost without one of the first. "
            "At 0 late layers do nothing.",
            kind="bar",
            y_title="late over early",
        ),
        Plot(
            "placement",
            "angle second half",
            None,
            "By how much a layer of the second half turns the stream; 1 is about face.",
            kind="bar",
            y_title="angle, in half turns",
        ),
    ),
    limits="150 steps of 12 narrow layers; the paper's models have billions of weights.",
)
