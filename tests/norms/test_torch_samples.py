"""PyTorch's own sample inputs for its norms, run through ours: outputs, gradients, state and refusals."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

import normkit as nk

OPS = {
    op.name.removeprefix("nn.functional."): op
    for op in op_db
    if op.name in {f"nn.functional.{n}_norm" for n in ("layer", "rms", "group", "batch", "instance")}
    and not op.variant_test_name
}
MODULES = {info.module_cls.__name__: info for info in module_db if hasattr(nk, info.module_cls.__name__)}
# Rounding: torch's kernels sum in another order, and lose digits where numbers are large. How much of a
# difference is torch's, and how much ours, the comparison with float64 below tells.
TOLERANCE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.complex64: {"rtol": 1e-4, "atol": 1e-4},
    torch.complex128: {"rtol": 1e-9, "atol": 1e-9},
}


def test_all_of_torchs_norms_are_covered():
    assert set(OPS) == {"layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"}
    assert set(MODULES) >= {
        *("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d"),
        *("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"),
    }


def independent(values, dtype=None):
    """The same sample twice must not share running statistics or gradients."""
    return [
        v.detach().clone().to(dtype).requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v
        for v in values
    ]


def evaluate(function, sample, dtype, **more):
    """The output, all gradients and all changed state of one call, on tensors of its own."""
    values = independent([sample.input, *sample.args], dtype)
    keywords = dict(zip(sample.kwargs, independent(sample.kwargs.values(), dtype), strict=True))
    tensors = [v for v in (*values, *keywords.values()) if isinstance(v, torch.Tensor)]
    y = function(*values, **{**more, **keywords})
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).bfloat16().to(dtype)
    loss = (y * weights).sum()
    wanted = [t for t in tensors if t.requires_grad]
    grads = torch.autograd.grad(loss.real if dtype.is_complex else loss, wanted, allow_unused=True)
    state = [t for t in tensors if not t.requires_grad]
    return [y, *grads, *state]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_functions_agree_with_torch_on_its_samples(name, dtype):
    op = OPS[name]
    if dtype not in op.dtypes:
        with pytest.raises(nk.NormkitError, match="floating-point"):
            getattr(nk.functional, name)(torch.ones(2, 4, 4, dtype=dtype), *_minimal(name))
        return
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=True))
    assert samples
    for sample in samples:
        theirs = evaluate(getattr(F, name), sample, dtype)
        ours = evaluate(getattr(nk.functional, name), sample, dtype)
        for their_value, our_value in zip(theirs, ours, strict=True):
            torch.testing.assert_close(our_value, their_value, equal_nan=True, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_functions_are_never_less_exact_than_torch_on_its_samples(name, dtype):
    """Against float64 on the same numbers: our error is at most torch's, or the rounding of the dtype."""
    # eps=None stands for that of the dtype in which the mean square is taken, float32 here.
    eps = {"eps": torch.finfo(torch.float32).eps} if name == "rms_norm" else {}
    for sample in OPS[name].sample_inputs("cpu", dtype, requires_grad=True):
        theirs = evaluate(getattr(F, name), sample, dtype)
        ours = evaluate(getattr(nk.functional, name), sample, dtype)
        truth = evaluate(getattr(F, name), sample, torch.float64, **eps)
        for their_value, our_value, true_value in zip(theirs, ours, truth, strict=True):
            if our_value is None or our_value.numel() == 0:
                assert their_value is None or their_value.shape == our_value.shape
                continue
            assert our_value.dtype == their_value.dtype
            rounded = true_value.to(our_value.dtype)
            error, torch_error, floor = (
                (v.double() - true_value).abs().nan_to_num().max() for v in (our_value, their_value, rounded)
            )
            # 1e-5: where all is rounding, as in the gradient of a group of one
            least = 1e-5 * max(1.0, float(true_value.detach().abs().nan_to_num().max()))
            assert error <= 1.001 * max(torch_error, floor) + least, (error, torch_error, floor)


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.error_inputs_func is not None])
def test_functions_refuse_what_torch_refuses(name):
    for error in OPS[name].error_inputs("cpu"):
        sample = error.sample_input
        with pytest.raises(error.error_type):
            getattr(F, name)(sample.input, *sample.args, **sample.kwargs)
        with pytest.raises(nk.NormkitError) as ours:
            getattr(nk.functional, name)(sample.input, *sample.args, **sample.kwargs)
        assert "expected" in str(ours.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_layers_agree_with_torch_on_its_samples(name, training, dtype):
    info = MODULES[name]
    samples = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    assert samples
    for sample in samples:
        build, feed = sample.constructor_input, sample.forward_input
        theirs = getattr(nn, name)(*build.args, **build.kwargs, dtype=dtype).train(training)
        ours = getattr(nk, name)(*build.args, **build.kwargs, dtype=dtype).train(training)
        assert repr(ours) == repr(theirs)
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.uniform_()
        ours.load_state_dict(theirs.state_dict())
        outputs = []
        for layer in (theirs, ours):
            x, *rest = independent(feed.args)
            y = layer(x, *rest, **feed.kwargs)
            (y * torch.linspace(-1, 1, y.numel(), dtype=dtype).reshape(y.shape)).sum().backward()
            outputs.append((y, x.grad))
        for torch_value, our_value in zip(*outputs, strict=True):
            torch.testing.assert_close(our_value, torch_value, **TOLERANCE[dtype])
        for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, other.grad, **TOLERANCE[dtype])
        for key, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[key], value, **TOLERANCE[dtype])


@pytest.mark.parametrize("name", [n for n, i in MODULES.items() if i.module_error_inputs_func is not None])
def test_layers_refuse_what_torch_refuses(name):
    info = MODULES[name]
    errors = info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )
    assert errors
    for error in errors:
        sample = error.module_error_input
        build, feed = sample.constructor_input, sample.forward_input
        with pytest.raises(error.error_type):
            getattr(nn, name)(*build.args, **build.kwargs)(*feed.args, **feed.kwargs)
        with pytest.raises(nk.NormkitError):
            getattr(nk, name)(*build.args, **build.kwargs)(*feed.args, **feed.kwargs)


def _minimal(name):
    return {"group_norm": (2,), "batch_norm": (None, None), "instance_norm": ()}.get(name, ((4,),))
