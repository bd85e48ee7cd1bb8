"""What a norm computes is found out by calling it, whatever it is called."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import normkit as nk
from normkit.inspect import NormSpec, NotANormError, probe

F32, F16 = torch.float32, torch.float16
ROWS, IMAGE = (2, 5, 8), (4, 8, 3, 3)


def spec(axes=(-1,), **given):
    usual = NormSpec(True, axes, None, 1e-5, True, "w", True, False, "before_cast", F32, 1.0)
    return replace(usual, **given)


class Own(nn.Module):
    """A norm of somebody's own, from a formula."""

    def __init__(self, forward, gain=1.0, bias=False):
        super().__init__()
        self.scale = nn.Parameter(torch.full((8,), gain)) if gain is not None else None
        self.offset = nn.Parameter(torch.zeros(8)) if bias else None
        self.formula = forward

    def forward(self, x):
        return self.formula(self, x)


def annotated(self, x):  # The Annotated Transformer's
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return self.scale * (x - mean) / (std + 1e-6) + self.offset


def narrow(self, x):  # squares in the dtype of the input
    return self.scale * (x / (x.pow(2).sum(-1, keepdim=True) / 8 + 1e-5).sqrt())


def gemma(self, x):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.scale.float())).to(
        x.dtype
    )


def l2(self, x):
    return nn.functional.normalize(x, dim=-1)


NORMS = {
    "LayerNorm": (lambda: nn.LayerNorm(8), ROWS, spec()),
    "without bias": (lambda: nn.LayerNorm(8, bias=False), ROWS, spec(bias=False)),
    "on the meta device": (lambda: nn.LayerNorm(8, device="meta"), ROWS, spec()),
    "in bfloat16": (lambda: nn.LayerNorm(8, dtype=torch.bfloat16), ROWS, spec()),
    "over a sample": (lambda: nn.LayerNorm([3, 3]), IMAGE, spec((-2, -1))),
    "RMSNorm": (lambda: nn.RMSNorm(8, eps=1e-6), ROWS, spec(centered=False, eps=1e-6, bias=False)),
    "ours, 1 + w": (
        lambda: nk.RMSNorm(8, eps=1e-6, zero_centered_weight=True),
        ROWS,
        spec(centered=False, eps=1e-6, bias=False, gain="1 + w"),
    ),
    "ours, after the cast": (
        lambda: nk.RMSNorm(8, eps=1e-6, multiply="after_cast"),
        ROWS,
        spec(centered=False, eps=1e-6, bias=False, multiply="after_cast"),
    ),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(8), IMAGE, spec((-4, -2, -1), running=True, multiply=None)),
    "in evaluation": (
        lambda: nn.BatchNorm2d(8).eval(),
        IMAGE,
        spec((-4, -2, -1), running=True, multiply=None),
    ),
    "GroupNorm": (lambda: nn.GroupNorm(2, 8), IMAGE, spec((-3, -2, -1), groups=2)),
    "InstanceNorm2d": (
        lambda: nn.InstanceNorm2d(8),
        IMAGE,
        spec((-2, -1), gain=None, bias=False, multiply=None),
    ),
    "a pattern": (lambda: nk.Norm("n [c] h w", c=8), IMAGE, spec((-3,))),
    "std + eps": (
        lambda: Own(annotated, bias=True),
        ROWS,
        spec(eps=1e-6, eps_in_root=False, multiply=None, factor=pytest.approx((7 / 8) ** 0.5)),
    ),
    "narrow": (lambda: Own(narrow), ROWS, spec(centered=False, bias=False, statistics=F16)),
    "gemma": (lambda: Own(gemma, 0.0), ROWS, spec(centered=False, eps=1e-6, bias=False, gain="1 + w")),
}


@pytest.mark.parametrize("name", NORMS)
def test_what_a_norm_computes(name):
    make, shape, true = NORMS[name]
    found = probe(make(), shape)
    if name in ("std + eps", "narrow"):  # what bfloat16 statistics do to the order of casts is not asked here
        found, true = replace(found, multiply=None), replace(true, multiply=None)
    assert found == true


def test_the_size_of_a_model_is_no_obstacle():
    assert probe(nn.RMSNorm(4096, eps=1e-6), (1, 16, 4096)).axes == (-1,)


def test_an_l2_norm_is_a_norm_with_a_factor():
    found = probe(Own(l2, None), ROWS)
    assert (found.centered, found.gain, found.eps) == (False, None, 0.0)
    assert found.factor == pytest.approx(8**-0.5)


NONE = {
    "its output follows the scale of its input": [nn.Linear(8, 8), nn.Identity(), nn.GELU()],
    "each of its numbers is computed by itself": [nk.DyT(8), nn.Sigmoid()],
    "it computes something else than a norm": [nn.Softmax(-1)],
    "it does not return a tensor of the input's shape": [nn.Linear(8, 4), nn.LSTM(8, 8)],
    "calling it with a tensor raises": [nn.Embedding(3, 8), nn.Bilinear(8, 8, 8), nn.LayerNorm(7)],
}


@pytest.mark.parametrize(("why", "module"), [(why, m) for why, found in NONE.items() for m in found])
def test_what_is_no_norm_and_why(why, module):
    with pytest.raises(NotANormError, match=why):
        probe(module, ROWS)


def test_nothing_is_changed():
    module = nn.BatchNorm1d(8).eval()
    called = []
    module.register_forward_hook(lambda *call: called.append(call))
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    probe(module, (6, 8))
    assert not called
    assert not module.training
    assert torch.equal(state, torch.get_rng_state())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in module.parameters())
