"""The reference at the ends of the range, where only its scale and its smallest number keep it right."""

import pytest
import torch

from normkit.kernels import reference
from normkit.kernels.moments import moments

HUGE = {torch.float32: 3e38, torch.float64: 1e300}
over_dtypes = pytest.mark.parametrize("dtype", list(HUGE), ids=str)


def instance(x, running_var, mask):
    """One sample with one channel, tracked."""
    return reference.instance_norm(
        x,
        running_mean=torch.zeros(1),
        running_var=running_var,
        weight=None,
        bias=None,
        use_input_stats=True,
        momentum=1.0,
        eps=1e-5,
        mask=mask,
    )


@over_dtypes
def test_equal_numbers_give_0_where_nothing_of_eps_is_left(dtype):
    """eps is multiplied by the square of the scale, and vanishes: 0 / 0 if nothing were added."""
    x = torch.full((3, 8), HUGE[dtype], dtype=dtype)
    assert not reference.normalize(x, axes=(1,), eps=1e-30).any()
    assert not reference.normalize(x, axes=(1,), eps=0.0).any()


@over_dtypes
@pytest.mark.parametrize("size", [64, 4096])
def test_sums_of_squares_of_the_largest_floats_do_not_overflow(size, dtype):
    """The square of one number fits for a scale near the root of the largest; that of many does not."""
    x = torch.full((2, size), HUGE[dtype], dtype=dtype)
    x[:, ::2] *= -1
    found = moments(x, (1,))
    assert found.var.isfinite().all()
    expected = torch.ones(2, size, dtype=dtype)
    expected[:, ::2] = -1
    torch.testing.assert_close(found.x_hat(1e-5), expected)
    torch.testing.assert_close(moments(x, (1,), center=False).x_hat(1e-5), expected)


@over_dtypes
@pytest.mark.parametrize("share", [0.26, 0.3, 0.4, 0.44, 0.49])
def test_numbers_below_the_root_of_the_largest_are_scaled_in_time(share, dtype):
    """Their squares fit. Those of their squares, in derivatives of second order, do not."""
    size = torch.finfo(dtype).max ** share
    x = (torch.randn(4, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * size).to(dtype)
    x.requires_grad_()
    wide = (x.detach().double() / size).requires_grad_()
    results = []
    for value, unit in ((x, size), (wide, 1.0)):
        y = reference.normalize(value, axes=(1,), eps=0.0)
        (dx,) = torch.autograd.grad(y.pow(3).sum(), value, create_graph=True)
        (again,) = torch.autograd.grad((dx * unit).pow(2).sum(), value)
        results.append([y, dx * unit, again * unit])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got.double(), expected.double(), rtol=1e-4, atol=1e-4)


def test_a_single_value_leaves_the_running_variance_alone():
    """n / (n - 1) has no value there; the mean moves."""
    mean, var = torch.zeros(3), torch.full((3,), 5.0)
    x, mask = torch.randn(4, 3) + 10, torch.tensor([[True], [False], [False], [False]])
    reference.batch_norm(
        x,
        running_mean=mean,
        running_var=var,
        weight=None,
        bias=None,
        training=True,
        momentum=1.0,
        eps=1e-5,
        mask=mask,
    )
    torch.testing.assert_close(mean, x[0])
    assert var.eq(5).all()
    one = torch.tensor([[[True, False, False]]])
    kept = torch.full((1,), 5.0)
    instance(torch.randn(1, 1, 3), kept, one)
    assert kept.eq(5).all()


def test_two_values_have_the_running_variance_of_two():
    x, moved = torch.tensor([[[1.0, 3.0, 77.0]]]), torch.full((1,), 5.0)
    instance(x, moved, torch.tensor([[[True, True, False]]]))
    torch.testing.assert_close(moved, torch.tensor([2.0]))
