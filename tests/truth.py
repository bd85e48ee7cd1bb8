"""Calls of the kernels and their truth: the reference, in float64, on the same numbers."""

import inspect

import torch

from normkit import kernels
from normkit.kernels import reference

WIDE = torch.float64
# Error against float64, as a share of the largest true number: float32 sums, then one rounding of the output.
SHARE = {torch.float64: 1e-13, torch.float32: 4e-6, torch.bfloat16: 4.5e-3, torch.float16: 6e-4}


def widened(value):
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().to(WIDE)
    return value


def leaves(call):
    return {k: v for k, v in call.items() if isinstance(v, torch.Tensor) and v.requires_grad}


def complete(op, call):
    """A call with the arguments that it leaves out, as the reference has them."""
    signature = inspect.signature(getattr(reference, op.removeprefix("add_")))
    defaults = {
        n: p.default for n, p in signature.parameters.items() if p.default is not p.empty and n != "dtype"
    }
    return {**defaults, **call}


def on_kernels(op, x, out=None, **call):
    """A call on the kernels, which must take it."""
    call = complete(op, call)
    backend, plan, why = kernels.admit(op, x, call)
    assert backend in ("cpu", "triton"), why
    return kernels.BACKENDS[backend].run(op, x, call, plan, out)


def on_reference(op, x, **call):
    return getattr(reference, op)(x, **call)


def run(backend, op, x, call, grads=None):
    """Outputs and gradients of one call, as one list."""
    outputs = backend(op, x, **call)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    inputs = [x, *leaves(call).values()]
    if grads is None:
        return outputs
    return outputs + list(torch.autograd.grad(outputs, inputs, grads))


def compare(op, x, call, share=None):
    """Run the kernels and the reference in float64; every result must agree."""
    x = x.detach().requires_grad_()
    call = {
        k: v.detach().requires_grad_() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in call.items()
    }
    with torch.no_grad():
        shapes = run(on_kernels, op, x, call)
    grads = [torch.randn(y.shape).to(y.dtype) for y in shapes]
    got = run(on_kernels, op, x, call, grads)
    wide_call = {k: widened(v) for k, v in call.items()}
    wide_x = widened(x)
    if "residual" in call:  # the sum is rounded before it is normalised, by definition
        wide_x, wide_call["residual"] = widened(x + call["residual"]), torch.zeros_like(wide_x)
    for name in leaves(call):
        wide_call[name].requires_grad_()
    truth = run(on_reference, op, wide_x.requires_grad_(), wide_call, [g.to(WIDE) for g in grads])
    for value, true_value in zip(got, truth, strict=True):
        assert_close(value, true_value, share)


def assert_close(value, true_value, share=None):
    assert value.shape == true_value.shape
    share = SHARE[value.dtype] if share is None else share
    if true_value.numel():
        scale = true_value.abs().max().clamp_min(1)
        error = (value.to(WIDE) - true_value).abs().max() / scale
        assert error <= share, f"error {error:.2e} of the largest number, {value.dtype} allows {share:.0e}"
