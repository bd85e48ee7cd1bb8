"""The layers that torch does not have, and the conventions of those that it has, against their formulae."""

import pytest
import torch
from torch import nn

import normkit as nk
from normkit import functional as F
from normkit.kernels import reference


def rms_hat(x, eps=1e-6):
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rms_norm_follows_llama_and_gemma(dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(64, 32).to(dtype) * 3, torch.randn(32).to(dtype)
    llama = weight * rms_hat(x).to(dtype)
    gemma = (rms_hat(x) * (1 + weight.float())).to(dtype)
    call = {"axes": (1,), "weight": weight, "eps": 1e-6}
    # The reference divides by a root; the kernels add up in another order. In float32 that shows in the
    # last bit; a narrow output shows it where a number lies between two neighbours.
    ulps = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 0}
    exactly = {"rtol": 3 * torch.finfo(dtype).eps if dtype == torch.float32 else 0, "atol": 0}
    torch.testing.assert_close(reference.rms_norm(x, **call, multiply="after_cast"), llama, **exactly)
    torch.testing.assert_close(reference.rms_norm(x, **call, zero_centered_weight=True), gemma, **exactly)
    for expected, options in ((llama, {"multiply": "after_cast"}), (gemma, {"zero_centered_weight": True})):
        got = F.rms_norm(x, (32,), weight, 1e-6, **options)
        torch.testing.assert_close(got, expected, **ulps)
        assert dtype == torch.float32 or (got == expected).float().mean() > 0.99


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_the_default_eps_of_rms_norm_is_torchs(dtype):
    """Small inputs show it: 1e-4 squared is less than any eps but float64's."""
    x = (1e-4 * torch.randn(4, 64)).to(dtype)
    ours, theirs = nk.RMSNorm(64, dtype=dtype), nn.RMSNorm(64, dtype=dtype)
    torch.testing.assert_close(ours(x), theirs(x))
    y, _ = F.add_rms_norm(x, torch.zeros_like(x), (64,))
    torch.testing.assert_close(y, theirs(x))


def test_the_two_orders_of_cast_and_multiply_differ_in_bfloat16_alone():
    torch.manual_seed(0)
    x, weight = torch.randn(64, 32), torch.randn(32)
    before, after = (
        lambda x, w, m=m: F.rms_norm(x, (32,), w, 1e-6, multiply=m) for m in ("before_cast", "after_cast")
    )
    assert torch.equal(before(x, weight), after(x, weight))
    assert not torch.equal(before(x.bfloat16(), weight.bfloat16()), after(x.bfloat16(), weight.bfloat16()))
    assert before(x.bfloat16(), weight).dtype == torch.bfloat16
    assert after(x.bfloat16(), weight).dtype == torch.float32, "a wider weight widens the output, as in Llama"


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_add_then_norm_is_the_norm_of_the_sum(op, dtype):
    x, residual, weight = torch.randn(4, 6).to(dtype), torch.randn(4, 6).to(dtype), torch.randn(6).to(dtype)
    y, total = getattr(F, f"add_{op}")(x, residual, (6,), weight)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, getattr(F, op)(x + residual, (6,), weight))


@pytest.mark.parametrize("op", ["add_layer_norm", "add_rms_norm"])
def test_a_float32_residual_stream_stays_float32(op):
    y, total = getattr(F, op)(torch.randn(4, 6).bfloat16(), torch.randn(4, 6), (6,))
    assert (y.dtype, total.dtype) == (torch.bfloat16, torch.float32)


def test_after_cast_rounds_to_the_branch_and_not_to_the_stream():
    torch.manual_seed(0)
    x, residual, weight = torch.randn(64, 32).bfloat16(), torch.randn(64, 32), torch.randn(32).bfloat16()
    y, total = F.add_rms_norm(x, residual, (32,), weight, 1e-6, multiply="after_cast")
    assert torch.equal(y, weight * rms_hat(total).bfloat16())


