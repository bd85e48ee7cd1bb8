"""Gradients of gradients where inputs depend on each other, are one tensor, or have hooks; odd modes."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import normkit.functional as N


def tensors(*shapes):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=draw, dtype=torch.float64).requires_grad_() for s in shapes]


def ln(f, x, w, b):
    return f.layer_norm(x, (6,), w, b)


def gn(f, x, w, b):
    return f.group_norm(x, 2, w, b)


def bn(f, x, w, b):
    return f.batch_norm(x, None, None, w, b, True)


CASES = {
    "a weight shared by two norms": lambda norm, f, x, w, b: norm(f, torch.tanh(norm(f, x, w, b)), w, b),
    "parameters that depend on the input": lambda norm, f, x, w, b: norm(
        f, x, x.mean(0).sigmoid() * w, x.sum(0)
    ),
    "one tensor as weight and bias": lambda norm, f, x, w, b: norm(f, x, w, w),
    "a residual chain": lambda norm, f, x, w, b: norm(f, x + norm(f, x, w, b), w, b),
}


@pytest.mark.parametrize("norm", [ln, gn, bn])
@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivatives_are_torchs(name, norm):
    found = []
    for library in (N, F):
        x, w, b = leaves = tensors((5, 6), 6, 6)
        y = CASES[name](norm, library, x, w, b)
        first = torch.autograd.grad(y.pow(3).sum(), leaves, create_graph=True, allow_unused=True)
        first = [g for g in first if g is not None]
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves, allow_unused=True)
        found.append([*first, *(g for g in second if g is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_hook_fires_once_when_the_gradient_is_to_be_differentiated():
    for norm in (ln, gn, bn):
        x, w, b = tensors((5, 6), 6, 6)
        calls = []
        h = x * 2
        h.register_hook(lambda g, calls=calls: calls.append("x"))
        w.register_hook(lambda g: g * 3)
        (plain,) = torch.autograd.grad(norm(N, h, w, b).pow(2).sum(), w, retain_graph=True)
        (again,) = torch.autograd.grad(norm(N, x * 2, w, b).pow(2).sum(), w, create_graph=True)
        torch.testing.assert_close(again, plain)
        norm(N, h, w, b).pow(2).sum().backward(create_graph=True)
        assert calls == ["x"]


def test_forward_mode_over_a_backward_keeps_the_tangent():
    for norm in (ln, bn):
        found = []
        for library in (N, F):
            x, w, b = tensors((5, 6), 6, 6)
            dy, tangent = (t.detach() for t in tensors((5, 6), (5, 6)))
            y = norm(library, x, w, b)
            with forward_ad.dual_level():
                (dx,) = torch.autograd.grad(y, x, forward_ad.make_dual(dy, tangent))
                found.append(forward_ad.unpack_dual(dx).tangent)
        assert found[0] is not None
        torch.testing.assert_close(*found)


def test_who_keeps_what_is_overwritten_gets_the_old_numbers():
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        w, h = torch.randn(5, 6, requires_grad=True), torch.randn(5, 6)
        before = h.clone()
        y = (h * w).sum()
        with torch.no_grad():
            N.group_norm(torch.randn(5, 6), 2, out=h)
        (dw,) = torch.autograd.grad(y, w)
    assert torch.equal(dw, before)


def test_running_statistics_may_lie_anywhere():
    x = torch.randn(5, 6)
    for mean in (torch.zeros(12)[::2], torch.zeros(6, 3)[:, 1]):
        var, true_mean, true_var = torch.ones(6), torch.zeros(6), torch.ones(6)
        N.batch_norm(x, mean, var, training=True)
        F.batch_norm(x, true_mean, true_var, training=True)
        torch.testing.assert_close(mean, true_mean)
        torch.testing.assert_close(var, true_var)


@pytest.mark.parametrize("eps", [float("nan"), -1e9])
def test_an_eps_that_is_no_number_is_not_hidden(eps):
    x = torch.randn(3, 6)
    assert N.layer_norm(x, (6,), eps=eps).isnan().all()
    assert N.rms_norm(x, (6,), eps=eps).isnan().all()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
def test_any_layout_compiles_with_symbols_for_sizes(layout):
    w, b = torch.rand(6), torch.rand(6)

    def f(x):
        y = N.group_norm(x, 2, w, b) + N.layer_norm(x, (6,), w, b, axis=1)
        return y + N.batch_norm(x, None, None, w, w, True)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="eager")
    for n in (5, 7):
        x = torch.randn(2, 6, n, 2 * n)
        x = x[..., ::2] if layout == "sliced" else x
        x = x.to(memory_format=torch.channels_last) if layout == "channels_last" else x
        torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'>")  # torch's own doing
def test_out_and_one_tensor_twice_compile():
    x, w, out = torch.randn(4, 6), torch.rand(6), torch.empty(4, 6)
    compiled = torch.compile(
        lambda x, w, out: N.layer_norm(x, (6,), w, w, out=out), fullgraph=True, backend="eager"
    )
    compiled(x, w, out)
    torch.testing.assert_close(out, N.layer_norm(x, (6,), w, w))
    x.requires_grad_()
    compiled = torch.compile(lambda x, w: N.layer_norm(x, (6,), w, w), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, w.requires_grad_()), N.layer_norm(x, (6,), w, w))
