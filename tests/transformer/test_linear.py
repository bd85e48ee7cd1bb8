"""torch's linear layers, on any number of rows, faster on a few."""

import pytest
import torch
from torch import nn

import normkit as nk
from normkit.kernels import fast
from normkit.transformer.linear import project

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


def ran(call):
    with torch.autograd.profiler.profile() as profile:
        y = call()
    return y, "normkit::linear" in {event.name for event in profile.function_events}


@pytest.mark.parametrize("way", ["extension", "operator"])
def test_a_few_rows_without_a_gradient_take_the_kernel(way, monkeypatch):
    if way == "operator":
        monkeypatch.setattr(fast, "linear", fast._linear)
    layer, x = nn.Linear(8, 3), torch.randn(2, 1, 8)
    assert not ran(lambda: project(layer, x))[1], "a gradient may be wanted"
    with torch.no_grad():
        y, took = ran(lambda: project(layer, x))
        assert took
        torch.testing.assert_close(y, layer(x))
        for other in (torch.randn(99, 8), torch.randn(8, 2).T, torch.randn(0, 8), torch.randn(2, 8).double()):
            own = layer.double() if other.dtype == torch.float64 else layer
            y, took = ran(lambda own=own, other=other: project(own, other))
            assert not took
            torch.testing.assert_close(y, own(other))
        layer = layer.float()
        with torch.autocast("cpu", torch.bfloat16):
            assert project(layer, x).dtype == torch.bfloat16
        with pytest.raises(RuntimeError):
            project(layer, torch.randn(2, 7))
        layer.register_forward_hook(lambda module, args, y: y + 1)
        torch.testing.assert_close(project(layer, x), layer(x))


@pytest.mark.filterwarnings("ignore")  # torch deprecates its own quantisation
def test_quantisation_finds_the_linear_layers():
    torch.manual_seed(0)
    model = nk.LanguageModel(vocab=32, dim=32, depth=2, heads=4).eval()
    ids = torch.randint(32, (1, 8))
    expected = model(ids)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    kinds = [type(m).__module__ for m in quantised.modules() if type(m).__name__ == "Linear"]
    assert len(kinds) >= 8
    assert all("quantized" in kind for kind in kinds)
    got = quantised(ids)
    assert 0 < (got - expected).abs().max() < 0.2 * expected.abs().max()
    translator = nk.Seq2Seq(vocab=32, dim=32, depth=1, heads=4).eval()
    quantised = torch.ao.quantization.quantize_dynamic(translator, {nn.Linear}, torch.qint8)
    torch.testing.assert_close(quantised(ids, ids), translator(ids, ids), rtol=0.2, atol=0.2)
