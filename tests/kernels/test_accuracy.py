"""The accuracy grid: fp32 against float64 for large means in any layout, bf16 against the rounding floor."""

import math

import pytest
import torch
import torch.nn.functional as F
from family import FAMILY, POWER, call, over

import normkit as nk
from normkit import functional as ours

MEANS = [0.0, 1e2, 1e4, 1e6]
SIZES = [1, 2, 7, 123, 768, 4096, 65536]
EXACT = 1e-5  # the promise, for a spread of 1

LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "strided": lambda x: torch.stack([x, x], dim=-1).flatten(-2)[..., ::2],
    "reversed batch": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
}
# name -> (ours, torch's) on a (batch, channels, height, width) input with 6 channels
NORMS = {
    "layer_norm": lambda f, x, w, b: f.layer_norm(x, x.shape[1:], like(w, x), like(b, x)),
    "rms_norm": lambda f, x, w, b: f.rms_norm(x, x.shape[1:], like(w, x), 1e-6),
    "group_norm": lambda f, x, w, b: f.group_norm(x, 3, w, b),
    "batch_norm": lambda f, x, w, b: f.batch_norm(x, None, None, w, b, training=True),
    "instance_norm": lambda f, x, w, b: f.instance_norm(x, None, None, w, b),
}


def like(parameter, x):
    """One number a channel, spread over a sample."""
    return parameter.reshape(-1, 1, 1).expand(x.shape[1:])


def run(function, x, *parameters, weights):
    """Output and gradients, in the dtype of x."""
    tensors = [t.detach().to(x.dtype).clone(memory_format=torch.preserve_format) for t in (x, *parameters)]
    tensors = [t.requires_grad_() for t in tensors]
    y = function(*tensors)
    return [y, *torch.autograd.grad((y * weights.to(y.dtype)).sum(), tensors)]


def relative_errors(got, truth):
    """The forward error as it is; gradients against the largest of them, which 1/std scales."""
    y, *grads = ((g.double() - t).abs().max() for g, t in zip(got, truth, strict=True))
    largest = [max(1.0, t.abs().max().item()) for t in truth[1:]]
    return [y.item(), *(g.item() / m for g, m in zip(grads, largest, strict=True))]


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("size", SIZES)
def test_layer_norm_and_its_gradients_are_exact_for_any_mean_and_size(size, mean):
    torch.manual_seed(size)
    x, weights = torch.randn(8, size) + mean, torch.randn(8, size)
    weight, bias = torch.rand(size), torch.randn(size)

    def norm(f):
        return lambda x, w, b: f.layer_norm(x, (size,), w, b)

    truth = run(norm(F), x.double(), weight, bias, weights=weights)
    errors = relative_errors(run(norm(ours), x, weight, bias, weights=weights), truth)
    assert max(errors) < EXACT, errors


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm_and_its_gradients_are_exact_for_any_mean_and_size(size, mean):
    torch.manual_seed(size)
    x, weights = torch.randn(8, size) + mean, torch.randn(8, size)

    def norm(f):
        return lambda x, w: f.rms_norm(x, (size,), w, 1e-6)

    weight = torch.rand(size)
    truth = run(norm(F), x.double(), weight, weights=weights)
    errors = relative_errors(run(norm(ours), x, weight, weights=weights), truth)
    assert max(errors) < EXACT, errors


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_images_are_exact_for_any_mean_and_layout(name, layout, mean):
    torch.manual_seed(0)
    x = LAYOUTS[layout](torch.randn(4, 6, 16, 20) + mean)
    weight, bias, weights = torch.rand(6), torch.randn(6), torch.randn(4, 6, 16, 20)

    def norm(f):
        return lambda x, w, b: NORMS[name](f, x, w, b) + 0 * (w.sum() + b.sum())

    truth = run(norm(F), x.double().contiguous(), weight, bias, weights=weights)
    errors = relative_errors(run(norm(ours), x, weight, bias, weights=weights), truth)
    assert max(errors) < EXACT, errors


