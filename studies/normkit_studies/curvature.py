"""Does LayerNorm keep the curvature of the loss when the inputs change?

Question: When all inputs grow five-fold, what happens to the largest eigenvalue of the Hessian, with
LayerNorm and without?

Hypothesis: With LayerNorm it changes by less than a tenth; without any norm it grows more than five-fold.

Method: Two linear layers with gelu between them, LayerNorm on the input or not, 256 rows of 16 features,
squared error. Largest eigenvalue of the Hessian with respect to all weights, by 60 steps of power
iteration in float64, for inputs as they are and five times as large; and for inputs of which one feature
alone has grown.

Refuted if: the ratio with LayerNorm is outside of 0.9 to 1.1, or that without is five or less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normkit.lab.design import Plot, Rule, Study, grid
from normkit.norms import LayerNorm

ROWS, FEATURES, GROWTH, ITERATIONS = 256, 16, 5.0, 60


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    norm = LayerNorm(FEATURES, elementwise_affine=False) if cell["norm"] == "layer" else nn.Identity()
    model = nn.Sequential(norm, nn.Linear(FEATURES, 32), nn.GELU(), nn.Linear(32, 1)).double()
    x = torch.randn(ROWS, FEATURES, dtype=torch.float64)
    y = torch.randn(ROWS, 1, dtype=torch.float64)
    changed = x.clone()
    if cell["change"] == "scale":
        changed *= GROWTH
    else:
        changed[:, 0] *= GROWTH
    before, after = sharpness(model, x, y), sharpness(model, changed, y)
    return {"before": before, "after": after, "ratio": after / before}


def sharpness(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The largest eigenvalue of the Hessian of the loss, by power iteration."""
    weights = [w for w in model.parameters() if w.requires_grad]
    loss = nn.functional.mse_loss(model(x), y)
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    vector = [torch.randn_like(w) for w in weights]
    value = 0.0
    for _ in range(ITERATIONS):
        length = torch.sqrt(sum((v * v).sum() for v in vector))  # type: ignore[arg-type]  # a sum of tensors
        vector = [v / length for v in vector]
        product = sum((g * v).sum() for g, v in zip(gradients, vector, strict=True))
        turned = torch.autograd.grad(product, weights, retain_graph=True)  # type: ignore[arg-type]  # the same
        value = float(sum((t * v).sum() for t, v in zip(turned, vector, strict=True)))
        vector = [t.detach() for t in turned]
    return value


STUDY = Study(
    claims=(58,),
    cells=grid(norm=["layer", "none"], change=["scale", "feature"]),
    measure=run,
    rules=(
        Rule(
            "layer",
            "With LayerNorm a change of scale leaves the curvature as it is",
            lambda r: r.get("ratio", norm="layer", change="scale"),
            0.9,
            1.1,
            unit="times",
            log=True,
        ),
        Rule(
            "none",
            "Without a norm it grows more than five-fold",
            lambda r: r.get("ratio", norm="none", change="scale"),
            above=5,
            unit="times",
            log=True,
        ),
        Rule(
            "feature",
            "With LayerNorm a change of one feature leaves it as it is, too",
            lambda r: r.get("ratio", norm="layer", change="feature"),
            0.9,
            1.1,
            unit="times",
            log=True,
            aside=True,
        ),
    ),
    plots=(
        Plot(
            "change",
            "ratio",
            "norm",
            "How many times as large the largest eigenvalue of the Hessian becomes. 1 is no change.",
            kind="bar",
            log_y=True,
            x_title="what has grown five-fold",
            y_title="times as large",
        ),
    ),
    seeds=20,
    cheap=True,
    limits="A small network before training; curvature along a whole training is not looked at.",
)
