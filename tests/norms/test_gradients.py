"""First and second derivatives of every layer, with respect to inputs and parameters."""

import pytest
import torch
from family import FAMILY, Case, over
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

import normkit as nk


def as_function(case: Case, **others):
    layer, inputs = case.layer(), case.inputs()
    names = [*inputs, *(n for n, _ in layer.named_parameters())]
    tensors = [*inputs.values(), *(p.detach() for p in layer.parameters())]

    def function(*values):
        named = dict(zip(names, values, strict=True))
        first, *rest = [named.pop(n) for n in inputs]
        extra = dict(zip(list(inputs)[1:], rest, strict=True))
        buffers = {n: b.clone() for n, b in layer.named_buffers()}
        return functional_call(layer, {**named, **buffers}, (first,), {**extra, **others})

    return function, tuple(t.clone().requires_grad_() for t in tensors)


@over(FAMILY)
def test_gradients_are_the_derivatives_of_the_output(case):
    assert gradcheck(*as_function(case), check_forward_ad=True, check_batched_grad=True)


@over(FAMILY)
def test_second_gradients_are_the_derivatives_of_the_first(case):
    assert gradgradcheck(*as_function(case))


@pytest.mark.parametrize("case", [c for c in FAMILY if c.mask_shape], ids=lambda c: c.name)
def test_gradients_with_a_mask_are_the_derivatives_of_the_output(case):
    mask = torch.rand(case.mask_shape, generator=torch.Generator().manual_seed(3)) > 0.3
    assert gradcheck(*as_function(case, mask=mask))
    assert gradgradcheck(*as_function(case, mask=mask))


@pytest.mark.parametrize("op", ["add_layer_norm", "add_rms_norm"])
def test_both_outputs_of_a_fused_sum_have_gradients(op):
    function = getattr(nk.functional, op)
    x, residual, weight = (
        torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((3, 5), (3, 5), 5)
    )

    def run(x, residual, weight):
        return function(x, residual, (5,), weight)

    assert gradcheck(run, (x, residual, weight))
    assert gradgradcheck(run, (x, residual, weight))


def test_an_empty_batch_gives_zero_gradients():
    for layer, shape in ((nk.LayerNorm(6), (0, 6)), (nk.RMSNorm(6), (0, 6)), (nk.GroupNorm(3, 6), (0, 6, 4))):
        x = torch.empty(shape, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        assert y.shape == x.shape == x.grad.shape
        assert all(p.grad is not None and not p.grad.any() for p in layer.parameters())


def test_an_empty_batch_leaves_running_statistics_alone():
    for layer, shape in (
        (nk.BatchNorm1d(6), (0, 6)),
        (nk.InstanceNorm1d(6, track_running_stats=True), (0, 6, 4)),
    ):
        before = {k: v.clone() for k, v in layer.state_dict().items() if "running" in k}
        x = torch.empty(shape, requires_grad=True)
        layer(x).sum().backward()
        assert x.grad.shape == shape
        assert all(torch.equal(layer.state_dict()[k], v) for k, v in before.items())
