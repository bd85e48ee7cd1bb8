"""Is RMSNorm as good as LayerNorm, and faster?

Question: What does one lose by not centring, and what does one win?

Hypothesis: The losses differ by less than 0.02 nats. A Pre-LN network can be rewritten with RMSNorm
exactly. RMSNorm is faster with kernels made for it, by at least 5 %, and not faster with torch's on a
CPU.

Method: Byte-level language model of 6 layers, Pre-LN, 100 steps, best of three learning rates for each
norm. The rewriting in float64: linear layers that write to the stream are centred, LayerNorm becomes
RMSNorm, its bias goes into the next layer. Time of a forward of 4096 x 768 numbers, ours into memory that
is there already, both norms in turn in one process, one thread.

Refuted if: the losses differ by 0.02 nats or more, the rewriting by 1e-9, our RMSNorm is not 5 % faster
than our LayerNorm, or torch's is faster than torch's LayerNorm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as T
from torch import nn

from normkit import functional as F
from normkit.lab.design import Plot, Rule, Study, trained
from normkit_studies.timing import take_turns

TURNS = 40


def run(cell: Mapping[str, Any]) -> dict[str, float]:
    torch.manual_seed(cell["seed"])
    if cell["what"] == "fold":
        return {"fold": _fold()}
    x, weight, bias = torch.randn(4096, 768), torch.ones(768), torch.zeros(768)
    out = torch.empty_like(x)
    ours = {
        "layer": lambda: F.layer_norm(x, (768,), weight, bias, out=out),
        "rms": lambda: F.rms_norm(x, (768,), weight, out=out),
    }
    torchs = {
        "layer": lambda: T.layer_norm(x, (768,), weight, bias),
        "rms": lambda: T.rms_norm(x, (768,), weight),
    }
    with torch.no_grad():
        return {"ours": _ratio(ours), "torchs": _ratio(torchs)}


def _ratio(calls: dict[str, Callable[[], Any]]) -> float:
    """Time of RMSNorm over that of LayerNorm."""
    times = take_turns(calls, TURNS)
    return times["rms"] / times["layer"]


def _fold() -> float:
    """A residual network of three Pre-LN sublayers, and the same with RMSNorm."""
    dim = 16
    double: dict[str, Any] = {"dtype": torch.float64}
    layers = [(nn.LayerNorm(dim, **double), nn.Linear(dim, dim, **double)) for _ in range(3)]
    last = nn.LayerNorm(dim, **double)
    for norm in (*(n for n, _ in layers), last):
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    x = torch.randn(32, dim, **double)
    with torch.no_grad():
        stream = x
        for norm, linear in layers:
            stream = stream + torch.tanh(linear(norm(stream))) @ linear.weight.T
        wanted = last(stream)
        stream = x - x.mean(-1, keepdim=True)  # an embedding that is centred
        for norm, linear in layers:
            weight, bias = linear.weight * norm.weight, linear.bias + linear.weight @ norm.bias
            out = linear.weight.T - linear.weight.T.mean(
                -1, keepdim=True
            )  # what writes to the stream is centred
            stream = (
                stream + torch.tanh(T.linear(F.rms_norm(stream, (dim,), eps=norm.eps), weight, bias)) @ out
            )
        got = F.rms_norm(stream, (dim,), last.weight, eps=last.eps) + last.bias
    return (got - wanted).abs().max().item()


STUDY = Study(
    claims=(46,),
    cells=({"what": "fold"}, {"what": "time"}),
    measure=run,
    seeds=12,
    runs=trained(task="text", norm=["layer", "rms"], placement="pre", lr=[1e-3, 3e-3, 1e-2], steps=100),
    quick_runs=trained(
        task="text",
        norm=["layer", "rms"],
        placement="pre",
        lr=[1e-3],
        steps=6,
        depth=1,
        width=16,
        batch_size=4,
    ),
    rules=(
        Rule(
            "gap",
            "The losses of RMSNorm and LayerNorm differ by less than 0.02 nats",
            lambda r: r.lowest("loss", norm="rms") - r.lowest("loss", norm="layer"),
            -0.02,
            0.02,
            unit="nats",
        ),
        Rule(
            "fold",
            "A Pre-LN network is one with RMSNorm, rewritten",
            lambda r: r.get("fold", what="fold"),
            below=1e-9,
        ),
        Rule(
            "ours",
            "Our RMSNorm is at least 5 % faster than our LayerNorm",
            lambda r: r.get("ours", what="time"),
            below=0.95,
            unit="times LayerNorm's time",
            log=True,
        ),
        Rule(
            "torchs",
            "torch's RMSNorm is no faster than its LayerNorm",
            lambda r: r.get("torchs", what="time"),
            above=1,
            unit="times LayerNorm's time",
            log=True,
        ),
    ),
    plots=(
        Plot(
            "lr",
            "loss",
            "norm",
            "Held-out loss with either norm. Lines on top of each other: no difference.",
            log_x=True,
            x_title="learning rate",
            y_title="nats a byte",
        ),
    ),
)
