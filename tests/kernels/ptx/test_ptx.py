"""The PTX that Triton makes of the row kernels, run without a GPU: right numbers, and each read once."""

import functools

import pytest
import torch

pytest.importorskip("triton", reason="Triton is missing")
from normkit.kernels.triton.versions import INTERPRETED

from .emulator import PTXError, UnknownInstructionError
from .launching import Emulated
from .norms import inputs, run

pytestmark = pytest.mark.skipif(INTERPRETED, reason="what is interpreted is not compiled")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
COUNT = {64: 37, 100: 37, 768: 7, 4096: 3}  # rows: some blocks, the last of them not full
# Of the largest true number: float32 sums in a tree, some units of 6e-8.
SHARE = 1e-6
# Of the number itself: half a unit in the last place, where that is largest.
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}
OTHERS = (("sm_80", 100, "fp32"), ("sm_90", 768, "bf16"), ("sm_100", 768, "fp32"), ("sm_120", 100, "bf16"))
CASES = [
    *(("layer_norm", "sm_80", dim, dtype) for dim, dtype in zip(COUNT, ("fp32", "bf16") * 2, strict=True)),
    *(("layer_norm", "sm_90", dim, dtype) for dim, dtype in zip(COUNT, ("bf16", "fp32") * 2, strict=True)),
    *(("layer_norm", *other) for other in OTHERS[2:]),
    *((op, *other) for op in ("rms_norm", "add_layer_norm") for other in OTHERS),
    ("layer_norm", "sm_80", 768, "fp16"),
    ("rms_norm", "sm_90", 100, "fp16"),
    ("rms_norm zero_centered", "sm_80", 768, "bf16"),
    ("rms_norm zero_centered", "sm_90", 100, "fp32"),
]
every_case = pytest.mark.parametrize(("op", "arch", "dim", "dtype"), CASES)


@functools.lru_cache(maxsize=len(CASES))
def norm(op, arch, dim, dtype):
    return run(op, inputs(COUNT[dim], dim, DTYPES[dtype]), Emulated(arch))


def errors(found):
    """Of each output: how far past its rounding the worst number is, as a share of the largest."""
    worst = {}
    for name, got in found.got.items():
        true = found.true[name]
        assert got.shape == true.shape, name
        off = (got.double() - true).abs() - ROUNDING[got.dtype] * true.abs()
        worst[name] = (off.max() / true.abs().max()).item()
    return worst


def assert_right(found):
    worst = errors(found)
    assert all(error <= SHARE for error in worst.values()), worst


@every_case
def test_outputs_and_gradients_are_those_of_float64(op, arch, dim, dtype):
    assert_right(norm(op, arch, dim, dtype))


# By kernel: what is read once, and what is written once.
ONCE = {
    "rows_forward": (("x_ptr", "residual_ptr"), ("y_ptr", "total_ptr", "stats_ptr")),
    "rows_backward": (("x_ptr", "dy_ptr", "dtotal_ptr"), ("dx_ptr", "dweight_ptr", "dbias_ptr")),
    "sum_partials": (("parts_ptr",), ("out_ptr",)),
}


@every_case
def test_an_input_is_read_once_and_an_output_written_once(op, arch, dim, dtype):
    for kernel, tensors in norm(op, arch, dim, dtype).traffic:
        inputs_of, outputs = ONCE[kernel]
        for name, tensor in tensors.items():
            assert (tensor.reads.max() == 0) == (name in outputs), (kernel, name)
            assert (tensor.writes == (name in outputs)).all(), (kernel, name)
            if name in inputs_of:
                assert (tensor.reads == 1).all(), (kernel, name)


@pytest.mark.parametrize(("arch", "dtype"), [("sm_80", "bf16"), ("sm_90", "fp32")])
def test_a_block_reads_the_weight_once_where_a_row_takes_all_threads(arch, dtype):
    found = norm("layer_norm", arch, 4096, dtype)
    for kernel in ("rows_forward", "rows_backward"):
        assert (found.kernel(kernel)["weight_ptr"].reads == COUNT[4096]).all()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case[2] % 16 == 0], ids=lambda c: "-".join(map(str, c))
)
def test_accesses_have_128_bits_where_a_row_divides(case):
    for kernel, tensors in norm(*case).traffic:
        for name in (
            "x_ptr",
            "residual_ptr",
            "dy_ptr",
            "dtotal_ptr",
            "y_ptr",
            "total_ptr",
            "dx_ptr",
            "parts_ptr",
        ):
            if name in tensors:
                assert tensors[name].load_bits | tensors[name].store_bits == {128}, (kernel, name)


def test_a_sum_is_what_torch_adds():
    found = norm("add_layer_norm", "sm_90", 768, "bf16")
    assert torch.equal(found.got["total"].double(), found.true["total"])


def test_partial_sums_of_many_tiles():
    """So many rows that a block takes two tiles and the sum of partial sums loops."""
    found = run("layer_norm", inputs(2200, 64, torch.float32), Emulated("sm_80"))
    assert found.kernel("sum_partials")["parts_ptr"].data.size > 32 * 64 * 4
    assert_right(found)


def test_long_rows_are_read_three_times_and_written_once():
    found = run("layer_norm", inputs(3, 16400, torch.float32), Emulated("sm_90"), backward=False)
    assert_right(found)
    forward = found.kernel("rows_forward_long")
    assert (forward["x_ptr"].reads == 3).all()
    assert (forward["y_ptr"].writes == 1).all()


