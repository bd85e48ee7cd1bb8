"""Gains and biases in what reads the norm: the same function, everywhere that it is claimed."""

import copy

import pytest
import torch
import torch.nn.functional as F
from surgery.models import off, same_bits, state, trained
from torch import nn

import normkit as nk
from normkit import NormkitError, surgery

D = 8


class Zero(nn.Module):
    """RMSNorm with 1 + w, as in Gemma."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class Packed(nn.Module):
    """Three parts of one matrix: queries, keys, values."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v))


class TorchAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(D), nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


class TwoReaders(nn.Module):
    """One norm, parallel attention and feed-forward; and rows beside each other."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.one, self.two = (
            *(nn.LayerNorm(D), nn.RMSNorm(D)),
            *(nn.Linear(2 * D, 4), nn.Linear(D, 4, bias=False)),
        )

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        return self.one(torch.cat((a, b), -1)) + self.two(a) + self.two(a.flip(1))


class Experts(nn.Module):
    """Weights of all experts in one tensor; a batch may not meet all of them."""

    def __init__(self, count=4):
        super().__init__()
        self.norm, self.router = nn.RMSNorm(D), nn.Linear(D, count)
        self.up = nn.Parameter(torch.randn(count, D, 2 * D))
        self.down = nn.Parameter(torch.randn(count, 2 * D, D))

    def forward(self, x):
        y = self.norm(x).reshape(-1, D)
        best = self.router(y).argmax(-1)
        out = torch.zeros_like(y)
        for e in best.unique().tolist():
            rows = torch.where(best == e)[0]
            out.index_add_(0, rows, F.silu(y[rows] @ self.up[e]) @ self.down[e])
        return x + out.reshape(x.shape)


class ListedExperts(nn.Module):
    def __init__(self, count=4):
        super().__init__()
        self.norm, self.router = nn.RMSNorm(D), nn.Linear(D, count)
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(count))

    def forward(self, x):
        y = self.norm(x).reshape(-1, D)
        best = self.router(y).argmax(-1)
        out = torch.zeros_like(y)
        for e in best.unique().tolist():
            rows = torch.where(best == e)[0]
            out.index_add_(0, rows, self.experts[e](y[rows]))
        return x + out.reshape(x.shape)


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, x):
        return self.linear(F.pad(self.norm(x), (0, 0, 1, 1)))


class ChannelsFirst(nn.Module):
    def __init__(self, padding=0):
        super().__init__()
        self.norm = nk.LayerNorm(D, axis=1)
        self.conv = nn.Conv2d(D, 6, 3, padding=padding, groups=2)

    def forward(self, x):
        return self.conv(self.norm(x))


class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.weight = nn.RMSNorm(D), nn.Parameter(torch.randn(2, D, 4))

    def forward(self, x):
        return torch.einsum("bld,hdk->blhk", self.norm(x), self.weight)


rows, images = torch.randn(3, 5, D, generator=torch.Generator().manual_seed(0)), torch.randn(2, D, 6, 6)
MODELS = {
    "a linear layer": (lambda: nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4)), rows),
    "no bias in the reader": (lambda: nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4, bias=False)), rows),
    "1 + w": (lambda: nn.Sequential(Zero(), nn.Linear(D, 4, bias=False)), rows),
    "GroupNorm and a convolution": (lambda: nn.Sequential(nn.GroupNorm(2, D), nn.Conv2d(D, 4, 3)), images),
    "a transposed convolution": (
        lambda: nn.Sequential(nn.GroupNorm(2, D), nn.ConvTranspose2d(D, 4, 2)),
        images,
    ),
    "all numbers of a sample": (
        lambda: nn.Sequential(nn.LayerNorm(D), nn.Flatten(), nn.Linear(5 * D, 3)),
        rows,
    ),
    "fused queries, keys and values": (Packed, rows),
    "torch's attention": (TorchAttention, rows),
    "two norms beside each other, two readers": (TwoReaders, rows),
    "experts in one tensor": (lambda: Experts(40), rows),
    "experts in a list": (lambda: ListedExperts(40), rows),
    "zeros in between": (Padded, rows),
    "channels first, groups": (ChannelsFirst, images),
    "channels first, zeros around": (lambda: ChannelsFirst(padding=1), images),
    "einsum": (Einsum, rows),
    "ours": (lambda: nk.LanguageModel(vocab=16, dim=8, depth=2, heads=2), torch.randint(0, 16, (2, 5))),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_computes_the_same_on_other_data_and_is_undone_bit_for_bit(name):
    build, x = MODELS[name]
    torch.manual_seed(0)
    model = trained(build())
    old, before = copy.deepcopy(model), state(model)
    certificate = surgery.fold_affine(model, x)
    assert certificate.certified
    assert certificate.error <= 1e-10
    assert certificate.gradients <= 1e-10
    gains = [m.weight for m in model.modules() if isinstance(m, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm))]
    assert gains or name == "1 + w"
    assert all(bool((g == 1).all()) for g in gains)
    others = [x, torch.randn_like(x) if x.is_floating_point() else (x + 3) % 16]
    if x.is_floating_point():
        others.append(torch.randn(7, *x.shape[1:]))
    for other in others:
        assert off(old, model, other) < 1e-6  # new weights are rounded to float32
    certificate.undo()
    assert same_bits(before, model)


class Choosing(nn.Module):
    """Rows that are chosen go through the matrix, the others as they are; in this batch all are chosen."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, x):
        y = self.norm(x)
        chosen = x[..., 0] > -100
        out = y.clone()
        out[chosen] = self.linear(y[chosen])
        return out