def test_channel_last_layers_equal_channel_first_ones_on_moved_axes():
    x = torch.randn(3, 5, 6)
    moved = x.transpose(1, 2)
    pairs = [
        (nk.BatchNorm1d(6, axis=-1), nn.BatchNorm1d(6)),
        (nk.InstanceNorm1d(6, axis=-1, affine=True), nn.InstanceNorm1d(6, affine=True)),
        (nk.GroupNorm(2, 6, axis=-1), nn.GroupNorm(2, 6)),
        (nk.SyncBatchNorm(6, axis=-1), nn.BatchNorm1d(6)),
    ]
    for last, first in pairs:
        torch.testing.assert_close(last(x), first(moved).transpose(1, 2))
        torch.testing.assert_close(last.state_dict(), first.state_dict())
    images = torch.randn(2, 6, 3, 4)
    expected = nn.LayerNorm(6)(images.movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(nk.LayerNorm(6, axis=1)(images), expected)
    expected = nn.LayerNorm((6, 3))(images.movedim(-1, 0)).movedim(0, -1)
    torch.testing.assert_close(nk.LayerNorm((6, 3), axis=2)(images), expected)


def test_scale_norm_gives_every_vector_its_scale_as_length():
    x = torch.randn(5, 16) * torch.logspace(-3, 3, 5)[:, None]
    norm = nk.ScaleNorm(16)
    torch.testing.assert_close(norm(x).norm(dim=-1), torch.full((5,), 4.0))
    torch.testing.assert_close(norm(x), norm.scale * x / x.norm(dim=-1, keepdim=True))
    assert not norm(torch.zeros(2, 16)).any()
    large = torch.tensor([1e30, 2e30, -1e30, 4e30])
    torch.testing.assert_close(nk.ScaleNorm(4)(large), nk.ScaleNorm(4)(large / 1e30))
    zero = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    second = torch.autograd.functional.hessian(lambda x: nk.ScaleNorm(4).double()(x).sum(), zero)
    assert second.isfinite().all()


def test_dyt_is_a_scaled_tanh_of_every_number():
    norm = nk.DyT(6, alpha=0.7)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(3, 4, 6)
    torch.testing.assert_close(norm(x), torch.tanh(0.7 * x) * norm.weight + norm.bias)
    channels = nk.DyT(6, axis=1)
    channels.load_state_dict(norm.state_dict())
    torch.testing.assert_close(channels(x.movedim(-1, 1)), norm(x).movedim(-1, 1))


def test_ada_norm_starts_as_its_norm_and_follows_its_condition():
    torch.manual_seed(0)
    plain = nn.LayerNorm(6, elementwise_affine=False)
    ada = nk.AdaNorm(plain, dim=6, cond_dim=3)
    x, cond = torch.randn(2, 5, 6), torch.randn(2, 3)
    torch.testing.assert_close(ada(x, cond), plain(x))
    nn.init.normal_(ada.modulation.weight)
    scale, shift = ada.modulation(nn.functional.silu(cond)).chunk(2, dim=-1)
    torch.testing.assert_close(ada(x, cond), plain(x) * (1 + scale[:, None]) + shift[:, None])
    tokens = torch.randn(2, 5, 3)  # a condition of its own for every token
    for t in range(5):
        torch.testing.assert_close(ada(x, tokens)[:, t], ada(x[:, t], tokens[:, t]))


def test_ada_norm_conditions_images_and_takes_a_mask():
    ada = nk.AdaNorm(nk.InstanceNorm2d(6), dim=6, cond_dim=3, axis=1)
    nn.init.normal_(ada.modulation.weight)
    x, cond, mask = torch.randn(2, 6, 4, 4), torch.randn(2, 3), torch.rand(2, 4, 4) > 0.3
    scale, shift = ada.modulation(nn.functional.silu(cond))[:, :, None, None].chunk(2, dim=1)
    expected = nk.InstanceNorm2d(6)(x, mask=mask) * (1 + scale) + shift
    torch.testing.assert_close(ada(x, cond, mask=mask), expected * mask[:, None])


def test_ada_norm_takes_a_mask_for_a_norm_that_does_not_and_a_condition_of_another_dtype():
    ada = nk.AdaNorm(nk.LayerNorm(6, elementwise_affine=False), dim=6, cond_dim=3)
    nn.init.normal_(ada.modulation.bias)
    x, mask = torch.randn(2, 5, 6), torch.rand(2, 5) > 0.3
    cond = torch.randn(2, 3)
    assert torch.equal(ada(x, cond, mask=mask), ada(x, cond) * mask[..., None])
    assert ada(x.bfloat16(), cond.bfloat16()).dtype == torch.bfloat16


def power_norm_by_the_paper(batches, grads, weight, bias, alpha_f=0.9, alpha_b=0.9, eps=1e-5):
    """Algorithm 2 of Shen et al. 2020, one step after the other."""
    psi_squared, nu = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for x, grad_y in zip(batches, grads, strict=True):
        count = x.shape[0] * x.shape[1]
        psi = (psi_squared + eps).sqrt()
        x_hat = x / psi
        y = weight * x_hat + bias
        grad_x_hat = weight * grad_y
        grad_x = (grad_x_hat - nu * x_hat) / psi
        grad_weight, grad_bias = (grad_y * x_hat).sum((0, 1)), grad_y.sum((0, 1))
        gamma, lam = (x_hat * x_hat).sum((0, 1)) / count, (grad_x_hat * x_hat).sum((0, 1)) / count
        nu = nu * (1 - (1 - alpha_b) * gamma) + (1 - alpha_b) * lam
        psi_squared = alpha_f * psi_squared + (1 - alpha_f) * (x * x).sum((0, 1)) / count
        yield y, grad_x, grad_weight, grad_bias, psi_squared, nu


def test_power_norm_follows_the_algorithm_of_its_paper_forward_and_backward():
    torch.manual_seed(0)
    batches, grads = torch.randn(2, 6, 3, 5, 4, dtype=torch.float64) * 2
    norm = nk.PowerNorm(4).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    steps = power_norm_by_the_paper(batches, grads, norm.weight.detach(), norm.bias.detach())
    for x, grad_y, expected in zip(batches, grads, steps, strict=True):
        x = x.clone().requires_grad_()
        norm.zero_grad()
        y = norm(x)
        y.backward(grad_y)
        got = (y, x.grad, norm.weight.grad, norm.bias.grad, norm.running_square, norm.running_grad)
        torch.testing.assert_close(got, expected)
    norm.eval()
    torch.testing.assert_close(norm(x), norm.weight * x / (norm.running_square + 1e-5).sqrt() + norm.bias)


def test_power_norm_refuses_a_second_derivative():
    x = torch.randn(3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(nk.PowerNorm(4)(x).pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
