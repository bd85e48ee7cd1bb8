"""One place decides what runs; what it says is what really ran."""

import inspect
import itertools
import threading
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import normkit as nk
import normkit.functional as N
from normkit import kernels
from normkit.kernels import aten, reference

# ---- the operator that ran, for each op, rank, layout, dtype and mode --------------------------------------

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = ((6,), (4, 6), (3, 4, 6), (2, 3, 4, 6), (2, 3, 2, 4, 6))
IMAGES = ((4, 6), (4, 6, 5), (2, 6, 3, 5), (2, 6, 3, 2, 5))
LAYOUTS = ("contiguous", "channels_last", "transposed", "sliced")
# What may run beside our operators: memory and views of it, and copies into or out of a layout that no
# kernel knows.
NO_ARITHMETIC = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "view"),
    *("permute", "transpose", "expand", "unsqueeze", "reshape", "_unsafe_view", "as_strided", "t", "slice"),
    *("contiguous", "clone", "to", "copy_", "_to_copy", "ones_like", "resolve_neg", "resolve_conj"),
    *("_reshape_alias", "add_", "unbind"),
}


def laid_out(x, layout):
    if layout == "channels_last" and x.ndim in (4, 5):
        return x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)
    if layout == "transposed" and x.ndim > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced":
        return torch.cat([x, x], -1)[..., : x.shape[-1]]
    return x


def rows(function, parameters, **options):
    def call(x, p, out):
        return function(x, (6,), *p[:parameters], **options, out=out)

    return call


def channels(function, *running, **options):
    return lambda x, p, out: function(x, *running, weight=p[0], bias=p[1], **options, out=out)


def batch(training):
    running = torch.zeros(6), torch.ones(6)
    return lambda x, p, out: N.batch_norm(x, *running, p[0], p[1], training, out=out)


def pattern(x, p, out):
    return N.normalize(x, f"[n] c [{' '.join('hwd'[: x.ndim - 2])}]", p[0], p[1], affine="c", out=out)


CALLS = {  # name: (call, shapes, operators of a forward, of one with a gradient, into out=, of a backward)
    "layer_norm": (rows(N.layer_norm, 2), SHAPES, "rows", "rows_train", "rows_out", "rows_backward"),
    "rms_norm": (rows(N.rms_norm, 1), SHAPES, "rows", "rows_train", "rows_out", "rows_backward"),
    "rms_norm llama": (
        rows(N.rms_norm, 1, multiply="after_cast"),
        SHAPES,
        "rows",
        "rows_train",
        "rows_out",
        "rows_backward",
    ),
    "rms_norm gemma": (
        rows(N.rms_norm, 1, zero_centered_weight=True),
        SHAPES,
        "rows",
        "rows_train",
        "rows_out",
        "rows_backward",
    ),
    "add_layer_norm": (
        lambda x, p, out: N.add_layer_norm(x, x.clone(), (6,), *p, out=out),
        SHAPES,
        "rows_add",
        "rows_add_train",
        "rows_add_out",
        "rows_backward",
    ),
    "add_rms_norm": (
        lambda x, p, out: N.add_rms_norm(x, x.clone(), (6,), p[0], out=out),
        SHAPES,
        "rows_add",
        "rows_add_train",
        "rows_add_out",
        "rows_backward",
    ),
    "group_norm": (channels(N.group_norm, 3), IMAGES, "groups", "groups", "groups_out", "groups_backward"),
    "instance_norm": (
        channels(N.instance_norm),
        IMAGES[1:],
        "groups",
        "groups",
        "groups_out",
        "groups_backward",
    ),
    "batch_norm": (batch(True), IMAGES, "groups", "groups", "groups_out", "groups_backward"),
    "batch_norm eval": (batch(False), IMAGES, "groups", "groups", "groups_out", "groups_backward"),
    "normalize": (pattern, IMAGES[1:], "groups", "groups", "groups_out", "groups_backward"),
}


