"""Part of PyTorch: torch.compile without graph breaks, autocast, half precision."""

import pytest
import torch

import normkit as nk
from normkit.placement import PLACEMENTS

SIZES = {"vocab": 50, "dim": 32, "depth": 2, "heads": 4, "context": 16}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("placement", ["pre", "peri", "deepnorm", "normformer", "dual", "hybrid"])
def test_a_model_compiles_in_one_graph(placement):
    torch.manual_seed(0)
    model = nk.LanguageModel(**SIZES, placement=placement, norm="rms", activation="swiglu", kv_heads=2)
    ids = torch.randint(50, (2, 9))
    # Traced and differentiated by the compiler, without the minutes that C++ code for it would take.
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids), model(ids))
    grads = []
    for run in (compiled, model):
        model.zero_grad()
        run(ids).square().mean().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_autocast_keeps_the_stream_in_float32(placement):
    torch.manual_seed(0)
    model, ids = nk.LanguageModel(**SIZES, placement=placement), torch.randint(50, (2, 9))
    streams = []
    for block in model.stack.blocks:
        block.register_forward_hook(lambda module, args, stream: streams.append(stream.total.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids)
    assert logits.dtype == torch.bfloat16
    assert streams == [torch.float32] * 2
    exact = model(ids)
    assert (logits - exact).norm() < 0.05 * exact.norm()
    logits.float().sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_keeps_its_angles(dtype):
    torch.manual_seed(0)
    model = nk.LanguageModel(**{**SIZES, "context": 512}).eval()
    ids = torch.randint(50, (1, 400))
    exact = model(ids)
    half = model.to(dtype)
    assert half.stack.rotary.cos.dtype == torch.float32
    got = half(ids)
    assert got.dtype == dtype
    assert (got - exact).norm() < 0.05 * exact.norm()


def test_a_model_on_the_meta_device_has_shapes():
    with torch.device("meta"):
        model = nk.LanguageModel(**SIZES)
        assert model(torch.zeros(2, 9, dtype=torch.long)).shape == (2, 9, 50)
