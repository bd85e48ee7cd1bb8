"""torch.compile, torch.func and autocast, over the whole family."""

import copy

import pytest
import torch
from family import FAMILY, POWER, call, over
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jacrev, jvp, vmap

import normkit as nk

# Dynamo instantiates every autograd.Function that it traces, and torch warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
# Inductor fuses, and sums in another order than eager.
CLOSE = {"rtol": 1e-9, "atol": 1e-10}


def step(layer, function, inputs, **others):
    tensors = {k: v.clone().requires_grad_() for k, v in inputs.items()}
    y = call(function, tensors, **others)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward()
    grads = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    return [y.detach(), *(t.grad for t in tensors.values()), *grads, *(b.clone() for b in layer.buffers())]


# One of each kind goes through Inductor as well, which takes seconds a layer.
KINDS = (
    *("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm2d", "BatchNorm2d-average", "InstanceNorm2d"),
    *("Norm-group-rms", "ScaleNorm", "DyT", "AdaNorm-batch", "PowerNorm"),
)
GRAPHS = [("aot_eager", case) for case in FAMILY + POWER]
GRAPHS += [("inductor", case) for case in FAMILY + POWER if case.name in KINDS]


@pytest.mark.parametrize(("backend", "case"), GRAPHS, ids=lambda v: v if isinstance(v, str) else v.name)
def test_every_layer_compiles_to_one_graph_with_the_same_numbers(backend, case):
    torch._dynamo.reset()
    eager, compiled = case.layer(), case.layer()
    function = torch.compile(compiled, fullgraph=True, backend=backend)
    for seed in range(2):  # twice: running statistics move on
        inputs = case.inputs(seed=seed)
        expected, got = step(eager, eager, inputs), step(compiled, function, inputs)
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize(
    "case",
    [
        c
        for c in FAMILY + POWER
        if c.name in ("AdaNorm-batch", "BatchNorm1d-last", "GroupNorm", "Norm-group", "PowerNorm")
    ],
    ids=lambda c: c.name,
)
def test_masks_compile_to_one_graph_with_the_same_numbers(case):
    torch._dynamo.reset()
    mask = torch.rand(case.mask_shape, generator=torch.Generator().manual_seed(0)) > 0.4
    eager, compiled = case.layer(), case.layer()
    expected = step(eager, eager, case.inputs(), mask=mask)
    got = step(compiled, torch.compile(compiled, fullgraph=True), case.inputs(), mask=mask)
    torch.testing.assert_close(got, expected, **CLOSE)


def test_functions_compile_to_one_graph():
    torch._dynamo.reset()

    def everything(x, weight):
        y, total = nk.functional.add_layer_norm(x, x, (8,), weight)
        z, _ = nk.functional.add_rms_norm(y, total, (8,), weight)
        w = nk.functional.normalize(z, "b (g [c])", g=2)
        return nk.functional.normalize(w, "[b] d", weight, affine="d")

    x, weight = torch.randn(4, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    compiled = torch.compile(everything, fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), everything(x, weight), **CLOSE)


def test_a_new_batch_size_does_not_break_a_dynamic_graph():
    torch._dynamo.reset()
    model = nn.Sequential(nk.LayerNorm(6), nk.RMSNorm(6), nk.Norm("b [d]", d=6), nk.BatchNorm1d(6))
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for rows in (4, 5, 9):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x), copy.deepcopy(model)(x))


@over([c for c in FAMILY if not list(c.make().buffers())])
def test_torch_func_maps_and_differentiates_every_layer(case):
    layer, inputs = case.layer(), case.inputs()
    first, *rest = inputs.values()
    parameters = dict(layer.named_parameters())

    def function(x, *others):
        return call(layer, dict(zip(inputs, (x, *others), strict=True)))

    batch = torch.stack([first, 2 * first, -first])
    others = [torch.stack([r] * 3) for r in rest]
    expected = torch.stack([function(x, *rest) for x in batch])
    torch.testing.assert_close(vmap(function)(batch, *others), expected)
    tangent = torch.randn_like(first)
    y, dy = jvp(lambda x: function(x, *rest), (first,), (tangent,))
    jacobian = jacrev(lambda x: function(x, *rest))(first)
    torch.testing.assert_close(y, function(first, *rest))
    torch.testing.assert_close(dy, torch.tensordot(jacobian, tangent, dims=tangent.ndim))

    def loss(parameters, x):
        keywords = dict(zip(list(inputs)[1:], rest, strict=True))
        return functional_call(layer, parameters, (x,), keywords).square().sum()

    if parameters:
        each = vmap(grad(loss), in_dims=(None, 0))(parameters, batch)  # per-sample gradients
        one = grad(loss)(parameters, batch[1])
        torch.testing.assert_close({k: v[1] for k, v in each.items()}, one)


def test_batch_norm_without_running_statistics_can_be_mapped():
    """torch's own advice for BatchNorm under vmap works on ours as well."""
    model = nn.Sequential(nk.BatchNorm1d(6)).double()
    torch.func.replace_all_batch_norm_modules_(model)
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(vmap(model)(x), torch.stack([model(part) for part in x]))


# torch's own RMSNorm says that it misses its fused path for mixed dtypes.
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "BatchNorm1d", "GroupNorm", "InstanceNorm1d"])
def test_autocast_gives_the_dtype_that_torch_gives(name, dtype):
    arguments = (2, 6) if name == "GroupNorm" else (6,)
    x = torch.randn(4, 6, 6).to(dtype)
    ours, theirs = getattr(nk, name)(*arguments), getattr(nn, name)(*arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = ours(x), theirs(x)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore:normkit runs without kernels of its own")
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "BatchNorm1d", "GroupNorm", "InstanceNorm1d"])
def test_autocast_on_an_accelerator_gives_the_dtype_that_torch_gives(name):
    """Fake tensors know the dtypes of a GPU without having one; torch.autocast itself asks for one."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            arguments = (2, 6) if name == "GroupNorm" else (6,)
            x = torch.empty(4, 6, 6, dtype=torch.float16, device="cuda")
            ours, theirs = (getattr(m, name)(*arguments, device="cuda").eval() for m in (nk, nn))
            assert ours(x).dtype == theirs(x).dtype
    finally:
        torch.set_autocast_enabled("cuda", False)


def test_a_network_trains_under_autocast():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 6), nk.LayerNorm(6), nn.Linear(6, 6), nk.RMSNorm(6), nk.Norm("b [d]", d=6)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 6)).float().square().mean()
    loss.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
