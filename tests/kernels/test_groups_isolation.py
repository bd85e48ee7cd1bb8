"""What one group holds, be it NaN, inf or the largest float, changes no bit of another."""

import math

import pytest
import torch
import torch.nn.functional as T

from normkit import functional as F
from normkit.kernels import reference

BAD = [math.nan, math.inf, -math.inf, 3e38, 1e20]
NORMS = {  # that do not mix samples
    "group": lambda x, w, b: F.group_norm(x, 4, w, b),
    "instance": lambda x, w, b: F.instance_norm(x, None, None, w, b),
    "channels": lambda x, w, b: F.layer_norm(x, (8,), w, b, axis=1),
}
SIDES = [(3, 5), (7, 7), (14, 14), (30, 30)]


def run(norm, x, w, b, dy):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = norm(x, w, b)
    return y.detach(), torch.autograd.grad(y, x, dy)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", NORMS)
def test_a_sample_has_the_same_bits_whatever_its_neighbours_hold(name, side, channels_last, dtype):
    torch.manual_seed(0)
    x, dy = torch.randn(2, 5, 8, *side).to(dtype)
    w, b = torch.rand(8).to(dtype), torch.rand(8).to(dtype)
    if channels_last:
        x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    clean = run(NORMS[name], x, w, b, dy)
    alone = run(NORMS[name], x[2:3], w, b, dy[2:3])
    for bad in BAD:
        spoilt = x.clone(memory_format=torch.preserve_format)
        spoilt[1, 3, 1, 2] = spoilt[3, 0, 0, 0] = bad
        for a, c, one in zip(run(NORMS[name], spoilt, w, b, dy), clean, alone, strict=True):
            assert torch.equal(a[[0, 2, 4]], c[[0, 2, 4]])
            assert torch.equal(a[2:3], one)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("bad", BAD)
def test_a_channel_of_a_batch_has_the_same_bits_whatever_the_others_hold(bad, channels_last):
    torch.manual_seed(0)
    x, dy = torch.randn(2, 6, 24, 7, 7)
    w, b = torch.rand(24), torch.rand(24)
    if channels_last:
        x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))

    def norm(x, w, b):
        return F.batch_norm(x, None, None, w, b, training=True)

    clean = run(norm, x, w, b, dy)
    x = x.clone(memory_format=torch.preserve_format)
    x[2, 5, 3, 3] = bad
    others = [c for c in range(24) if c != 5]
    for a, c in zip(run(norm, x, w, b, dy), clean, strict=True):
        assert torch.equal(a[:, others], c[:, others])
        assert a[:, 5].isnan().all() == (not math.isfinite(bad))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("bad", BAD)
def test_bad_numbers_do_to_their_group_what_the_reference_says(bad, channels_last, masked):
    torch.manual_seed(0)
    x, dy = torch.randn(2, 3, 8, 7, 5)
    x[1, 2, 3, 3], w, b = bad, torch.rand(8), torch.rand(8)
    mask = (torch.rand(3, 1, 7, 5) > 0.3) if masked else None
    if masked:
        mask[1, 0, 3, 3] = True
    if channels_last:
        x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    results = []
    for norm, dtype in ((F.group_norm, torch.float32), (reference.group_norm, torch.float64)):
        leaves = [
            t.detach().to(dtype).clone(memory_format=torch.preserve_format).requires_grad_()
            for t in (x, w, b)
        ]
        y = norm(leaves[0], num_groups=4, weight=leaves[1], bias=leaves[2], eps=1e-5, mask=mask)
        results.append([y, *torch.autograd.grad(y, leaves, dy.to(dtype))])
    names = ("y", "dx", "dbias")
    for index, name in zip((0, 1, 3), names, strict=True):
        got, truth = results[0][index].double(), results[1][index]
        torch.testing.assert_close(got, truth, rtol=1e-4, atol=1e-4, equal_nan=True, msg=name)
    if math.isfinite(bad):
        torch.testing.assert_close(results[0][2].double(), results[1][2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("parameters", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_in_evaluation_dx_does_not_depend_on_x(bad, channels_last, masked, parameters):
    torch.manual_seed(0)
    x, dy = torch.randn(2, 3, 8, 7, 5)
    x[1, 2, 3, 3] = x[0, 0, 0, 0] = bad
    mean, var, w, b = torch.randn(8), torch.rand(8) + 0.5, torch.rand(8), torch.rand(8)
    mask = torch.rand(3, 1, 7, 5) > 0.3 if masked else None
    if channels_last:
        x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    x.requires_grad_()
    w.requires_grad_(parameters)
    y = F.batch_norm(x, mean, var, w, b, training=False, mask=mask)
    dx = torch.autograd.grad(y, x, dy)[0]
    expected = dy * (w.detach() / (var + 1e-5).sqrt()).view(1, 8, 1, 1)
    expected = torch.where(mask, expected, 0) if masked else expected
    torch.testing.assert_close(dx, expected)


def test_a_nan_in_every_bit_stays_one_in_bfloat16():
    """Rounding must not carry out of a mantissa that is full."""
    full = torch.tensor([0x7FFF], dtype=torch.int16).view(torch.bfloat16)
    x = torch.randn(2, 4, 5, 5).bfloat16()
    x[0, 0, 0, 0] = full
    weight = torch.full((4,), 0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    assert F.group_norm(x, 2)[0, :2].isnan().all()
    assert F.group_norm(x, 2, weight).isnan().all()
    assert F.batch_norm(x, torch.zeros(4), torch.ones(4), weight).isnan().all()


def test_groups_of_the_smallest_floats_keep_their_digits():
    torch.manual_seed(0)
    x = torch.randn(3, 6, 7, 7)
    x[1] *= 1e-25
    truth = T.group_norm(x.double(), 3, eps=0)
    assert (F.group_norm(x, 3, eps=0).double() - truth).abs().max() < 1e-5
    assert torch.equal(F.group_norm(x, 3, eps=0)[0], F.group_norm(x[:1], 3, eps=0)[0])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("order", [("inf", "nan"), ("nan", "inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_no_inf_hides_a_nan_of_its_group(order, dtype, masked):
    """Not centred, a group with inf has zeros, and one with NaN too is all NaN, whichever comes first."""
    x = torch.randn(8, 3, 64).to(dtype)
    x[1, 0, 5], x[6, 0, 7] = map(float, order)
    x[2, 1, 3] = float("inf")
    mask = torch.ones(8, 1, 64, dtype=torch.bool) if masked else None
    y = F.normalize(x, "[a] b [c]", eps=0.0, center=False, mask=mask)
    assert y[:, 0].isnan().all()
    assert y[:, 1].isnan().sum() == 1
    assert y[:, 1].nan_to_num().abs().max() == 0
    assert y[:, 2].isfinite().all()