class Mixing(Choosing):
    def forward(self, x):
        y = self.norm(x)
        return self.linear(torch.where(x[..., :1] > -100, y, x))


@pytest.mark.parametrize("kind", [Choosing, Mixing])
def test_a_choice_that_another_batch_makes_otherwise_is_refused(kind):
    with pytest.raises(NormkitError, match="depends on the data"):
        surgery.fold_affine(trained(kind()), rows)


def test_experts_that_the_batch_does_not_meet_are_named():
    torch.manual_seed(0)
    certificate = surgery.fold_affine(trained(ListedExperts(40)), rows)
    changed = [t.name for t in certificate.tensors if t.name.startswith("experts")]
    assert len(changed) == 40
    assert "this batch does not reach all of them" in str(certificate)


def test_1_plus_w_is_left_at_0():
    model = trained(nn.Sequential(Zero(), nn.Linear(D, 4)))
    surgery.fold_affine(model, rows)
    assert not model[0].weight.any()


def test_a_bias_that_cannot_go_stays_divided_by_the_gain():
    model = trained(Padded())
    gain, bias = model.norm.weight.detach().clone(), model.norm.bias.detach().clone()
    certificate = surgery.fold_affine(model, rows)
    torch.testing.assert_close(model.norm.bias, bias / gain)
    assert any("divided by the gain" in e.what for e in certificate.edits)


def test_without_new_biases_the_reader_keeps_its_parameters():
    model = trained(nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4, bias=False)))
    old = copy.deepcopy(model)
    surgery.fold_affine(model, rows, new_biases=False)
    assert model[1].bias is None
    assert off(old, model, rows) < 1e-6


class Ends(nn.Module):
    def __init__(self, end):
        super().__init__()
        self.norm, self.linear, self.end = nn.LayerNorm(D), nn.Linear(D, D), end

    def forward(self, x):
        y = self.norm(x)
        return self.end(self, y, self.linear(y))


class Hidden(nn.Module):
    """As a kernel of somebody's own: no function of torch is seen."""

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            return x.relu()


