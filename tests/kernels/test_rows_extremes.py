"""Rows with inf, NaN or numbers whose squares leave the range: right, and of no concern to neighbours."""

import pytest
import torch

from normkit.kernels import reference

OPS = torch.ops.normkit
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SIZE, KINDS = 67, {"layer_norm": 1, "rms_norm": 0}
INF, NAN = float("inf"), float("nan")
BAD = {"nan": [NAN], "inf": [INF], "-inf": [-INF], "both": [INF, -INF], "inf and nan": [INF, NAN]}


def rows(dtype, count=20):
    torch.manual_seed(0)
    return torch.randn(count, SIZE).to(dtype), torch.rand(SIZE).to(dtype), torch.randn(count, SIZE).to(dtype)


def by_reference(op, x, weight):
    bias = {"bias": None} if op == "layer_norm" else {}
    return getattr(reference, op)(x, axes=(1,), weight=weight, eps=1e-5, **bias)


@pytest.mark.parametrize("where", [0, 33, SIZE - 1])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", KINDS)
def test_nan_and_inf_give_what_the_reference_gives(op, dtype, bad, where):
    x, weight, dy = rows(dtype)
    clean = x.clone()
    for k, value in enumerate(BAD[bad]):
        x[3, (where + k) % SIZE] = value
    y, stats = OPS.rows_train(x, weight, None, 1, 1e-5, KINDS[op])
    dx, dw, _ = OPS.rows_backward(dy, x, weight, None, stats, None, 1, 1e-5, KINDS[op], True, True, False)
    inputs = x.clone().requires_grad_(), weight.clone().requires_grad_()
    truth = by_reference(op, *inputs)
    true_dx, true_dw = torch.autograd.grad(truth, inputs, dy)
    assert torch.equal(y[3].isnan(), truth[3].isnan())
    assert torch.equal(y[3].nan_to_num(), truth[3].nan_to_num())
    assert torch.equal(dx[3].isnan(), true_dx[3].isnan())
    assert torch.equal(dw.isnan(), true_dw.isnan())
    others = [i for i in range(20) if i != 3]
    alone, alone_stats = OPS.rows_train(clean, weight, None, 1, 1e-5, KINDS[op])
    clean_dx = OPS.rows_backward(
        dy, clean, weight, None, alone_stats, None, 1, 1e-5, KINDS[op], True, True, False
    )[0]
    assert torch.equal(y[others], alone[others])
    assert torch.equal(dx[others], clean_dx[others])


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_parameter_that_is_not_finite_reaches_its_column_alone(bad):
    for dtype in DTYPES:
        x, weight, _ = rows(dtype)
        bias = torch.zeros(SIZE).to(dtype)
        weight[5], bias[7] = bad, NAN
        y = OPS.rows(x, weight, bias, 1, 1e-5, 1)
        finite = [j for j in range(SIZE) if j not in (5, 7)]
        assert not y[:, 5].isfinite().any()
        assert y[:, 7].isnan().all()
        assert y[:, finite].isfinite().all()
        single = torch.cat([OPS.rows(row[None], weight, bias, 1, 1e-5, 1) for row in x])
        assert torch.equal(y.nan_to_num(9), single.nan_to_num(9))


def test_a_large_weight_overflows_to_inf_and_not_to_nan():
    x, _, _ = rows(torch.bfloat16)
    huge = torch.full((SIZE,), 3e38).bfloat16()
    y = OPS.rows(x, huge, huge, 1, 1e-5, 1)
    assert not y.isnan().any()
    assert y.isinf().any()


@pytest.mark.parametrize("scale", [1e300, 1e200, 1e-150, 1e-300, 1e-310])
@pytest.mark.parametrize("op", KINDS)
def test_float64_keeps_its_digits_where_squares_do_not_fit(op, scale):
    x, weight, dy = rows(torch.float64)
    power = 2.0 ** round(torch.tensor(scale, dtype=torch.float64).log2().item())
    eps = 0.0
    y, stats = OPS.rows_train(x * power, weight, None, 1, eps, KINDS[op])
    expected, ordinary = OPS.rows_train(x, weight, None, 1, eps, KINDS[op])
    tolerance = 1e-13 if scale > 1e-305 else 1e-4  # denormal numbers have fewer digits
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)
    call = (None, 1, eps, KINDS[op], True, True, False)
    dx, dw, _ = OPS.rows_backward(dy, x * power, weight, None, stats, *call)
    true_dx, true_dw, _ = OPS.rows_backward(dy, x, weight, None, ordinary, *call)
    torch.testing.assert_close(dw, true_dw, rtol=tolerance * 10, atol=tolerance * 10)
    if 1e-290 < scale < 1e290:
        torch.testing.assert_close(dx * power, true_dx, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("value", [1e300, 1e-300, 5e-324, 1.7e308])
def test_equal_numbers_of_any_size_give_zero(value):
    x = torch.full((3, SIZE), value, dtype=torch.float64)
    assert torch.equal(OPS.rows(x, None, None, 1, 1e-5, 1), torch.zeros_like(x))


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 63, 64, 65, 512, 513, 8191, 8192, 8193, 20000])
def test_sums_over_any_number_of_rows_are_complete(rows):
    """Chunks of a backward cover every row once."""
    x, dy = torch.randn(2, rows, 3, dtype=torch.float64)
    stats = OPS.rows_train(x, None, None, 1, 1e-5, 1)[1]
    weight = torch.ones(3, dtype=torch.float64)
    _, dw, db = OPS.rows_backward(dy, x, weight, weight, stats, None, 1, 1e-5, 1, False, True, True)
    torch.testing.assert_close(db, dy.sum(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dw, (dy * OPS.rows(x, None, None, 1, 1e-5, 1)).sum(0), rtol=1e-9, atol=1e-9)