class Seen(TorchDispatchMode):
    """The operators that pass the dispatcher."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name().split(".")[0])
        return func(*args, **(kwargs or {}))


def by_dispatch(call):
    with Seen() as seen:
        result = call()
    return result, seen.names


def by_profiler(call):
    with torch.autograd.profiler.profile() as profile:
        result = call()
    return result, [event.name for event in profile.function_events]


def ours(names):
    """Our operators, in order, but for running statistics; and what of torch's computed beside them."""
    torchs = {n.removeprefix("aten::").removesuffix("_backward") for n in names if n.startswith("aten::")}
    mine = [n.removeprefix("normkit::") for n in names if n.startswith("normkit::")]
    return [n for n in mine if n != "update_running"], torchs - NO_ARITHMETIC


@pytest.mark.parametrize("how", [by_profiler, by_dispatch])
@pytest.mark.parametrize("name", CALLS)
def test_the_operator_that_ran(name, how):
    for dtype, shape, layout in itertools.product(DTYPES, CALLS[name][1], LAYOUTS):
        if how is by_profiler and dtype in (torch.float64, torch.float16) and layout != "contiguous":
            continue  # a profile takes its time
        look(name, how, laid_out(torch.randn(shape), layout).to(dtype), layout)


def look(name, how, x, layout):
    call, _, forward, train, into, backward = CALLS[name]
    case = f"{name}, {x.dtype}, {tuple(x.shape)}, {layout}"
    p = [torch.rand(6, dtype=x.dtype) for _ in range(2)]
    with torch.no_grad():
        ran, others = ours(how(lambda: call(x, p, None))[1])
        assert ran == [forward], case
        assert not others, case
        out = torch.empty_like(x)
        out = (out, out.clone()) if name.startswith("add") else out
        ran, _ = ours(how(lambda: call(x, p, out))[1])
        assert ran == [into] if layout == "contiguous" else ran in ([into], [forward]), case
    leaves = [x.requires_grad_(), *(t.requires_grad_() for t in p)]
    result, names = how(lambda: call(x, p, None))
    assert ours(names)[0] == [train], case
    y = result[0] if isinstance(result, tuple) else result
    dy = torch.ones_like(y)
    ran, others = ours(how(lambda: torch.autograd.grad(y, leaves[:2], dy))[1])
    assert ran == [backward], case
    assert not others - {"add"}, case


def test_a_closer_look_can_fail():
    assert ours(["aten::mul", "normkit::rows", "aten::empty_like"]) == (["rows"], {"mul"})
    _, names = by_profiler(
        lambda: reference.layer_norm(torch.ones(2, 6), axes=(1,), weight=None, bias=None, eps=1)
    )
    assert ours(names)[0] == []


# ---- other devices -----------------------------------------------------------------------------------------

