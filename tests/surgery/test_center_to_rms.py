"""LayerNorm becomes RMSNorm, exactly, where nobody but LayerNorms reads the stream."""

import copy

import pytest
import torch
from surgery.models import off, same_bits, state, trained
from torch import nn

import normkit as nk
from normkit import NormkitError, surgery

ids = torch.randint(0, 16, (2, 5), generator=torch.Generator().manual_seed(0))


def language_model(**options):
    torch.manual_seed(0)
    return trained(nk.LanguageModel(vocab=16, dim=8, depth=2, heads=2, **options))


@pytest.mark.parametrize("tied", [True, False])
def test_a_pre_ln_model_becomes_one_of_rms_norms(tied):
    model = language_model(tied=tied)
    old, before = copy.deepcopy(model), state(model)
    certificate = surgery.center_to_rms(model, ids)
    assert certificate.error <= 1e-10
    assert certificate.gradients <= 1e-10
    assert not any(isinstance(m, nn.LayerNorm) for m in model.modules())
    for other in (ids, (ids + 5) % 16, torch.randint(0, 16, (3, 9))):
        assert off(old, model, other) < 1e-6
    seen = []
    model.stack.final.norm.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    model(ids)
    assert float(seen[0].detach().mean(-1).abs().max()) < 1e-6, "the stream has no mean"
    certificate.undo()
    assert same_bits(before, model)


def test_folded_before_it_becomes_plain_rms_norms():
    model = language_model(tied=False)
    surgery.fold_affine(model, ids)
    surgery.center_to_rms(model, ids)
    leaves = [m for m in model.modules() if not m._modules and "Norm" in type(m).__name__]
    assert {type(m).__name__ for m in leaves} == {"RMSNorm"}


def test_it_is_idempotent():
    model = language_model()
    surgery.center_to_rms(model, ids)
    before = state(model)
    assert len(surgery.center_to_rms(model, ids).edits) == 0
    assert same_bits(before, model)


def test_without_converting_the_modules_stay():
    model = language_model()
    old = copy.deepcopy(model)
    surgery.center_to_rms(model, ids, convert=False)
    assert isinstance(model.stack.final.norm, nn.LayerNorm)
    assert off(old, model, ids) < 1e-6
    assert float(model.embedding.token.weight.detach().mean(-1).abs().max()) < 1e-6


class Stream(nn.Module):
    def __init__(self, end):
        super().__init__()
        self.embed, self.norm, self.up = nn.Embedding(16, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.final, self.head = nn.LayerNorm(8), nn.Linear(8, 16)
        self.scale = nn.Parameter(torch.ones(8))
        self.end = end

    def forward(self, ids):
        x = self.embed(ids)
        return self.end(self, x, x + self.up(self.norm(x)))


REFUSED = {
    "Post-LN": (
        lambda: nk.LanguageModel(vocab=16, dim=8, depth=2, heads=2, placement="post"),
        "reads the stream",
    ),
    "an RMSNorm beside it": (
        lambda: Stream(lambda m, x, y: m.head(m.final(y) + torch.rms_norm(y, (8,)))),
        "reads the stream",
    ),
    "a matrix without a norm": (
        lambda: Stream(lambda m, x, y: m.head(m.final(y)) + m.head(y)),
        "without a norm",
    ),
    "returned": (lambda: Stream(lambda m, x, y: (m.head(m.final(y)), y)), "returns the stream"),
    "scaled by channel": (lambda: Stream(lambda m, x, y: m.head(m.final(x + m.scale * y))), "by channel"),
    "a constant": (lambda: Stream(lambda m, x, y: m.head(m.final(y + torch.ones(8)))), "no parameter"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_elsewhere_it_is_refused_with_the_reason(name):
    build, words = REFUSED[name]
    model = trained(build())
    before = state(model)
    with pytest.raises(NormkitError, match=words):
        surgery.center_to_rms(model, ids)
    assert same_bits(before, model)


def test_a_depthwise_convolution_cannot_be_centred():
    model = trained(nn.Sequential(nn.Conv1d(8, 8, 1, groups=8), nk.LayerNorm(8, axis=1), nn.Conv1d(8, 4, 1)))
    with pytest.raises(NormkitError, match="groups"):
        surgery.center_to_rms(model, torch.randn(2, 8, 5))


def test_tied_refused_and_an_rms_model():
    with pytest.raises(NormkitError, match="tied to the embedding"):
        surgery.center_to_rms(language_model(), ids, tied="refuse")
    assert len(surgery.center_to_rms(language_model(norm="rms"), ids).edits) == 0
