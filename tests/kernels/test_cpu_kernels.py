"""The C++ kernels against the reference in float64: sizes, dtypes, layouts, options, thread counts."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from truth import assert_close, compare, complete, on_kernels

from normkit import kernels

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ODD = [1, 3, 7, 123, 4097]
SOFT = 0.1  # eps for groups of a few numbers, which may have no spread: 1 / std stays near 1


@pytest.fixture(params=[1, 2, 8])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def parameters(shape, dtype, *, weight=True, bias=True):
    return {
        "weight": torch.rand(shape).add(0.5).to(dtype) if weight else None,
        "bias": torch.randn(shape).to(dtype) if bias else None,
    }


def rows_call(op, x, **options):
    call = {"axes": (x.ndim - 1,), "eps": 1e-5, **parameters(x.shape[-1:], x.dtype)}
    if "rms" in op:
        call.pop("bias")
    if "add" in op:
        call["residual"] = torch.randn(x.shape).to(x.dtype)
    return {**call, **options}


ROW_OPS = ["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", ODD)
@pytest.mark.parametrize("rows", [1, 2, 3, 67])
@pytest.mark.parametrize("op", ROW_OPS)
def test_rows_of_any_size_and_dtype(op, rows, dim, dtype):
    torch.manual_seed(rows * dim)
    x = torch.randn(rows, dim).to(dtype)
    compare(op, x, rows_call(op, x, eps=1e-5 if dim > 3 else SOFT))


@pytest.mark.parametrize("op", ROW_OPS)
def test_rows_that_several_threads_share(op, threads):
    torch.manual_seed(0)
    x = torch.randn(700, 123)
    compare(op, x, rows_call(op, x))


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dim", [65536, 100_003])
def test_rows_longer_than_65536(op, dim):
    torch.manual_seed(0)
    x = torch.randn(3, dim)
    compare(op, x, rows_call(op, x))


@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize("given", [(True, False), (False, True), (False, False)])
def test_rows_without_weight_or_bias(op, given):
    x = torch.randn(5, 37)
    call = rows_call(op, x)
    for name, keep in zip(("weight", "bias"), given, strict=True):
        if name in call and not keep:
            call[name] = None
    compare(op, x, call)


@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize("parameter", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parameters_of_another_dtype(op, dtype, parameter):
    x = torch.randn(5, 37).to(dtype)
    call = rows_call(op, x)
    call |= {k: v.to(parameter) for k, v in call.items() if k in ("weight", "bias")}
    # a gradient in a narrow dtype is rounded to it
    compare(op, x, call, share=4.5e-3 if torch.bfloat16 in (dtype, parameter) else 6e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", ["add_layer_norm", "add_rms_norm"])
def test_a_wide_residual_stream_stays_wide(op, dtype):
    x = torch.randn(9, 37).to(dtype)
    call = rows_call(op, x, residual=torch.randn(9, 37))
    compare(op, x, call)
    assert [t.dtype for t in on_kernels(op, x, **call)] == [dtype, torch.float32]


@pytest.mark.parametrize("zero_centered_weight", [False, True])
@pytest.mark.parametrize("multiply", ["before_cast", "after_cast"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_with_all_its_options(dtype, multiply, zero_centered_weight):
    x = torch.randn(40, 37).to(dtype)
    options = {"multiply": multiply, "zero_centered_weight": zero_centered_weight}
    # after_cast rounds twice
    share = {torch.bfloat16: 9e-3, torch.float16: 1.2e-3}.get(dtype)
    compare("rms_norm", x, rows_call("rms_norm", x, **options), share)
    compare("add_rms_norm", x, rows_call("add_rms_norm", x, **options), share)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_several_normalised_axes(op):
    x = torch.randn(4, 3, 5, 7)
    call = rows_call(op, x) | {"axes": (2, 3)}
    call |= {k: torch.rand(5, 7) for k in ("weight", "bias") if k in call}
    compare(op, x, call)


STRIDED = {
    "transposed outer axes": lambda: torch.randn(6, 5, 37).transpose(0, 1),
    "every second row": lambda: torch.randn(12, 37)[::2],
    "part of a row": lambda: torch.randn(9, 50)[:, 3:40],
    "expanded rows": lambda: torch.randn(1, 37).expand(8, 37),
    "heads of a projection": lambda: torch.randn(2, 7, 3, 37).transpose(1, 2),
    "reversed outer axes": lambda: torch.randn(2, 3, 4, 5, 6, 37).permute(4, 3, 2, 1, 0, 5),
    "inner axis strided": lambda: torch.randn(5, 74)[:, ::2],
    "inner axis transposed": lambda: torch.randn(37, 5).t(),
}


@pytest.mark.parametrize("layout", STRIDED)
@pytest.mark.parametrize("op", ROW_OPS)
def test_strided_rows(op, layout):
    torch.manual_seed(0)
    x = STRIDED[layout]()
    compare(op, x, rows_call(op, x))


def test_strided_rows_are_not_copied():
    """A forward allocates its output, and nothing else that grows with the input."""
    x = torch.randn(512, 4, 256)[:, :2]
    weight = torch.ones(256)
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile:
        on_kernels("layer_norm", x, axes=(2,), weight=weight, bias=None, eps=1e-5)
    assert allocated(profile) == x.numel() * 4


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_the_channels_of_channels_last_are_rows(op, request):
    """Neither copied nor given coefficients of their own: the output is all that is allocated."""
    x = torch.randn(4, 32, 9, 9).contiguous(memory_format=torch.channels_last)
    call = {"axes": (1,), "weight": torch.rand(32), "eps": 1e-5}
    call |= {"bias": torch.rand(32)} if op == "layer_norm" else {}
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile:
        y = on_kernels(op, x, **call)
    assert y.stride() == x.stride()
    if not request.config.getoption(
        "--triton"
    ):  # there it is called without the dispatcher, which is watched
        assert "normkit::rows" in {e.name for e in profile.events()}
        assert allocated(profile) == x.numel() * 4
    compare(op, x, call)


def allocated(profile):
    return sum(e.self_cpu_memory_usage for e in profile.events() if e.self_cpu_memory_usage > 0)


def test_training_keeps_two_numbers_a_row():
    x = torch.randn(512, 256, requires_grad=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        y = on_kernels("layer_norm", x, axes=(1,), weight=None, bias=None, eps=1e-5)
    assert y.requires_grad
    assert allocated(profile) == x.numel() * 4 + 2 * 512 * 4


@pytest.mark.parametrize("offset", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_storage_that_is_not_aligned(dtype, offset):
    x = torch.randn(offset + 6 * 37).to(dtype)[offset:].view(6, 37)
    call = rows_call("layer_norm", x)
    call["weight"] = torch.rand(offset + 37).to(dtype)[offset:]
    compare("layer_norm", x, call)
    image = torch.randn(offset + 2 * 6 * 35).to(dtype)[offset:].view(2, 6, 5, 7)
    compare("group_norm", image, {"num_groups": 3, "eps": 1e-5, **parameters((6,), dtype)})


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (0, 4, 5)])
@pytest.mark.parametrize("op", ROW_OPS)
def test_nothing_gives_nothing(op, shape):
    x = torch.randn(shape)
    compare(op, x, rows_call(op, x))


# --- groups ---

IMAGES = {
    "contiguous": lambda shape: torch.randn(shape),
    "channels_last": lambda shape: torch.randn(shape).contiguous(memory_format=torch.channels_last),
    "transposed": lambda shape: torch.randn(shape).transpose(2, 3).contiguous().transpose(2, 3),
    "batch inside": lambda shape: torch.randn(shape).transpose(0, 1).contiguous().transpose(0, 1),
    "every second": lambda shape: torch.randn(*shape[:3], 2 * shape[3])[..., ::2],
}
SIZES = [(2, 6, 5, 7), (3, 12, 1, 1), (1, 6, 16, 16), (5, 18, 3, 1), (2, 48, 9, 11)]
RUNNING = {"running_mean": None, "running_var": None, "momentum": 0.1}
CHANNEL_OPS = {
    "group_norm": {"num_groups": 3},
    "group_norm, one group": {"num_groups": 1},
    "batch_norm": {"training": True, **RUNNING},
    "instance_norm": {"use_input_stats": True, **RUNNING},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", IMAGES)
@pytest.mark.parametrize("name", CHANNEL_OPS)
def test_groups_of_any_layout_size_and_dtype(name, layout, size, dtype):
    torch.manual_seed(0)
    x = IMAGES[layout](size).to(dtype)
    call = {**CHANNEL_OPS[name], "eps": SOFT, **parameters((size[1],), dtype)}
    compare(name.split(",")[0], x, call)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("name", CHANNEL_OPS)
def test_groups_that_several_threads_share(name, layout, threads):
    torch.manual_seed(0)
    x = IMAGES[layout]((6, 24, 33, 31))
    call = {**CHANNEL_OPS[name], "eps": 1e-5, **parameters((24,), torch.float32)}
    compare(name.split(",")[0], x, call)


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("name", CHANNEL_OPS)
def test_channels_at_any_axis(name, axis):
    shape = [4, 5, 5, 5]
    shape[axis] = 6
    x = torch.randn(shape)
    compare(
        name.split(",")[0],
        x,
        {**CHANNEL_OPS[name], "eps": 1e-5, "axis": axis, **parameters((6,), x.dtype)},
    )


@pytest.mark.parametrize("rows", [2, 63, 64, 65, 130, 5000])
@pytest.mark.parametrize("dim", [1, 3, 7, 123, 2050])
def test_batch_norm_of_tokens(rows, dim):
    """Blocks of 64 rows, 32 chunks, tiles of 2048 columns: sizes around each border."""
    if rows * dim > 1_000_000:
        rows = 300
    torch.manual_seed(0)
    x = torch.randn(rows, dim) + 10 * torch.randn(dim)
    compare("batch_norm", x, {**CHANNEL_OPS["batch_norm"], "eps": SOFT, **parameters((dim,), x.dtype)})


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "every second"])
@pytest.mark.parametrize("op", ["batch_norm", "instance_norm"])
def test_given_statistics(op, layout):
    x = IMAGES[layout]((3, 6, 5, 7))
    flag = "training" if op == "batch_norm" else "use_input_stats"
    call = {flag: False, "momentum": 0.1, "eps": 1e-5, **parameters((6,), x.dtype)}
    given = {"running_mean": torch.randn(6), "running_var": torch.rand(6) + 0.5}
    x.requires_grad_()
    got = on_kernels(op, x, **call, **given)
    wide = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in (call | given).items()}
    truth = torch.nn.functional.batch_norm(
        x.detach().double(), wide["running_mean"], wide["running_var"], wide["weight"], wide["bias"]
    )
    assert_close(got.detach(), truth)
    (gradient,) = torch.autograd.grad(got.sum(), x)
    scale = (wide["weight"] / (wide["running_var"] + 1e-5).sqrt()).reshape(6, 1, 1)
    assert_close(gradient, scale.expand(x.shape))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("name", CHANNEL_OPS)
def test_masks_over_places(name, layout):
    torch.manual_seed(0)
    x = IMAGES[layout]((3, 6, 5, 9))
    mask = torch.rand(3, 1, 5, 9) > 0.4
    mask[1] = False
    call = {**CHANNEL_OPS[name], "eps": 1e-5, "mask": mask, **parameters((6,), x.dtype)}
    compare(name.split(",")[0], x, call)


@pytest.mark.parametrize("case", ["padding last", "padding first", "one row left", "all of it"])
def test_masks_over_tokens(case):
    torch.manual_seed(0)
    mask = torch.ones(4, 50, dtype=torch.bool)
    mask[:, 20:] = case != "padding last"
    mask[:, :20] = case != "padding first"
    if case in ("one row left", "all of it"):
        mask[:] = False
        mask[2, 3] = case == "one row left"
    x = torch.randn(4, 50, 12)
    x[~mask] = float("nan")
    call = {**CHANNEL_OPS["batch_norm"], "eps": SOFT, "axis": 2, "mask": mask.unsqueeze(2)}
    compare("batch_norm", x, {**call, **parameters((12,), x.dtype)})


PATTERNS = {  # axes, parameters along
    "channels of an image": ((1,), (1,)),
    "channels and rows": ((1, 2), (1, 2)),
    "rows of an image": ((2,), (2,)),
    "columns, weight elsewhere": ((3,), (1,)),
    "whole sample, a weight a channel": ((1, 2, 3), (1,)),
    "batch and width": ((0, 3), (1,)),
    "no parameters, batch": ((0,), ()),
    "no parameters, outer and inner": ((0, 3), ()),
    "everything": ((0, 1, 2, 3), ()),
    "nothing at all": ((), ()),
}
TOO_MANY = {  # what five sizes cannot describe
    ("batch and width", "contiguous"),
    ("batch and width", "channels_last"),
    ("columns, weight elsewhere", "contiguous"),
}


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name, layout, center):
    torch.manual_seed(0)
    axes, along = PATTERNS[name]
    x = IMAGES[layout]((3, 6, 5, 7)) + 2
    shape = [size if a in along else 1 for a, size in enumerate(x.shape)]
    call = {"axes": axes, "eps": SOFT, "center": center, "mask": None}
    call |= parameters(shape, x.dtype) if along else {"weight": None, "bias": None}
    if (name, layout) in TOO_MANY:
        assert "alternate too often" in kernels.admit("normalize", x, complete("normalize", call)).why
    else:
        compare("normalize", x, call)


@pytest.mark.parametrize("mean", [1e3, 1e6])
@pytest.mark.parametrize(
    "name", ["channels of an image", "no parameters, batch", "whole sample, a weight a channel"]
)
def test_patterns_are_exact_for_large_means(name, mean):
    torch.manual_seed(0)
    axes, along = PATTERNS[name]
    x = torch.randn(4, 8, 6, 5) + mean
    shape = [size if a in along else 1 for a, size in enumerate(x.shape)]
    given = parameters(shape, x.dtype) if along else {"weight": None, "bias": None}
    compare("normalize", x, {"axes": axes, "eps": 1e-5, "center": True, "mask": None, **given}, share=1e-5)


# --- anything ---

dims = st.integers(1, 40)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_any_shape_stride_dtype_and_option(data, seed):
    torch.manual_seed(seed)
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(st.lists(st.integers(1, 12), min_size=2, max_size=4))
    shape[-1] = data.draw(dims)
    order = data.draw(st.permutations(range(len(shape))))
    steps = data.draw(st.lists(st.integers(1, 2), min_size=len(shape), max_size=len(shape)))
    full = [shape[a] * steps[a] for a in order]
    x = (torch.randn(full) * data.draw(st.sampled_from([1e-2, 1, 1e2]))).to(dtype)
    x = x.permute([order.index(a) for a in range(len(shape))])
    x = x[tuple(slice(None, None, s) for s in steps)]
    op = data.draw(st.sampled_from([*ROW_OPS, "group_norm", "batch_norm", "instance_norm"]))
    with_weight, with_bias = data.draw(st.booleans()), data.draw(st.booleans())
    if op in ROW_OPS:
        call = rows_call(op, x, eps=SOFT)
        call["weight"] = call["weight"] if with_weight else None
        if "bias" in call:
            call["bias"] = call["bias"] if with_bias else None
    else:
        axis = data.draw(st.integers(1, x.ndim - 1))
        groups = data.draw(st.sampled_from([g for g in range(1, 41) if x.shape[axis] % g == 0]))
        call = {"eps": SOFT, "axis": axis, **parameters((x.shape[axis],), dtype)}
        call["weight"] = call["weight"] if with_weight else None
        call["bias"] = call["bias"] if with_bias else None
        call |= {"num_groups": groups} if op == "group_norm" else CHANNEL_OPS[op]
    compare(op, x, call, share={torch.float64: 1e-12, torch.float32: 2e-5}.get(dtype))