META = {
    "layer_norm": lambda f, x, w: f.layer_norm(x, (6,), w, w),
    "rms_norm": lambda f, x, w: f.rms_norm(x, (6,), w, 1e-5),
    "group_norm": lambda f, x, w: f.group_norm(x.movedim(-1, 1), 3, w, w),
    "instance_norm": lambda f, x, w: f.instance_norm(x.movedim(-1, 1)),
    "batch_norm": lambda f, x, w: f.batch_norm(x.movedim(-1, 1), *[w.float()] * 4, True),
    "batch_norm eval": lambda f, x, w: f.batch_norm(x.movedim(-1, 1), *[w.float()] * 4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", META)
def test_a_device_without_kernels_launches_what_torch_launches(name, dtype):
    x, w = torch.ones(4, 3, 6, dtype=dtype, device="meta"), torch.ones(6, dtype=dtype, device="meta")
    (y, mine), (expected, torchs) = (
        by_dispatch(lambda f=f: META[name](f, x, w)) for f in (N, torch.nn.functional)
    )
    computed = [n for n in mine if n.removeprefix("aten::") not in NO_ARITHMETIC]
    assert computed == [n for n in torchs if n.removeprefix("aten::") not in NO_ARITHMETIC]
    assert (y.shape, y.dtype, y.device) == (expected.shape, expected.dtype, expected.device)
    if name in ("layer_norm", "rms_norm", "group_norm", "batch_norm") and dtype == torch.float32:
        assert len(computed) == (1 if name != "rms_norm" else len(computed))


def test_what_torch_cannot_compute_is_left_to_the_reference_there():
    x, mask = torch.ones(4, 6, device="meta"), torch.ones(4, dtype=torch.bool, device="meta")
    said = kernels.explain(x, mask=mask)
    assert "batch_norm      reference  exact; cpu: it computes on the CPU; this tensor is on meta; " in said
    assert "aten: torch has neither mask= nor process_group=" in said
    assert "layer_norm      aten       rounds as torch does; cpu: it computes on the CPU; this" in said
    wide = {"weight": torch.ones(6, dtype=torch.float64, device="meta")}
    assert kernels.choices(x, **wide)["layer_norm"][0] == "reference"


def test_exact_asks_for_the_reference_in_this_thread_alone():
    x = torch.ones(2, 6, device="meta")
    found = []
    with nk.exact():
        assert kernels.choices(x)["layer_norm"][0] == "reference"
        assert kernels.choices(torch.ones(2, 6))["layer_norm"][0] == "cpu", "the kernels are exact"
        other = threading.Thread(target=lambda: found.append(kernels.choices(x)["layer_norm"][0]))
        other.start()
        other.join()
        with nk.exact():
            pass
        assert kernels.choices(x)["layer_norm"][0] == "reference"
    assert kernels.choices(x)["layer_norm"][0] == "aten"
    assert found == ["aten"]


def test_exact_holds_in_compiled_code_too():
    graphs = []

    def backend(graph, inputs):
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph

    f = torch.compile(lambda x: N.layer_norm(x, (6,)), fullgraph=True, backend=backend)
    x = torch.ones(2, 6, device="meta")
    f(x)
    with nk.exact():
        f(x)
    f(x)
    assert len(graphs) == 2
    assert graphs[0] < 5 < graphs[1]


def test_one_line_once_says_what_runs_on_a_device_without_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "_SAID", set())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            N.layer_norm(torch.ones(2, 6, device="meta"), (6,))
    (one,) = seen
    assert "\n" not in str(one.message)
    assert "there are none for meta" in str(one.message)
    assert one.filename == __file__


# ---- reasons -----------------------------------------------------------------------------------------------


def admitted(op, x, **call):
    arguments = {**kernels._typical(op, x), **call}
    return kernels.admit(op, x, arguments)


def test_the_reference_is_last_and_takes_every_call():
    assert list(kernels.BACKENDS)[-1] == "reference"
    assert kernels.BACKENDS["reference"].consider("anything", torch.ones(1), {}) is None


@pytest.mark.parametrize("op", [n for n in aten.__all__ if n != "refuses"])
def test_a_backend_has_the_references_operators(op):
    assert op in reference.__all__
    theirs, own = (inspect.signature(getattr(m, op)).parameters for m in (aten, reference))
    named = {n for n, p in theirs.items() if p.kind is not p.VAR_KEYWORD}
    assert named <= set(own) | {n for n, p in own.items() if p.kind is p.VAR_KEYWORD}


X = torch.ones(2, 3)
KERNELS = [  # operator, input, arguments, what the reason says
    ("layer_norm", X.to(torch.complex64), {}, "no kernels for torch.complex64"),
    ("layer_norm", X, {"weight": torch.ones(3, dtype=torch.float8_e4m3fn)}, "weight of torch.float8_e4m3fn"),
    ("batch_norm", X, {"process_group": object()}, "several processes"),
    ("batch_norm", X, {"running_mean": torch.ones(3, requires_grad=True)}, "requires a gradient"),
    ("rms_norm", X, {"multiply": "after_cast", "weight": torch.ones(3).double()}, "another dtype"),
    ("add_layer_norm", X, {"residual": X.double()}, "does not add"),
    ("add_layer_norm", X, {"axes": (0,)}, "last axes only"),
    (
        "batch_norm",
        X[:, :, None].expand(2, 3, 4),
        {"mask": torch.tensor([[[True]], [[False]]]).expand(2, 3, 4).contiguous()},
        "from channel to channel",
    ),
    ("normalize", torch.ones(2, 3, 4, 5, 6, 7), {"axes": (0, 2, 4)}, "alternate too often"),
    (
        "normalize",
        torch.ones(2, 3, 4),
        {"axes": (2,), "weight": torch.ones(1, 3, 1), "bias": torch.ones(1, 1, 4)},
        "along different axes",
    ),
    ("layer_norm", torch.nn.Buffer(X).as_subclass(type("Odd", (torch.Tensor,), {})), {}, "tensor subclass"),
]


@pytest.mark.parametrize(("op", "x", "call", "reason"), KERNELS)
def test_the_kernels_say_why_they_do_not_take_a_call(op, x, call, reason):
    backend, _, why = admitted(op, x, **call)
    assert backend == "reference"
    assert reason in why


EXPORT = [  # operator, arguments, what the reason says (None: taken)
    ("layer_norm", {}, None),
    ("layer_norm", {"weight": torch.ones(3).double()}, "dtype"),
    ("group_norm", {"mask": torch.ones(1)}, "mask"),
    ("batch_norm", {"axis": 2}, "axis 1"),
    ("batch_norm", {"num_batches_tracked": torch.ones(())}, "count batches"),
    ("batch_norm", {"momentum": None}, "average"),
    ("batch_norm", {"running_mean": torch.ones(3, requires_grad=True)}, "gradient"),
    ("normalize", {"axes": (0,)}, "last axes"),
    ("normalize", {"weight": torch.ones(2, 1)}, "last axes"),
    ("batch_norm", {"process_group": object()}, "process_group"),
    ("rms_norm", {"zero_centered_weight": True}, None),
    ("add_layer_norm", {"residual": torch.ones(2, 3).double()}, "one dtype"),
    ("rms_norm", {"multiply": "after_cast", "weight": torch.ones(3)}, None),
]


@pytest.mark.parametrize(("op", "call", "reason"), EXPORT)
def test_torchs_operators_take_exported_graphs_and_say_why_not(op, call, reason, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    backend, _, why = admitted(op, X, **call)
    assert backend == ("aten" if reason is None else "reference")
    assert reason is None or reason in why.split("aten: ")[1]


def test_narrow_llama_and_gemma_rounding_is_left_to_the_reference_in_exported_graphs(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    narrow = {"weight": torch.ones(3).bfloat16()}
    assert admitted("rms_norm", X.bfloat16(), multiply="after_cast", **narrow).backend == "reference"
    assert admitted("rms_norm", X.bfloat16(), zero_centered_weight=True, **narrow).backend == "reference"


def test_group_norm_in_channels_last_is_left_to_the_reference_in_exported_graphs(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    x = torch.randn(2, 4, 3, 3)
    assert admitted("group_norm", x, num_groups=2).backend == "aten"
    last = x.to(memory_format=torch.channels_last)
    assert admitted("group_norm", last, num_groups=2).backend == "reference"


def test_transforms_and_forward_mode_are_computed_exactly():
    x = torch.randn(3, 6) + 1e6
    expected = N.layer_norm(x, (6,))
    torch.testing.assert_close(
        torch.vmap(lambda row: N.layer_norm(row, (6,)))(x), expected, rtol=0, atol=1e-5
    )
    y, _ = torch.func.jvp(lambda x: N.layer_norm(x, (6,)), (x,), (x,))
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)
