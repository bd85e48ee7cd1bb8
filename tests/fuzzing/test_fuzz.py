"""The fuzzer's first cases; and that it can fail: wrong norms, each wrong in one way, are all found."""

import functools

import pytest
import torch

from fuzzing.cases import draw
from fuzzing.judging import judge
from fuzzing.runner import State
from normkit import functional

CASES = 600
SEED = 0
RIGHT = {name: getattr(functional, name) for name in functional.__all__}


@pytest.mark.parametrize("start", range(0, CASES, 50))
def test_random_calls_keep_every_promise(start):
    verdicts = [judge(draw(SEED, index)) for index in range(start, start + 50)]
    failures = [str(failure) for verdict in verdicts for failure in verdict.failures]
    assert not failures, "\n".join(["run again: make fuzz ARGS='--case SEED:INDEX'", *failures])


def test_a_case_depends_on_its_seed_and_index_alone():
    first, again, other = draw(3, 14), draw(3, 14), draw(4, 14)
    assert str(first) == str(again) != str(other)
    assert torch.equal(first.x.nan_to_num(), again.x.nan_to_num())


def test_what_is_done_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzzing.runner.BUILD", tmp_path)
    State(7, resume=False).add(0, 250, {"failures": [], "worst": {"y": 0.5}})
    assert "0-250" in State(7, resume=True).chunks
    assert not State(7, resume=False).chunks


def eps_outside_the_root(x, shape, weight=None, bias=None, eps=1e-5, **others):
    """sqrt(var) + eps, in place of sqrt(var + eps)."""
    axis = others.get("axis", -1) % x.ndim
    axes = list(range(axis - len(shape) + 1, axis + 1))
    var = (x.double() - x.double().mean(axes, keepdim=True)).square().mean(axes, keepdim=True)
    right = RIGHT["layer_norm"](x, shape, None, None, eps, **{k: v for k, v in others.items() if k != "out"})
    y = right * ((var + eps).sqrt() / (var.sqrt() + eps)).to(x.dtype)
    place = [x.shape[a] if a in axes else 1 for a in range(x.ndim)]
    y = y if weight is None else y * weight.reshape(place).to(x.dtype)
    y = y if bias is None else y + bias.reshape(place).to(x.dtype)
    return y if others.get("out") is None else others["out"].copy_(y)


def mean_over_the_wrong_axis(x, *running, axis=1, **others):
    swapped = others.get("weight") is None is others.get("bias") and not any(t is not None for t in running)
    wrong = 1 + axis % x.ndim % (x.ndim - 1) if swapped and x.ndim > 2 else axis
    return RIGHT["instance_norm"](x, *running, axis=wrong, **others)


def forgotten_mask(x, num_groups, weight=None, bias=None, *, mask=None, **others):
    y = RIGHT["group_norm"](x, num_groups, weight, bias, **others)
    if mask is None:
        return y
    mask = mask if mask.ndim == x.ndim else mask.unsqueeze(others.get("axis", 1) % x.ndim)
    return torch.where(mask, y, 0)


def biased_running_variance(x, running_mean, running_var, *args, **others):
    y = RIGHT["batch_norm"](x, running_mean, running_var, *args, **others)
    if running_var is not None and others.get("training") and others.get("momentum"):
        running_var.mul_(1 - 1 / max(2, x.numel()))
    return y


class LostGradient(torch.autograd.Function):
    """dx without its mean, as a norm whose statistics are constants would have it."""

    @staticmethod
    def forward(ctx, x, y):
        return y

    @staticmethod
    def backward(ctx, dy):
        return torch.zeros_like(dy), dy * (1 + 2e-5)


