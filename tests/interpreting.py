"""The Triton kernels in place of the CPU's, interpreted: for tests and fuzzing without a GPU.

TRITON_INTERPRET=1 must be in the environment before anything imports Triton.
"""

import numpy
from torch import float64

from normkit.kernels import admission, operators
from normkit.kernels.cpu import eager
from normkit.kernels.triton import quick

__all__ = ["triton_first"]


def triton_first():
    """From now on what the Triton kernels take is theirs, by the way that a GPU's calls go."""
    numpy.seterr(all="ignore")  # it computes there, and inf is what a GPU gives, without a word
    _round_bfloat16()
    operators.DIRECT["cpu"] = {name: _either(name) for name in operators.OPERATORS}
    first = {"triton": admission.BACKENDS.pop("triton"), **admission.BACKENDS}
    admission.BACKENDS.clear()
    admission.BACKENDS.update(first)
    if eager.MODULE is not None:
        quick.stream_of = lambda device: None
        quick.serve("cpu")


def _either(name):
    """float64 is none of theirs, and goes on to the CPU's."""

    def call(*arguments):
        judged = arguments[2 if name == "update_running" else 0]
        own = operators.raw if judged.dtype == float64 else operators.DIRECT["cuda"].__getitem__
        return own(name)(*arguments)

    return call


def _round_bfloat16():
    """Triton's interpreter cuts bfloat16 off, and misreads its denormals: here it rounds, as a GPU does."""
    from triton.runtime import interpreter

    own = interpreter._convert_float

    def convert(values, before, after, mode):
        if (before.name, after.name) == ("bf16", "fp32"):
            return values.view(numpy.uint16).astype(numpy.uint32) << 16
        if (before.name, after.name) != ("fp32", "bf16"):
            return own(values, before, after, mode)
        bits = numpy.ascontiguousarray(values).view(numpy.uint32)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return numpy.where(numpy.isnan(values), 0x7FC0, nearest).astype(numpy.uint16)

    interpreter._convert_float = convert