def test_gradients_of_long_rows_read_twice_and_once_more_for_parameters():
    found = run("layer_norm", inputs(3, 8200, torch.float32), Emulated("sm_80"))
    assert_right(found)
    backward, columns = found.kernel("rows_backward_long"), found.kernel("row_parameters")
    assert (backward["x_ptr"].reads == 2).all()
    assert (backward["dx_ptr"].writes == 1).all()
    assert (columns["x_ptr"].reads == 1).all()
    assert (columns["dweight_ptr"].writes == 1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_rounding_before_the_weight(dtype):
    """The norm of a Llama of Hugging Face: its weight is met by what has been rounded."""
    from normkit.kernels.by_reference import ROUND_BF16, ROUND_F16
    from normkit.kernels.triton import rows

    x, weight = inputs(5, 768, dtype), torch.randn(768).to(dtype)
    machine = Emulated("sm_90")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "launch", machine)
        y = rows.rows(x, weight, None, 1, 1e-5, ROUND_BF16 if dtype == torch.bfloat16 else ROUND_F16)
    x_hat = torch.nn.functional.rms_norm(x.double(), (768,), None, 1e-5).to(dtype)
    is_same = (x_hat * weight) == y
    assert is_same.double().mean() > 0.999  # at a tie of x_hat, its last bit is open


def test_strided_rows_are_read_where_they_lie():
    """The middle one of three heads, in the layout of a fused projection."""
    whole = inputs(2 * 5, 3 * 64, torch.float32).view(2, 5, 3, 64).transpose(1, 2)
    found = run("layer_norm", whole[:, 1], Emulated("sm_80"))
    assert_right(found)
    reads = torch.from_numpy(found.kernel("rows_forward")["x_ptr"].reads).view(-1, 64 * 4)
    assert reads[::3].eq(1).all()  # whole rows, from the first of them on
    assert reads.sum() == 2 * 5 * 64 * 4


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_rows_more_than_two_to_the_thirty_one_numbers_apart(arch):
    """Two rows of 64; between them lie 4 GiB that nobody has."""
    from normkit.kernels.by_reference import CENTER
    from normkit.kernels.triton import rows

    step = 2**31 + 16
    x = inputs(2, 64, torch.bfloat16)
    call = rows.plan_forward((2, 64), ((step, 1), None), 2, 1, 1e-5, CENTER, (False, False, False, False))
    y = torch.empty_like(x)
    machine = Emulated(arch, gaps={"x_ptr": (64 * 2, 2 * (step - 64))})
    machine(call, (x, None, None, None, y, None, None), x.device)
    true = torch.nn.functional.layer_norm(x.double(), (64,))
    assert ((y - true).abs() <= SHARE * true.abs().max() + ROUNDING[x.dtype] * true.abs()).all()


CONSTANT_LARGEST = 3  # of it, the row whose sum overflows and whose variance is 0


def extreme(dim, dtype):
    """Rows of the largest floats, NaN, inf, constants and next to nothing, beside ordinary ones."""
    x = inputs(12, dim, torch.bfloat16).to(dtype)
    largest = torch.finfo(dtype).max
    x[1] = largest * torch.linspace(-1, 1, dim).to(dtype)
    x[2] = largest * torch.linspace(-1, 1, dim).sign().to(dtype)
    x[CONSTANT_LARGEST] = largest
    x[4, 1] = float("nan")
    x[6, dim - 1] = float("inf")
    x[8] = 3.7
    x[9] = 0
    x[10] = x[10] * 1e-30
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("op", "arch", "dim"),
    [("layer_norm", "sm_80", 64), ("layer_norm", "sm_90", 768), ("rms_norm", "sm_100", 768)],
)
def test_extreme_rows_are_those_of_float64_and_leave_others_alone(op, arch, dim, dtype):
    x = extreme(dim, DTYPES[dtype])
    found = run(op, x, Emulated(arch))
    half_smallest = torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps / 2
    for name in ("y", "dx"):
        for row, (got, true) in enumerate(zip(found.got[name].double(), found.true[name], strict=True)):
            assert torch.equal(got.isnan(), true.isnan()), (name, row)
            got, true = got.nan_to_num(), true.nan_to_num()
            allowed = SHARE * true.abs().max() + ROUNDING[x.dtype] * true.abs() + half_smallest
            assert ((got - true).abs() <= allowed).all(), (name, row)


def changed(old, new, count=1):
    """PTX with an instruction replaced, which must be there."""

    def change(text):
        assert old in text
        return text.replace(old, new, count)

    return change


# What is done to the PTX, and what sees it: the comparison, or the emulator. Of RMSNorm, because LayerNorm
# makes good what its first sum missed: a wrong sign there is not seen in y.
BROKEN = {
    "a sign": (changed("add.rn.f32 ", "sub.rn.f32 "), AssertionError, "'y'"),
    "a rounding": (
        changed("cvt.rn.bf16x2.f32", "cvt.rz.bf16x2.f32"),
        UnknownInstructionError,
        "cvt.rz.bf16x2.f32",
    ),
    "another root": (changed("sqrt.rn.f32", "sqrt.approx.f32"), UnknownInstructionError, "sqrt.approx.f32"),
    "a shuffle": (changed(", 16, 31, -1;", ", 8, 31, -1;"), (AssertionError, PTXError), "'y'|barrier"),
    "a comparison": (changed("setp.lt.u32", "setp.ge.u32"), PTXError, "outside|disagree"),
    "the barriers": (changed("bar.sync \t0;", "", -1), PTXError, "without a barrier"),
    "an offset": (changed("ld.param.b64 \t%rd", "ld.param.s32 \t%rd"), PTXError, "in no tensor"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_ptx_is_seen(what):
    change, error, text = BROKEN[what]
    x = inputs(COUNT[768], 768, torch.bfloat16)
    with pytest.raises(error, match=text):
        assert_right(run("rms_norm", x, Emulated("sm_80", change), backward=False))
