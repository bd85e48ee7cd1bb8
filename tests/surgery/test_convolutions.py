"""BatchNorm into convolutions, and biases that norms take away."""

import copy

import pytest
import torch
import torch.nn.functional as F
from surgery.models import off, same_bits, state, trained
from torch import nn

from normkit import NormkitError, surgery

images = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm has it: the norm and its activation are one module, and torch's batch_norm is called."""

    def __init__(self, channels):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x):
        training = self.training or self.running_mean is None
        y = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training, self.momentum, self.eps
        )
        return self.act(self.drop(y))


MODELS = {
    "a convolution": lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()),
    "without a bias": lambda: nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)),
    "in groups": lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)),
    "depthwise": lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4)),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2), nn.BatchNorm2d(6)),
    "transposed in groups": lambda: nn.Sequential(
        nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6)
    ),
    "a linear layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 6), nn.BatchNorm1d(6)),
    "before a convolution": lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, groups=2)),
    "before a linear layer": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(256), nn.Linear(256, 3)),
    "before one, behind another": lambda: nn.Sequential(
        *(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)),
    ),
    "without gain and bias": lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False)),
    "with an activation of its own": lambda: nn.Sequential(nn.Conv2d(4, 6, 3), BatchNormAct2d(6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_batch_norm_is_folded_and_computes_the_same(name):
    torch.manual_seed(1)
    model = trained(MODELS[name]())
    old, before = copy.deepcopy(model), state(model)
    certificate = surgery.fold_batchnorm(model, images)
    assert certificate.error <= 1e-10
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    for x in (images, torch.randn(5, 4, 8, 8)):
        assert off(old, model, x) < 1e-5
    assert len(surgery.fold_batchnorm(model, images).edits) == 0, "idempotent"
    certificate.undo()
    assert same_bits(before, model)


REFUSED = {
    "zeros around": (
        lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, padding=1)),
        "zeros are padded",
    ),
    "no statistics": (
        lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU()),
        None,
    ),
    "between activations": (lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4), nn.ReLU()), "relu reads it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_elsewhere_it_is_refused(name):
    build, words = REFUSED[name]
    model = trained(build())
    if words is None:
        assert len(surgery.fold_batchnorm(model, images).edits) == 0
        return
    with pytest.raises(NormkitError, match=words):
        surgery.fold_batchnorm(model, images)


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


def test_a_convolution_that_others_read_is_left_alone():
    model = trained(Skip())
    before = state(model)
    with pytest.raises(NormkitError, match="used elsewhere too"):
        surgery.fold_batchnorm(model, images)
    assert same_bits(before, model)


def test_biases_before_norms_are_dropped_as_far_as_they_vanish():
    torch.manual_seed(0)
    model = trained(
        nn.Sequential(
            *(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.GroupNorm(2, 6)),
            *(nn.ReLU(), nn.Conv2d(6, 6, 1), nn.InstanceNorm2d(6), nn.Flatten(), nn.Linear(216, 8)),
            *(nn.LayerNorm(8), nn.Linear(8, 8), nn.RMSNorm(8)),
        )
    )
    old, before = copy.deepcopy(model), state(model)
    certificate = surgery.drop_bias(model, images)
    assert certificate.error <= 1e-10
    assert model[0].bias is None
    torch.testing.assert_close(model[1].running_mean, old[1].running_mean - old[0].bias)
    assert float(model[3].bias.detach().reshape(2, 3).mean(1).abs().max()) < 1e-7
    assert model[6].bias is None
    assert abs(float(model[9].bias.detach().mean())) < 1e-7
    assert torch.equal(model[11].bias, old[11].bias), "none before RMSNorm"
    for mode in (True, False):
        a, b = (copy.deepcopy(m).double().train(mode)(images.double()) for m in (old, model))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert len(surgery.drop_bias(model, images).edits) == 0, "idempotent"
    certificate.undo()
    assert same_bits(before, model)


def test_in_a_transformer_the_means_of_all_writers_vanish():
    import normkit as nk

    ids = torch.randint(0, 16, (2, 5))
    for placement in ("pre", "post"):
        model = trained(nk.LanguageModel(vocab=16, dim=8, depth=2, heads=2, placement=placement, bias=True))
        old = copy.deepcopy(model)
        certificate = surgery.drop_bias(model, ids)
        assert len(certificate.edits) >= 4
        assert off(old, model, ids) < 1e-6
    rms = trained(nk.LanguageModel(vocab=16, dim=8, depth=2, heads=2, norm="rms", bias=True))
    assert len(surgery.drop_bias(rms, ids).edits) == 0