@pytest.mark.parametrize("mean", MEANS)
def test_patterns_and_masks_are_exact_for_any_mean(mean):
    torch.manual_seed(0)
    x = torch.randn(4, 50, 6) + mean
    mask = torch.rand(4, 50) > 0.3
    got = ours.normalize(x, "[b l] d", affine="d", mask=mask)[mask]
    truth = F.batch_norm(x.double()[mask], None, None, training=True)
    assert (got.double() - truth).abs().max() < EXACT


def test_torch_loses_the_digits_that_we_keep():
    """So that the grid above is known to be able to fail: torch's own kernels fail it."""
    torch.manual_seed(0)
    x = torch.randn(8, 768) + 1e6
    truth = F.layer_norm(x.double(), (768,))
    assert (F.layer_norm(x, (768,)).double() - truth).abs().max() > 1000 * EXACT
    images = (torch.randn(2, 8, 8, 8) + 1e3).contiguous(memory_format=torch.channels_last)
    truth = F.group_norm(images.double(), 4)
    assert (F.group_norm(images, 4).double() - truth).abs().max() > 1000 * EXACT


def test_running_statistics_are_exact_for_large_means():
    x = torch.randn(64, 3, 10) + torch.tensor([0.0, 1e4, 1e6]).reshape(3, 1)
    layer, truth = nk.BatchNorm1d(3, momentum=1.0), torch.nn.BatchNorm1d(3, momentum=1.0).double()
    layer(x)
    truth(x.double())
    torch.testing.assert_close(layer.running_var.double(), truth.running_var, rtol=1e-6, atol=0)
    torch.testing.assert_close(layer.running_mean.double(), truth.running_mean, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"])
def test_narrow_dtypes_are_within_a_tenth_of_the_rounding_floor(name, dtype):
    torch.manual_seed(0)
    rows, size = 512, 64
    shapes = {"layer_norm": (rows, size), "rms_norm": (rows, size)}
    x = torch.randn(shapes.get(name, (rows, size, 8))).to(dtype)
    weights = torch.randn(x.shape).to(dtype)
    parameters = [torch.rand(size).to(dtype)] + ([] if name == "rms_norm" else [torch.randn(size).to(dtype)])
    functions = {
        "layer_norm": lambda f: lambda x, w, b: f.layer_norm(x, (size,), w, b),
        "rms_norm": lambda f: lambda x, w: f.rms_norm(x, (size,), w, 1e-6),
        "group_norm": lambda f: lambda x, w, b: f.group_norm(x, 8, w, b),
        "batch_norm": lambda f: lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True),
        "instance_norm": lambda f: lambda x, w, b: f.instance_norm(x, None, None, w, b),
    }
    truth = run(functions[name](F), x.double(), *parameters, weights=weights)
    got = run(functions[name](ours), x, *parameters, weights=weights)
    for value, true_value in zip(got, truth, strict=True):
        assert error_over_floor(value, true_value) <= 1.1


def error_over_floor(value, true_value):
    floor = (true_value.to(value.dtype).double() - true_value).abs().max()
    return (value.double() - true_value).abs().max() / floor


