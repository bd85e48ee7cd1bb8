"""Our linear layer is torch's, on any number of rows."""

import pytest
import torch
from torch import nn

from normkit.transformer import linear

UNIT = {torch.float32: 2e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("size", [1, 3, 7, 8, 31, 64, 123, 768])
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("bias", [True, False])
def test_the_kernel_is_a_matrix_product(rows, size, dtype, bias):
    torch.manual_seed(size)
    x, weight = torch.randn(rows, size).to(dtype), torch.randn(2 * size + 1, size).to(dtype)
    b = torch.randn(2 * size + 1).to(dtype) if bias else None
    got = torch.ops.normkit.linear(x, weight, b).double()
    expected = nn.functional.linear(x.double(), weight.double(), None if b is None else b.double())
    scale = x.double().norm(dim=1, keepdim=True) * weight.double().norm(dim=1) + 1
    assert ((got - expected).abs() / scale).max() < UNIT[dtype]


def test_results_do_not_depend_on_the_number_of_threads():
    x, weight = torch.randn(1, 700), torch.randn(3001, 700)
    results = []
    for threads in (1, 2, 8):
        torch.set_num_threads(threads)
        results.append(torch.ops.normkit.linear(x, weight, None))
    torch.set_num_threads(2)
    assert all(torch.equal(results[0], r) for r in results)


def test_a_few_rows_without_a_gradient_take_the_kernel(monkeypatch):
    calls = []
    real = linear.library.raw
    monkeypatch.setattr(linear.library, "raw", lambda name: calls.append(name) or real(name))
    layer, x = linear.Linear(8, 3), torch.randn(2, 1, 8)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    assert calls == []  # a gradient may be wanted
    with torch.no_grad():
        torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
        assert calls == ["linear"]
        for other in (torch.randn(99, 8), torch.randn(8, 2).T, torch.randn(0, 8)):
            torch.testing.assert_close(layer(other), nn.functional.linear(other, layer.weight, layer.bias))
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        with pytest.raises(RuntimeError):
            layer(torch.randn(2, 7))
    assert calls == ["linear"]
    assert isinstance(layer, nn.Linear)
