"""NaN, inf, denormals, equal numbers, the largest floats: the answer of float64 wherever that is finite."""

import pytest
import torch
import torch.nn.functional as T
from truth import WIDE

from normkit import functional as F

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZE = 37


def rows(dtype):
    """Rows that break a sum of squares, and ordinary ones between them."""
    torch.manual_seed(0)
    info = torch.finfo(dtype)
    x = torch.randn(12, SIZE, dtype=WIDE)
    x[1] *= info.max / 4
    x[2] = info.max * torch.where(torch.arange(SIZE) % 2 == 0, 1.0, -1.0)
    x[3] = info.max
    x[4] *= info.tiny * 4  # squares vanish
    x[5] *= info.tiny / 8  # denormal
    x[6] = 0
    x[7] = 3.25
    x[8, 0] = info.max / 2  # one outlier, in front
    x[9, -1] = info.max / 2  # and at the end
    x[10] += info.max / 1024
    return x.clamp(-info.max, info.max).to(dtype)


def formula(op, x, weight, eps):
    """In float64, where the squares of narrower numbers do not overflow."""
    if op == "layer_norm":
        x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("eps", [1e-5, 0.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_rows_of_extreme_numbers_give_the_answer_of_float64(op, dtype, eps):
    x, weight = rows(dtype), torch.rand(SIZE).to(dtype)
    truth = formula(op, x.to(WIDE), weight.to(WIDE), eps)
    got = getattr(F, op)(x, (SIZE,), weight, eps=eps)
    finite = truth.abs() <= torch.finfo(dtype).max
    assert finite[[0, 1, 2, 8, 9, 11]].all()
    error = (got.to(WIDE) - truth)[finite].abs()
    assert (error <= 4 * torch.finfo(dtype).eps * truth[finite].abs().clamp_min(1)).all()
    assert (got.isnan() == truth.isnan()).all()


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_gradients_of_extreme_rows_give_the_answer_of_float64(op):
    x, grad, weight = rows(torch.float32), torch.randn(12, SIZE), torch.rand(SIZE)
    x[3] = 1  # the mean of equal numbers is not exact in float64: that row has no truth here
    inputs, wide = (
        [convert(t).clone().requires_grad_() for t in (x, weight)]
        for convert in (lambda t: t, torch.Tensor.double)
    )
    got = torch.autograd.grad(getattr(F, op)(inputs[0], (SIZE,), inputs[1], eps=1e-5), inputs, grad)
    truth = torch.autograd.grad(formula(op, *wide, 1e-5), wide, grad.double())
    for value, true_value in zip(got, truth, strict=True):
        scale = true_value.abs().amax(-1, keepdim=True)
        error = (value.double() - true_value).abs()
        assert (error <= 1e-5 * scale + torch.finfo(torch.float32).tiny).all()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["group_norm", "batch_norm", "instance_norm"])
def test_groups_of_the_largest_floats_do_not_overflow(name, layout):
    torch.manual_seed(0)
    x = torch.rand(4, 6, 5, 7).mul(2).sub(1) * 3e38
    x = x.contiguous(memory_format=layout)
    calls = {
        "group_norm": lambda m, x: m.group_norm(x, 3),
        "batch_norm": lambda m, x: m.batch_norm(x, None, None, training=True),
        "instance_norm": lambda m, x: m.instance_norm(x),
    }
    inputs, wide = x.clone().requires_grad_(), x.to(WIDE).contiguous().requires_grad_()
    got, truth = calls[name](F, inputs), calls[name](T, wide)
    torch.testing.assert_close(got.to(WIDE), truth, rtol=1e-5, atol=1e-5)
    grad = torch.randn(x.shape)
    (dx,), (true_dx,) = (
        torch.autograd.grad(y, v, g) for y, v, g in ((got, inputs, grad), (truth, wide, grad.to(WIDE)))
    )
    assert (dx.to(WIDE) - true_dx).abs().max() <= 1e-5 * true_dx.abs().max() + torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_nan_and_inf_stay_in_their_row(op, bad, dtype):
    x = torch.randn(5, SIZE).to(dtype)
    x[2, 3] = bad
    clean = torch.cat([x[:2], x[3:]])
    got = getattr(F, op)(x, (SIZE,))
    torch.testing.assert_close(torch.cat([got[:2], got[3:]]), getattr(F, op)(clean, (SIZE,)), rtol=0, atol=0)
    expected = getattr(T, op)(x[2:3].to(WIDE), (SIZE,))
    assert torch.equal(got[2:3].isnan(), expected.isnan())


def test_float64_rows_beyond_the_square_root_of_the_largest():
    x = torch.randn(3, SIZE, dtype=WIDE) * 1e200
    torch.testing.assert_close(F.layer_norm(x, (SIZE,), eps=0), F.layer_norm(x / 1e200, (SIZE,), eps=0))
    torch.testing.assert_close(F.rms_norm(x, (SIZE,), eps=0), F.rms_norm(x / 1e200, (SIZE,), eps=0))
    images = x.reshape(1, 3, SIZE)
    torch.testing.assert_close(F.group_norm(images, 3, eps=0), F.group_norm(images / 1e200, 3, eps=0))


def test_equal_numbers_give_exactly_the_bias():
    bias = torch.randn(SIZE)
    for value in (0.0, 1.0, 1 / 3, 1e-30, 1e30, 3.4e38):
        x = torch.full((3, SIZE), value)
        assert torch.equal(F.layer_norm(x, (SIZE,), None, bias), bias.expand(3, SIZE))


def test_a_row_that_begins_far_from_its_mean_takes_a_second_look():
    """The kernels centre at the first numbers; here these are nowhere near the others."""
    x = torch.randn(4, 4096)
    x[:, :64] += 1e4
    truth = T.layer_norm(x.to(WIDE), (4096,))
    assert (F.layer_norm(x, (4096,)).to(WIDE) - truth).abs().max() < 1e-5