# AdaNorm rounds the output of its norm first; PowerNorm and the rest round once.
TWICE = {"AdaNorm": 2, "AdaNorm-batch": 2}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@over([c for c in FAMILY + POWER if "after-cast" not in c.name])
def test_every_layer_is_at_the_rounding_floor_in_narrow_dtypes(case, dtype):
    narrow = {k: v.to(dtype) for k, v in case.inputs().items()}
    layer = case.layer(dtype)
    truth = case.layer().train(case.training)
    truth.load_state_dict(
        {k: v.double() if v.is_floating_point() else v for k, v in layer.state_dict().items()}
    )
    if hasattr(truth, "eps") and truth.eps is None:
        truth.eps = torch.finfo(torch.float32).eps
    y, true_y = call(layer, narrow), call(truth, {k: v.double() for k, v in narrow.items()})
    assert error_over_floor(y.detach(), true_y.detach()) <= 1.1 * TWICE.get(case.name, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("zero_centered_weight", [False, True])
def test_the_weight_gradient_of_llamas_rms_norm_is_at_the_rounding_floor(zero_centered_weight, dtype):
    """Of the function that it is: the normalised numbers are rounded before they meet the weight."""
    torch.manual_seed(0)
    x, grad = torch.randn(2, 512, 64).to(dtype)
    weight = torch.rand(64).to(dtype).requires_grad_()
    options = {"zero_centered_weight": zero_centered_weight, "multiply": "after_cast"}
    ours.rms_norm(x, (64,), weight, 1e-6, **options).backward(grad)
    rounded = F.rms_norm(x.double(), (64,), None, 1e-6).to(dtype).double()
    assert error_over_floor(weight.grad, (grad.double() * rounded).sum(0)) <= 1.1


@pytest.mark.parametrize(
    "parameter_dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_inputs_and_parameters_of_any_two_dtypes_work_together(name, dtype, parameter_dtype):
    torch.manual_seed(0)
    x = torch.randn(4, 6, 3, 5).to(dtype)
    weight, bias = (torch.randn(6).to(parameter_dtype).requires_grad_() for _ in range(2))
    y = NORMS[name](ours, x.requires_grad_(), weight, bias)
    truth = NORMS[name](F, x.detach().double(), weight.detach().double(), bias.detach().double())
    assert y.dtype == dtype
    unit = torch.finfo(dtype).eps if dtype != torch.float64 else torch.finfo(torch.float64).eps * 8
    torch.testing.assert_close(y.double(), truth, rtol=2 * unit, atol=4e-6 if unit > 1e-12 else 1e-12)
    y.sum().backward()
    assert x.grad.dtype == dtype
    assert weight.grad is None or weight.grad.dtype == parameter_dtype


CONSTANTS = [(v, torch.float32) for v in (0.0, 1.0, 0.1, -3.3, 1e6 + 0.1, 1e30, 3e38)]
CONSTANTS += [(v, torch.float64) for v in (0.0, 1.0, -4.0, 1e300)]


@pytest.mark.parametrize(("value", "dtype"), CONSTANTS)
@pytest.mark.parametrize("size", [1, 4, 777, 65536])
def test_a_constant_group_gives_exact_zeros(value, dtype, size):
    x = torch.full((2, size), value, dtype=dtype)
    assert not ours.layer_norm(x, (size,)).any()
    assert not ours.group_norm(x, 1).any()
    assert not ours.batch_norm(x, None, None, training=True).any()


@pytest.mark.parametrize("magnitude", [1e15, 1e20, 1e30, 1e37, 3.4e38])
def test_squares_that_overflow_do_not_spoil_the_result(magnitude):
    torch.manual_seed(0)
    unit = torch.rand(5, 64) * 2 - 1
    x = unit / unit.abs().max() * magnitude
    x[0] = magnitude * torch.tensor([1.0, -1.0]).repeat(32)
    x[1] = magnitude * torch.tensor([1.0, 1.0, 1.0, -1.0]).repeat(16)
    for norm in (lambda f, x: f.layer_norm(x, (64,)), lambda f, x: f.rms_norm(x, (64,), None, 1e-6)):
        got, truth = norm(ours, x), norm(F, x.double())
        assert (got.double() - truth).abs().max() < EXACT


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_stay_in_their_group(bad):
    x = torch.randn(4, 6, 2, 3)
    x[1, 2, 0, 1] = bad
    patterns = {
        "n [c h w]": (1,),
        "n c [h w]": (1, 2),
        "n (g [c]) [h w]": (1, slice(2, 4)),
        "[n] c [h w]": (slice(None), 2),
    }
    for pattern, group in patterns.items():
        y = ours.normalize(x, pattern, **({"g": 3} if "g" in pattern else {}))
        expected = torch.zeros(x.shape, dtype=torch.bool)
        expected[group] = True
        assert torch.equal(y.isnan(), expected), pattern


def test_one_inf_in_a_row_does_to_rms_norm_what_it_does_in_torch():
    x = torch.tensor([[1.0, math.inf, 2.0], [1.0, 2.0, 3.0]])
    torch.testing.assert_close(ours.rms_norm(x, (3,)), F.rms_norm(x, (3,)), equal_nan=True)
