"""What is true of norms, and what is only believed: each claim as a test."""

import math

import pytest
import torch

import normkit as nk
from normkit import functional as F
from normkit_studies import invariances

DOUBLE = {"dtype": torch.float64}


def test_the_worked_example():
    x = torch.tensor([5.0, 5, 0, 0, 0, 0, 0, 0], **DOUBLE)
    assert x.mean().item() == 1.25
    assert x.std(correction=0).item() == pytest.approx(2.165, abs=5e-4)
    y = F.layer_norm(x, (8,))
    assert y[0].item() == pytest.approx(1.73, abs=5e-3)
    assert y[2].item() == pytest.approx(-0.58, abs=5e-3)


@pytest.mark.parametrize("kind", invariances.NORMS)
@pytest.mark.parametrize("transform", invariances.TRANSFORMS)
def test_the_invariance_table(transform, kind):
    found = invariances.run({"transform": transform, "norm": kind, "seed": 0})
    published = invariances.PUBLISHED[transform][kind]
    assert found["change"] < 1e-10 if published else found["change"] > 1e-2


def test_group_norm_is_instance_norm_with_one_channel_a_group_and_layer_norm_with_one_group():
    x = torch.randn(3, 6, 4, 5)
    torch.testing.assert_close(F.group_norm(x, 6), F.instance_norm(x), rtol=0, atol=1e-6)
    torch.testing.assert_close(F.group_norm(x, 1), F.layer_norm(x, (6, 4, 5)), rtol=0, atol=1e-6)


