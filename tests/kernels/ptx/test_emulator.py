"""The emulator itself: rounding against exact fractions, and what it refuses."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from . import emulator
from .arithmetic import UnknownInstructionError, decode, encode, operation
from .emulator import Kernel, PTXError
from .memory import Tensor

PROGRAM = """
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0
)
.reqntid 64
{{
	.reg .pred 	%p<9>;
	.reg .b16 	%rs<9>;
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<9>;
	ld.param.b64 	%rd1, [kernel_param_0];
	mov.u32 	%r1, %tid.x;
	mad.wide.u32 	%rd2, %r1, 4, %rd1;
	shl.b32 	%r2, %r1, 2;
{body}
	ret;
}}
"""


def run(body, size=64):
    out = np.zeros(size, np.uint32)
    Kernel(PROGRAM.format(body=body), 256).run((1, 1, 1), [Tensor("out", out)])
    return out


def nearest(exact):
    """The float32 nearest to a fraction, found among three neighbours."""
    guess = np.float32(float(exact))
    near = [guess, np.nextafter(guess, np.float32(-np.inf)), np.nextafter(guess, np.float32(np.inf))]
    best = min(abs(Fraction(float(n)) - exact) for n in near)
    tied = [n for n in near if abs(Fraction(float(n)) - exact) == best]
    return next((n for n in tied if n.view(np.uint32) % 2 == 0), tied[0])


def test_fma_rounds_once():
    """Also where float64 ends exactly between two float32, so that rounding twice would go wrong."""
    generator = np.random.default_rng(0)
    a, b, c = generator.standard_normal((3, 500)).astype(np.float32)
    c *= (2.0 ** generator.integers(-60, 40, 500)).astype(np.float32)
    a[0], b[0], c[0] = 1 + 2**-12, 1 + 2**-12, 2**-80  # the product is a tie, and c breaks it
    c[1] = -a[1] * b[1]
    what = operation("fma.rn.f32", 3)
    found = encode(what.function(a, b, c), "f32").view(np.float32)
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)
    ]
    assert [float(f) for f in found] == [float(nearest(e)) for e in exact]
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert found[0] != twice[0]


@pytest.mark.parametrize(("kind", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_halves_are_rounded_as_torch_rounds_them(kind, dtype):
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    x = bits.view(np.float32)
    with np.errstate(over="ignore"):
        found = torch.from_numpy(decode(encode(x, kind), kind))
    assert torch.equal(found.nan_to_num(7.0), torch.from_numpy(x).to(dtype).float().nan_to_num(7.0))


@pytest.mark.parametrize(
    ("start", "length", "unsigned", "signed"),
    [(4, 8, 0xEF, -17), (0, 32, 0x8BCDEEF1, 0x8BCDEEF1 - 2**32), (28, 8, 8, -8), (5, 0, 0, 0)],
)
def test_a_field_of_bits_has_a_sign_if_it_is_signed(start, length, unsigned, signed):
    body = "mov.b32 %r3, 0x8BCDEEF1;\nbfe.{}32 %r4, %r3, {}, {};\nst.global.b32 [%rd2], %r4;"
    assert (run(body.format("u", start, length)) == unsigned).all()
    assert (run(body.format("s", start, length)).view(np.int32) == signed).all()


def test_a_register_that_nothing_wrote_is_nan():
    assert np.isnan(run("st.global.b32 [ %rd2 + 0 ], { %r7 };").view(np.float32)).all()


def test_a_guard_leaves_the_other_threads_alone():
    found = run("setp.lt.u32 %p1, %r1, 3;\nmov.b32 %r3, 0;\n@%p1 mov.b32 %r3, 5;\nst.global.b32 [%rd2], %r3;")
    assert found.tolist() == [5, 5, 5] + [0] * 61


def test_lanes_of_a_warp_trade_registers():
    found = run("shfl.sync.bfly.b32 %r3, %r1, 3, 31, -1;\nst.global.b32 [%rd2], %r3;")
    assert found.tolist() == [k ^ 3 for k in range(64)]


def test_a_loop_ends_when_all_threads_say_so():
    found = run(
        "mov.b32 %r3, 0;\n$L_1:\nadd.s32 %r3, %r3, 2;\nsetp.lt.s32 %p1, %r3, 9;\n@%p1 bra $L_1;\n"
        "st.global.b32 [%rd2], %r3;"
    )
    assert (found == 10).all()


REFUSED = {
    "threads disagree": "setp.lt.u32 %p1, %r1, 3;\n@%p1 bra $L_1;\n$L_1:",
    "outside out": "st.global.b32 [ %rd2 + 4 ], { %r1 };",
    "not aligned": "st.global.b32 [ %rd2 + 2 ], { %r1 };",
    "in no tensor": "mov.b64 %rd3, 64;\nst.global.b32 [ %rd3 ], { %r1 };",
    "outside shared memory": "ld.shared.b32 %r3, [ %r2 + 256 ];",
    "reads what another one wrote": "st.shared.b32 [ %r2 ], %r1;\nld.shared.b32 %r3, [ global_smem ];",
    "that another one uses": "mov.b32 %r3, 0;\nst.shared.b32 [ %r3 ], %r1;",
    "no end": "$L_1:\nbra.uni $L_1;",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_no_program_may_do_raises(text, monkeypatch):
    monkeypatch.setattr(emulator, "MAX_STEPS", 1000)
    with pytest.raises(PTXError, match=text):
        run(REFUSED[text])


def test_a_barrier_makes_shared_memory_everyones():
    body = "st.shared.b32 [ %r2 ], %r1;\nbar.sync 0;\nld.shared.b32 %r3, [ global_smem+252 ];"
    assert (run(f"{body}\nst.global.b32 [%rd2], %r3;") == 63).all()


@pytest.mark.parametrize(
    "line",
    ["add.ftz.f32 %r3, %r1, %r2;", "rcp.approx.f32 %r3, %r1;", "atom.global.add.f32 %r3, [%rd2], %r1;"],
)
def test_an_unknown_instruction_is_named(line):
    with pytest.raises(UnknownInstructionError, match=line.split()[0]):
        run(line)
