"""Every named placement against a few lines of plain torch, written from its paper: values and gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from normkit.placement import PLACEMENTS, FinalNorm, Residual, Stream, placement_at
from normkit.transformer import Attention, FeedForward

DIM, DEPTH, HEADS = 12, 5, 3


def norm(layer, x):
    return F.layer_norm(x, (x.shape[-1],), layer.weight, layer.bias, layer.eps)


def sublayer(inner, kind):
    if kind == "attention":
        return Attention(DIM, HEADS, inner=inner)
    return FeedForward(DIM, 2 * DIM, inner=inner)


def stack(name):
    """Attention and feed-forward, DEPTH times; every parameter is drawn anew: none hides at 1 or 0."""
    torch.manual_seed(3)
    layers = nn.ModuleList()
    for layer in range(1, DEPTH + 1):
        for kind in ("attention", "feed_forward"):
            inner = placement_at(name, layer, DEPTH, kind).inner
            place = {"layer": layer, "depth": DEPTH, "kind": kind}
            layers.append(Residual(sublayer(inner, kind), DIM, name, **place))
    layers.append(FinalNorm(DIM, placement_at(name, DEPTH, DEPTH, "feed_forward")))
    layers = layers.double()
    for parameter in layers.parameters():
        nn.init.normal_(parameter, 0.5 if parameter.ndim < 2 else 0.0, 0.3)
    return layers


def attention(fn, x):
    """Written out: heads, scores, softmax; norms of q, k, v, a scale a head, a norm before the output."""
    b, t, _ = x.shape
    q, k, v = (p.reshape(b, t, HEADS, -1).transpose(1, 2) for p in fn.qkv(x).chunk(3, -1))
    if fn.value_norm is not None:
        q, k, v = norm(fn.query_norm, q), norm(fn.key_norm, k), norm(fn.value_norm, v)
    y = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
    if fn.head_scale is not None:
        y = y * fn.head_scale.view(1, -1, 1, 1)
    y = y.transpose(1, 2).reshape(b, t, -1)
    return fn.output(y if fn.inner_norm is None else norm(fn.inner_norm, y))


def feed_forward(fn, x):
    y = F.gelu(fn.input(x))
    return fn.output(y if fn.inner_norm is None else norm(fn.inner_norm, y))


def sub(r, x):
    return attention(r.fn, x) if isinstance(r.fn, Attention) else feed_forward(r.fn, x)


def none(layers, x):
    for r in layers[:-1]:
        x = x + sub(r, x)
    return x


def post(layers, x, alpha=1.0):
    for r in layers[:-1]:
        x = norm(r.post, alpha * x + sub(r, x))
    return x


def pre(layers, x, scale=lambda layer: 1.0):
    for k, r in enumerate(layers[:-1]):
        x = x + sub(r, scale(k // 2 + 1) * norm(r.pre, x))
    return norm(layers[-1].norm, x)


def peri(layers, x):
    for r in layers[:-1]:
        x = x + norm(r.out, sub(r, norm(r.pre, x)))
    return norm(layers[-1].norm, x)


def output(layers, x):
    for r in layers[:-1]:
        x = x + norm(r.out, sub(r, x))
    return norm(layers[-1].norm, x)


def mix(layers, x):
    for k, r in enumerate(layers[:-1]):
        early = k // 2 < DEPTH // 4
        x = norm(r.post, x + sub(r, x)) if early else x + sub(r, norm(r.pre, x))
    return norm(layers[-1].norm, x)


def hybrid(layers, x):
    for k, r in enumerate(layers[:-1]):
        x = norm(r.post, x + sub(r, x)) if k % 2 == 0 else x + sub(r, x)
    return norm(layers[-1].norm, x)


def keel(layers, x):
    for r in layers[:-1]:
        x = norm(r.post, 2 * DEPTH * x + sub(r, norm(r.pre, x)))
    return x


def rezero(layers, x):
    for r in layers[:-1]:
        x = x + r.gate * sub(r, x)
    return x


def layerscale(layers, x):
    for r in layers[:-1]:
        x = x + sub(r, norm(r.pre, x)) @ torch.diag(r.gate)
    return norm(layers[-1].norm, x)


def normformer(layers, x):
    for k, r in enumerate(layers[:-1]):
        y = sub(r, norm(r.pre, x))
        x = x + (norm(r.out, y) if k % 2 == 0 else y)
    return norm(layers[-1].norm, x)


def dual(layers, x):
    second = x
    for r in layers[:-1]:
        y = sub(r, x)
        x, second = norm(r.post, x + y), second + y
    return x + norm(layers[-1].norm, second)


PAPERS = {
    "none": none,
    "post": post,
    "pre": pre,
    "peri": peri,
    "output": output,
    "deepnorm": lambda layers, x: post(layers, x, (2 * DEPTH) ** 0.25),
    "admin": lambda layers, x: post(layers, x, math.sqrt((2 * DEPTH + 1) / math.log(2 * DEPTH + 1) - 1)),
    "subln": pre,
    "lns": lambda layers, x: pre(layers, x, lambda layer: 1 / math.sqrt(layer)),
    "mix": mix,
    "hybrid": hybrid,
    "keel": keel,
    "rezero": rezero,
    "layerscale": layerscale,
    "normformer": normformer,
    "dual": dual,
}


def test_every_named_placement_is_written_down_here():
    assert set(PAPERS) == set(PLACEMENTS)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_placement_is_the_formula_of_its_paper(name):
    layers = stack(name)
    x = torch.randn(2, 4, DIM, dtype=torch.float64, requires_grad=True)
    stream = Stream(x)
    for layer in layers[:-1]:
        stream = layer(stream)
    ours = layers[-1](stream)
    theirs = PAPERS[name](layers, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    inputs = [x, *layers.parameters()]
    weight = torch.randn_like(ours)
    grads = [torch.autograd.grad((y * weight).sum(), inputs, retain_graph=True) for y in (ours, theirs)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in PLACEMENTS if n != "dual"])
def test_a_tensor_gives_what_a_stream_gives(name):
    layers = stack(name)
    x = torch.randn(2, 4, DIM, dtype=torch.float64)
    stream, y = Stream(x), x
    for layer in layers[:-1]:
        stream, y = layer(stream), layer(y)
    torch.testing.assert_close(layers[-1](stream), layers[-1](y))


GAINS = {
    "deepnorm": (8 * DEPTH) ** -0.25,
    "subln": math.sqrt(math.log(2 * DEPTH)),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_the_gain_is_that_of_the_paper(name):
    for kind in ("attention", "feed_forward"):
        assert placement_at(name, 2, DEPTH, kind).gain == pytest.approx(GAINS.get(name, 1.0))