PATTERNS = {
    "[n] c [h w]": lambda x: F.batch_norm(x, None, None, training=True),
    "n [c h w]": lambda x: F.layer_norm(x, (6, 4, 5)),
    "n [c] h w": lambda x: F.layer_norm(x, (6,), axis=1),
    "n c [h w]": lambda x: F.instance_norm(x),
    "n (g [c]) [h w]": lambda x: F.group_norm(x, 3),
    "n c h [w]": lambda x: F.layer_norm(x, (5,)),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_named_norm_is_a_pattern(pattern):
    x = torch.randn(3, 6, 4, 5)
    sizes = {"g": 3} if "g" in pattern else {}
    torch.testing.assert_close(F.normalize(x, pattern, **sizes), PATTERNS[pattern](x), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("norm", "lost"), [("layer_norm", 2), ("rms_norm", 1)])
def test_the_jacobian_loses_two_directions_in_layer_norm_and_one_in_rms_norm(norm, lost):
    torch.manual_seed(0)
    x = torch.randn(12, **DOUBLE)
    jacobian = torch.autograd.functional.jacobian(lambda x: getattr(F, norm)(x, (12,), eps=0.0), x)
    assert torch.linalg.matrix_rank(jacobian, rtol=1e-10) == 12 - lost
    assert (jacobian.abs() > 1e-12).all(), "every output depends on every input"


def test_layer_norm_ignores_a_constant_shift_but_not_a_general_bias():
    torch.manual_seed(0)
    x = torch.randn(4, 32, **DOUBLE)
    norm = nk.LayerNorm(32, **DOUBLE)
    torch.testing.assert_close(norm(x + 0.7), norm(x), rtol=0, atol=1e-10)
    assert (norm(x + torch.randn(32, **DOUBLE)) - norm(x)).abs().max() > 0.5


def test_batch_norm_ignores_any_bias_before_it():
    x = torch.randn(16, 5, **DOUBLE)
    norm = nk.BatchNorm1d(5, **DOUBLE)
    torch.testing.assert_close(norm(x + torch.randn(5, **DOUBLE)), norm(x), rtol=0, atol=1e-10)


def test_a_uniform_error_gives_the_gain_no_gradient_in_sum_only():
    torch.manual_seed(0)
    norm = nk.LayerNorm(64, **DOUBLE)
    norm(torch.randn(1, 64, **DOUBLE)).sum().backward()
    assert abs(norm.weight.grad.sum().item()) < 1e-10
    assert norm.weight.grad.abs().max() > 1


def test_one_large_feature_can_shout():
    x = torch.zeros(64, **DOUBLE)
    x[0] = 1000.0
    assert F.layer_norm(x, (64,))[0].item() == pytest.approx(math.sqrt(63), rel=1e-6)


def test_layer_norm_keeps_the_relative_gaps_between_features():
    """It is an affine map of the vector: values come no closer together than they were."""
    x = torch.tensor([1.0, 2.0, 4.0, 9.0], **DOUBLE)
    y = F.layer_norm(x, (4,))
    assert torch.allclose((y - y[0]) / (y[3] - y[0]), (x - x[0]) / (x[3] - x[0]))
    tiny = F.layer_norm(0.01 * x, (4,), eps=0.0)
    assert tiny[3] - tiny[0] > 0.01 * (x[3] - x[0]), "small gaps are widened"


def test_eps_prevents_a_division_by_zero():
    constant = torch.full((3, 5), 7.0)
    assert F.layer_norm(constant, (5,)).tolist() == torch.zeros(3, 5).tolist()
    assert F.layer_norm(constant, (5,), eps=0.0).isnan().all()


def test_every_position_has_one_mean_and_one_deviation():
    """Of shape (batch, length, 1), and they are what LayerNorm uses."""
    x = torch.randn(2, 9, 6, **DOUBLE)
    mean, std = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    assert mean.shape == std.shape == (2, 9, 1)
    assert torch.allclose(F.layer_norm(x, (6,)), (x - mean) / std)


@pytest.mark.parametrize(("sigma", "std"), [(1.0, 1.0), (1e-2, 0.953), (1e-3, 0.302)])
def test_eps_keeps_the_spread_below_one(sigma, std):
    x = torch.randn(100_000, **DOUBLE, generator=torch.Generator().manual_seed(0))
    x = (x - x.mean()) / x.std(correction=0) * sigma
    assert F.layer_norm(x, x.shape).std(correction=0).item() == pytest.approx(std, abs=1e-3)


def test_the_length_of_a_normalised_vector_is_the_root_of_its_size():
    x = torch.randn(7, 50, **DOUBLE)
    for norm in (F.layer_norm, F.rms_norm):
        lengths = norm(x, (50,), eps=0.0).norm(dim=-1)
        torch.testing.assert_close(lengths, torch.full((7,), math.sqrt(50), **DOUBLE))


def test_two_features_collapse_to_plus_and_minus_one():
    y = F.layer_norm(torch.randn(100, 2, **DOUBLE), (2,), eps=0.0)
    torch.testing.assert_close(y.abs(), torch.ones_like(y))


@pytest.mark.parametrize("layer", [nk.LayerNorm(6), nk.RMSNorm(6), nk.GroupNorm(3, 6), nk.InstanceNorm1d(6)])
def test_a_sample_does_not_depend_on_its_batch(layer):
    x = torch.randn(64, 6, 6)
    whole = layer(x)
    assert torch.equal(whole[8:16], layer(x[8:16]))
    assert torch.equal(whole[2:3], layer(x[2:3]))


def test_a_token_does_not_depend_on_the_length_of_its_sequence():
    x = torch.randn(2, 9, 6)
    for layer in (nk.LayerNorm(6), nk.RMSNorm(6)):
        assert torch.equal(layer(x)[:, :4], layer(x[:, :4]))


def test_a_batch_statistic_depends_on_the_batch_in_training_and_not_in_evaluation():
    torch.manual_seed(0)
    layer, x = nk.BatchNorm1d(6), torch.randn(8, 6)
    assert (layer(x)[:4] - layer(x[:4])).abs().max() > 1e-2
    layer.eval()
    assert torch.equal(layer(x)[:4], layer(x[:4]))


def test_parameters_have_the_shape_of_the_features_and_start_at_one_and_zero():
    norm = nk.LayerNorm(6)
    assert norm.weight.shape == norm.bias.shape == (6,)
    assert norm.weight.eq(1).all()
    assert norm.bias.eq(0).all()


def test_running_standardisation_explodes_where_layer_norm_does_not_notice():
    """A jump of scale: the old running variance meets the new inputs."""
    torch.manual_seed(0)
    running, per_sample = nk.BatchNorm1d(8), nk.LayerNorm(8)
    for _ in range(50):
        running(torch.randn(32, 8))
    loud = 1e6 * torch.randn(32, 8)
    assert running.eval()(loud).abs().max() > 1e5
    assert per_sample(loud).abs().max() < 3