class Once(torch.autograd.Function):
    """A gradient that has none itself."""

    @staticmethod
    def forward(ctx, x, shape, weight, bias, eps, axis):
        ctx.call = shape, eps, axis
        ctx.save_for_backward(x, weight, bias)
        return RIGHT["layer_norm"](x, shape, weight, bias, eps, axis=axis)

    @staticmethod
    def backward(ctx, dy):
        shape, eps, axis = ctx.call
        inputs = [None if t is None else t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            y = RIGHT["layer_norm"](inputs[0], shape, *inputs[1:], eps, axis=axis)
        found = iter(torch.autograd.grad(y, [t for t in inputs if t is not None], dy, create_graph=True))
        dx, dweight, dbias = (None if t is None else next(found) for t in inputs)
        return dx, None, dweight, dbias, None, None


def no_second_derivative(x, shape, weight=None, bias=None, eps=1e-5, *, axis=-1, **others):
    if not x.requires_grad or others:
        return RIGHT["layer_norm"](x, shape, weight, bias, eps, axis=axis, **others)
    return Once.apply(x, shape, weight, bias, eps, axis)


def gradient_off_by_a_little(x, *args, **others):
    y = RIGHT["rms_norm"](x, *args, **others)
    return LostGradient.apply(x, y) if y.requires_grad and y.dtype == x.dtype == torch.float32 else y


def off_by_a_hundred_thousandth(x, *args, **others):
    y = RIGHT["layer_norm"](x, *args, **others)
    return y.add_(2e-5 * y.std()) if not y.requires_grad and y.dtype == torch.float32 and y.numel() > 1 else y


def float32_inside_float64(x, pattern, weight=None, bias=None, *args, **others):
    if x.dtype != torch.float64 or others.get("out") is not None:
        return RIGHT["normalize"](x, pattern, weight, bias, *args, **others)
    return RIGHT["normalize"](x.float(), pattern, weight, bias, *args, **others).double()


def two_roundings(x, *args, **others):
    y = RIGHT["layer_norm"](x, *args, **others)
    return y if y.dtype != torch.bfloat16 or y.requires_grad else y.mul_(1.004)


def nan_for_the_neighbours(x, *args, **others):
    y = RIGHT["group_norm"](x, *args, **others)
    return y if x.isfinite().all() or y.requires_grad else y.fill_(torch.nan)


def changed_input(x, *args, **others):
    y = RIGHT["rms_norm"](x, *args, **others)
    if not x.requires_grad and x.numel() and y.data_ptr() != x.data_ptr():
        x.data[(0,) * x.ndim] += 1
    return y


def out_not_returned(x, *args, **others):
    y = RIGHT["layer_norm"](x, *args, **others)
    return y.clone() if others.get("out") is not None else y


def wrong_sum(x, residual, *args, **others):
    y, total = RIGHT["add_rms_norm"](x, residual, *args, **others)
    return y, total.nextafter(
        total + 1
    ) if total.dtype == torch.float32 and not total.requires_grad else total


def rounded_gain(x, shape, weight=None, *args, **others):
    weight = weight if weight is None else weight.bfloat16().to(weight.dtype)
    return RIGHT["rms_norm"](x, shape, weight, *args, **others)


WRONG = {  # what is replaced, by what, and the promise that must be seen to break
    "eps outside the root": ("layer_norm", eps_outside_the_root, "y"),
    "the mean over the wrong axis": ("instance_norm", mean_over_the_wrong_axis, "y"),
    "a forgotten mask": ("group_norm", forgotten_mask, "y"),
    "a biased running variance": ("batch_norm", biased_running_variance, "running_var"),
    "a gradient off by two hundred-thousandths": ("rms_norm", gradient_off_by_a_little, "dx"),
    "an output off by two hundred-thousandths": ("layer_norm", off_by_a_hundred_thousandth, "y"),
    "float32 inside float64": ("normalize", float32_inside_float64, "y"),
    "one step of bfloat16": ("layer_norm", two_roundings, "y"),
    "NaN for the neighbours": ("group_norm", nan_for_the_neighbours, "y"),
    "a changed input": ("rms_norm", changed_input, "inputs"),
    "another tensor than out": ("layer_norm", out_not_returned, "out"),
    "no second derivative": ("layer_norm", no_second_derivative, "second dx"),
    "a sum one step off": ("add_rms_norm", wrong_sum, "sum"),
    "a rounded weight": ("rms_norm", rounded_gain, "y"),
}


@functools.cache
def operators():
    return [draw(SEED, index).op for index in range(800)]


def breaks(index, promise):
    return any(failure.what == promise for failure in judge(draw(SEED, index)).failures)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_norm_is_found(name, monkeypatch):
    op, wrong, promise = WRONG[name]
    for index in (i for i, name in enumerate(operators()) if name == op):
        monkeypatch.setattr(functional, op, wrong)
        found = breaks(index, promise)
        monkeypatch.undo()
        if found and not breaks(index, promise):
            return
    pytest.fail("no case noticed it")