class SharedGain(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(D), nn.LayerNorm(D)
        self.two.weight = self.one.weight
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        return self.a(self.one(x)) + self.b(self.two(2 * x + 1))


class PenalisedGain(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.RMSNorm(D), nn.Linear(D, D)

    def forward(self, x):
        return self.linear(self.norm(x)) + self.norm.weight.sum()


REFUSED = {
    "a shared gain": (SharedGain, "has the same parameters"),
    "a gain that is read elsewhere": (PenalisedGain, "norm.weight is read elsewhere"),
    "added": (lambda: Ends(lambda m, y, z: z + y), "added to something else"),
    "returned": (lambda: Ends(lambda m, y, z: (z, y)), "the model returns its output"),
    "an activation": (lambda: Ends(lambda m, y, z: z + y.relu()), "relu reads it"),
    "into Python": (lambda: Ends(lambda m, y, z: z * y.max().item()), "reads it"),
    "a second norm": (
        lambda: nn.Sequential(nn.LayerNorm(D), nn.LayerNorm(D, elementwise_affine=False)),
        "norm",
    ),
    "a shared matrix": (lambda: Ends(lambda m, y, z: z + m.linear(z)), "linear.weight"),
    "a code that is not seen": (
        lambda: nn.Sequential(nn.LayerNorm(D), Hidden(), nn.Linear(D, 2)),
        "cannot show",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_folded_is_refused_with_the_reason_and_nothing_changes(name):
    build, words = REFUSED[name]
    model = trained(build())
    before = state(model)
    with pytest.raises(NormkitError, match=words):
        surgery.fold_affine(model, rows)
    assert same_bits(before, model)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(16, D), nn.LayerNorm(D), nn.Linear(D, 16, bias=False)
        self.first, self.linear = nn.RMSNorm(D), nn.Linear(D, D)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.norm(x + self.linear(self.first(x))))


def test_a_tied_head_is_untied_or_refused_as_asked():
    ids = torch.randint(0, 16, (2, 5))
    model = trained(Tied())
    old = copy.deepcopy(model)
    certificate = surgery.fold_affine(model, ids)
    assert model.head.weight is not model.embed.weight
    assert torch.equal(model.embed.weight, old.embed.weight)
    assert off(old, model, ids) < 1e-6
    certificate.undo()
    assert model.head.weight is model.embed.weight
    certificate = surgery.fold_affine(model, ids, tied="refuse")
    assert [entry.path for entry in certificate.left] == ["norm"]
    assert "tied" in certificate.left[0].why
    assert bool((model.first.weight == 1).all())
    with pytest.raises(NormkitError, match="tied="):
        surgery.fold_affine(model, ids, tied="maybe")


def test_it_is_idempotent():
    model = trained(Packed())
    surgery.fold_affine(model, rows)
    before = state(model)
    again = surgery.fold_affine(model, rows)
    assert len(again.edits) == 0
    assert "nothing was changed" in str(again)
    assert same_bits(before, model)


def test_hooks_frozen_parameters_modes_and_an_optimizer_stay():
    model = trained(Packed()).train()
    model.qkv.weight.requires_grad_(False)
    calls = []
    model.norm.register_forward_hook(lambda *_: calls.append(1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weight = model.qkv.weight
    surgery.fold_affine(model, rows)
    assert model.training
    assert model.norm.training
    assert model.qkv.weight is weight
    assert not weight.requires_grad
    assert model.norm.weight.requires_grad
    calls.clear()
    model(rows).sum().backward()
    assert calls
    optimizer.step()


def test_a_compiled_model_is_unwrapped():
    model = trained(Packed())
    old = copy.deepcopy(model)
    surgery.fold_affine(torch.compile(model), rows)
    assert bool((model.norm.weight == 1).all())
    assert off(old, model, rows) < 1e-6


def test_float16_that_would_overflow_is_rolled_back():
    model = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4)).half().eval()
    with torch.no_grad():
        model[0].weight.fill_(1000)
        model[1].weight.fill_(100)
    before = state(model)
    with pytest.raises(NormkitError, match="overflow float16"):
        surgery.fold_affine(model, rows.half())
    assert same_bits(before, model)


def test_a_dry_run_changes_nothing_and_shows_the_edits():
    model = trained(Packed())
    before = state(model)
    certificate = surgery.fold_affine(model, rows, dry_run=True)
    assert "dry run" in str(certificate)
    assert "qkv.weight: takes up the gain of norm" in str(certificate)
    assert same_bits(before, model)
    with pytest.raises(NormkitError, match="not applied"):
        certificate.undo()


def test_no_numbers_and_no_model_are_clear_errors():
    with torch.device("meta"):
        model = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4))
    with pytest.raises(NormkitError, match="meta device"):
        surgery.fold_affine(model, rows)
    assert len(surgery.fold_affine(model, rows, dry_run=True).edits) > 0
    with pytest.raises(NormkitError, match="got str"):
        surgery.fold_affine("model", rows)
