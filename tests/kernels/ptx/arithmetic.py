"""What one PTX instruction computes, on arrays with one register of each thread: rounded as the manual says.

Registers are unsigned integers, as the machine has them; ``decode`` and ``encode`` are how a type sees them.
A type that ends in x2 has two numbers in one register: its array is twice as long.

Reference: NVIDIA, Parallel Thread Execution ISA, "Instruction Set".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Operation", "UnknownInstructionError", "decode", "encode", "operation", "width"]

Array = np.ndarray[Any, Any]
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {16: np.int16, 32: np.int32, 64: np.int64}
NAN = np.uint32(0x7FFFFFFF).view(np.float32)


class UnknownInstructionError(NotImplementedError):
    """An instruction, or a form of one, that the emulator does not have."""


class Operation(NamedTuple):
    """``result = function(*operands)`` of the given types."""

    result: str
    operands: tuple[str, ...]
    function: Callable[..., Array]


@functools.lru_cache
def width(kind: str) -> int:
    """The bits of a register of this type; 1 for a predicate."""
    if kind == "pred":
        return 1
    number = re.fullmatch(r"(?:bf|[busf])(\d+)(x2)?", kind)
    if number is None:
        raise UnknownInstructionError(f"type .{kind}")
    return int(number[1]) * (2 if number[2] else 1)


def decode(bits: Array, kind: str) -> Array:
    """Registers as numbers: halves become float32, which holds them exactly."""
    if kind == "pred":
        return bits
    name = kind.removesuffix("x2")
    if name == "bf16":
        return (bits.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name == "f16":
        return bits.view(np.float16).astype(np.float32)
    if name == "f32":
        return bits.view(np.float32)
    return bits.view(SIGNED[width(kind)]) if kind[0] == "s" else bits


def encode(value: Array, kind: str) -> Array:
    """Numbers as registers, rounded to nearest even if the type is narrower."""
    if kind == "pred":
        return value
    name = kind.removesuffix("x2")
    if name in ("bf16", "f16"):
        if value.dtype == np.float64:
            value = _odd_float32(value)
        narrow = _bfloat16(value) if name == "bf16" else value.astype(np.float16).view(np.uint16)
        return narrow.view(UNSIGNED[width(kind)])
    if name == "f32":
        value = value.astype(np.float32)
        nan = np.isnan(value)
        if nan.any():  # there is but one on a GPU
            value = np.where(nan, NAN, value)
        return value.view(UNSIGNED[width(kind)])
    return value.astype(UNSIGNED[width(kind)])


@functools.lru_cache
def operation(opcode: str, inputs: int = 2) -> Operation:
    """What an opcode without side effects computes. One unknown part of its name, and it is unknown."""
    for pattern, make in RULES:
        found = re.fullmatch(pattern, opcode)
        if found:
            what = make(*found.groups())
            if inputs == 3 and re.match(r"(min|max)[.\w]*\.f32", opcode):  # of three, from sm_100 on
                return Operation("f32", ("f32",) * 3, functools.partial(_of_three, what.function))
            if inputs == len(what.operands):
                return what
            opcode += f" of {inputs} operands"
    raise UnknownInstructionError(opcode)


def _of_three(function: Callable[..., Array], a: Array, b: Array, c: Array) -> Array:
    return function(function(a, b), c)


def _bfloat16(x: Array) -> Array:
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), 0x7FFF, rounded).astype(np.uint16)


def _toward_odd(rounded: Array, error: Array) -> Array:
    """Of the two neighbours of an inexact number the odd one: a second rounding is then the only one."""
    bits = rounded.view(SIGNED[8 * rounded.itemsize])
    step = np.where((error > 0) == (rounded > 0), 1, -1)
    is_off = np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    return (bits + np.where(is_off, step, 0).astype(bits.dtype)).view(rounded.dtype)


def _odd_float32(x: Array) -> Array:
    rounded = x.astype(np.float32)
    return _toward_odd(rounded, x - rounded)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """a · b + c in float64, rounded to odd: the product is exact, and so is the error of the sum."""
    product, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + c
    part = total - product
    return _toward_odd(total, (product - (total - part)) + (c - part))


def _shift(bits: str, left: bool) -> Callable[[Array, Array], Array]:
    """A shift by the width or more leaves nothing, or the sign."""
    last = int(bits) - 1

    def function(a: Array, by: Array) -> Array:
        least = np.minimum(by, last).astype(a.dtype)
        shifted = a << least if left else a >> least
        is_signed = np.issubdtype(a.dtype, np.signedinteger)
        return shifted if is_signed and not left else np.where(by > last, 0, shifted).astype(a.dtype)

    return function


def _field(a: Array, start: Array, length: Array) -> Array:
    """Some bits of a register; of a signed one, with the sign that they have."""
    wide = np.int64 if np.issubdtype(a.dtype, np.signedinteger) else np.uint64
    start, length = (np.minimum(n & 255, 63).astype(wide) for n in (start, length))
    rest = 64 - np.maximum(length, 1)
    return np.where(length == 0, 0, a.astype(wide) >> start << rest >> rest)


def _whole(name: str) -> Callable[[Array, Array], Array]:
    """A quotient is cut off toward zero, and a remainder has the sign of the dividend."""

    def function(a: Array, b: Array) -> Array:
        quotient = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
        return (quotient if name == "div" else a - quotient * b).astype(a.dtype)

    return function


COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
COMPARE |= {"gt": np.greater, "ge": np.greater_equal}


def _set_predicate(comparison: str, unordered: str, kind: str) -> Operation:
    compare = COMPARE[comparison]

    def function(a: Array, b: Array) -> Array:
        either = np.isnan(a) | np.isnan(b)
        return compare(a, b) | either if unordered else compare(a, b) & ~either

    return Operation("pred", (kind, kind), function if kind[0] == "f" else compare)


def _pair(high: Array, low: Array) -> Array:
    return np.stack([low, high], axis=1).reshape(-1)


def _wide(name: str, kind: str) -> Operation:
    result = f"{kind[0]}{2 * width(kind)}"
    to = (SIGNED if kind[0] == "s" else UNSIGNED)[width(result)]
    if name == "mul":
        return Operation(result, (kind, kind), lambda a, b: a.astype(to) * b.astype(to))
    return Operation(result, (kind, kind, result), lambda a, b, c: a.astype(to) * b.astype(to) + c)


SAME = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "mul.lo": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
ALONE = {"neg": np.negative, "abs": np.abs, "not": np.invert, "sqrt": np.sqrt}
FLOAT_EXTREME = {
    ("min", ""): np.fmin,
    ("max", ""): np.fmax,
    ("min", ".NaN"): np.minimum,
    ("max", ".NaN"): np.maximum,
}
_F, _I, _HALF = r"(f32|f32x2|bf16|bf16x2|f16|f16x2)", r"([us](?:16|32|64))", r"(bf16|f16)"
# Sums and products of two halves are exact enough in float32 for one rounding of both to be the right one.
RULES: list[tuple[str, Callable[..., Operation]]] = [
    (rf"(add|sub|mul)(?:\.rn)?\.{_F}", lambda n, k: Operation(k, (k, k), SAME[n])),
    (rf"(add|sub)(?:\.rn)?\.f32\.{_HALF}", lambda n, k: Operation("f32", (k, "f32"), SAME[n])),
    (rf"fma\.rn\.{_F}", lambda k: Operation(k, (k, k, k), _fma)),
    (rf"fma\.rn\.f32\.{_HALF}", lambda k: Operation("f32", (k, k, "f32"), _fma)),
    (r"(div|rem)\.([us]32)", lambda n, k: Operation(k, (k, k), _whole(n))),
    (r"(div)\.rn\.(f32)", lambda n, k: Operation(k, (k, k), SAME[n])),
    (r"(sqrt)\.rn\.(f32)", lambda n, k: Operation(k, (k,), ALONE[n])),
    (r"(abs|neg)\.(f32)", lambda n, k: Operation(k, (k,), ALONE[n])),
    (r"(min|max)(|\.NaN)\.(f32)", lambda n, nan, k: Operation(k, (k, k), FLOAT_EXTREME[n, nan])),
    (rf"(add|sub|mul\.lo|min|max)\.{_I}", lambda n, k: Operation(k, (k, k), SAME[n])),
    (rf"mad\.lo\.{_I}", lambda k: Operation(k, (k, k, k), lambda a, b, c: a * b + c)),
    (r"(neg|abs)\.(s(?:16|32|64))", lambda n, k: Operation(k, (k,), ALONE[n])),
    (r"(mul|mad)\.wide\.([us](?:16|32))", _wide),
    (r"(and|or|xor)\.(b16|b32|b64|pred)", lambda n, k: Operation(k, (k, k), SAME[n])),
    (r"(not)\.(b16|b32|b64|pred)", lambda n, k: Operation(k, (k,), ALONE[n])),
    (r"shl\.b(16|32|64)", lambda n: Operation(f"b{n}", (f"b{n}", "u32"), _shift(n, True))),
    (r"shr\.([usb])(16|32|64)", lambda s, n: Operation(s + n, (s + n, "u32"), _shift(n, False))),
    (r"bfe\.([us]32)", lambda k: Operation(k, (k, "u32", "u32"), _field)),
    (r"setp\.(eq|ne|lt|le|gt|ge)()\.((?:[us]|b)(?:16|32|64)|f32)", _set_predicate),
    (r"setp\.(eq|ne|lt|le|gt|ge)(u)\.(f32)", _set_predicate),
    (
        r"selp\.([busf](?:16|32|64))",
        lambda k: Operation(k, (k, k, "pred"), lambda a, b, p: np.where(p, a, b)),
    ),
    (rf"cvt\.rn\.{_HALF}\.f32", lambda k: Operation(k, ("f32",), lambda a: a)),
    (r"cvt\.rn\.(bf16x2|f16x2)\.f32", lambda k: Operation(k, ("f32", "f32"), _pair)),
    (rf"cvt\.f32\.{_HALF}", lambda k: Operation("f32", (k,), lambda a: a)),
    (r"cvt\.rn\.f32\.([us]32)", lambda k: Operation("f32", (k,), lambda a: a.astype(np.float32))),
    (rf"cvt\.{_I}\.{_I}", lambda to, k: Operation(to, (k,), lambda a: a)),
]
