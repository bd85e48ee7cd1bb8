"""Where a tensor meets a matrix: which axes are summed over, and which are new. One table of functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["Meeting", "meeting"]


@dataclass(frozen=True)
class Meeting:
    """``out[..., o] = sum over i of x[..., i] · weight[o, i] + bias[o]``, and which axes those are.

    x_axis, in_axis     of the input and of the weight: the numbers that are summed over
    out_axis, new_axes  of the weight and of the output: the channels that come out
    groups              of a convolution
    pads                zeros may stand beside the input's numbers
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    x_axis: int
    in_axis: int
    out_axes: tuple[int, ...]
    new_axes: tuple[int, ...]
    groups: int = 1
    pads: bool = False
    transposed: bool = False


Find = Callable[[Tensor], bool]


def meeting(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_weight: Find) -> Meeting | None:
    """Of a call of the function ``name``; None if no weight takes part, or not in a way that is known."""
    found = _WAYS.get(name)
    return found(args, kwargs, is_weight) if found is not None else None


def _given(names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    listed = names.split()
    given = dict(zip(listed, args, strict=False)) | kwargs
    return [given.get(name) for name in listed]


def _linear(args: tuple[Any, ...], kwargs: dict[str, Any], is_weight: Find) -> Meeting | None:
    x, weight, bias = _given("input weight bias", args, kwargs)
    if not is_weight(weight) or weight.ndim != 2:
        return None
    return Meeting(x, weight, bias, -1, -1, (-2,), (-1,))


def _product(args: tuple[Any, ...], kwargs: dict[str, Any], is_weight: Find) -> Meeting | None:
    a, b = [*args, *kwargs.values()][:2]
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or is_weight(a) == is_weight(b):
        return None
    if is_weight(b):
        return Meeting(a, b, None, -1, -2, (-1,), (-1,)) if b.ndim > 1 else None
    return Meeting(b, a, None, -2, -1, (-2,), (-2,)) if a.ndim > 1 and b.ndim > 1 else None


def _reversed_product(args: tuple[Any, ...], kwargs: dict[str, Any], is_weight: Find) -> Meeting | None:
    return _product(args[1::-1], kwargs, is_weight)


def _added_product(args: tuple[Any, ...], kwargs: dict[str, Any], is_weight: Find) -> Meeting | None:
    bias, x, weight, beta, alpha = _given("input mat1 mat2 beta alpha", args, kwargs)
    if x is None:
        bias, x, weight, beta, alpha = _given("input batch1 batch2 beta alpha", args, kwargs)
    if not is_weight(weight) or is_weight(x) or beta not in (None, 1) or alpha not in (None, 1):
        return None
    return Meeting(x, weight, bias, -1, -2, (-1,), (-1,))


def _grouped_product(args: tuple[Any, ...], kwargs: dict[str, Any], is_weight: Find) -> Meeting | None:
    """Each row by the matrix of its expert."""
    x, weight = args[:2]
    bias = kwargs.get("bias", args[3] if len(args) > 3 else None)
    if not is_weight(weight) or weight.ndim != 3 or bias is not None:
        return None
    return Meeting(x, weight, None, -1, -2, (-1,), (-1,))


def _convolution(args: tuple[Any, ...], kwargs: dict[str, Any], is_weight: Find) -> Meeting | None:
    x, weight, bias, _, padding, _, groups = _given(
        "input weight bias stride padding dilation groups", args, kwargs
    )
    if not is_weight(weight):
        return None
    axis = 1 - weight.ndim
    return Meeting(
        x, weight, bias, axis, 1, (0,), (axis,), groups or 1, pads=_pads(padding, weight.shape[2:])
    )


def _transposed_convolution(args: tuple[Any, ...], kwargs: dict[str, Any], is_weight: Find) -> Meeting | None:
    """Every input number meets the whole kernel, but not every output number gets as much of it."""
    x, weight, bias, _, _, _, groups, _ = _given(
        "input weight bias stride padding output_padding groups dilation", args, kwargs
    )
    if not is_weight(weight):
        return None
    axis = 1 - weight.ndim
    is_point = all(n == 1 for n in weight.shape[2:])
    return Meeting(
        *(x, weight, bias, axis, 0, (1,), (axis,), groups or 1), pads=not is_point, transposed=True
    )


def _pads(padding: Any, kernel: Any) -> bool:
    if isinstance(padding, str):
        return padding != "valid" and any(n > 1 for n in kernel)
    return any(padding) if isinstance(padding, (tuple, list)) else bool(padding)


def _einsum(args: tuple[Any, ...], kwargs: dict[str, Any], is_weight: Find) -> Meeting | None:
    """One letter is summed over; those of the weight that are in the output alone are new."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = list(operands[0])
    if len(operands) != 2 or not isinstance(equation, str) or "->" not in equation:
        return None
    sides, out = equation.replace(" ", "").split("->")
    left = dict(zip(sides.split(","), operands, strict=False))
    weights = [letters for letters, t in left.items() if is_weight(t)]
    if len(left) != 2 or len(weights) != 1 or "." in weights[0]:
        return None
    of_weight = weights[0]
    of_x = next(letters for letters in left if letters != of_weight)
    summed = [k for k in of_weight if k in of_x and k not in out]
    new = [k for k in of_weight if k in out and k not in of_x]
    if len(summed) != 1 or not new or any(letters.count(k) > 1 for letters in left for k in letters):
        return None
    if any(k not in of_x and k not in out for k in of_weight):
        return None

    def axis(letter: str, letters: str) -> int:  # an ellipsis stands in front
        return letters.replace("...", "").index(letter) - len(letters.replace("...", ""))

    if ("..." in out and not out.startswith("...")) or ("..." in of_x and not of_x.startswith("...")):
        return None
    return Meeting(
        left[of_x],
        left[of_weight],
        None,
        axis(summed[0], of_x),
        axis(summed[0], of_weight),
        tuple(axis(k, of_weight) for k in new),
        tuple(axis(k, out) for k in new),
    )


_WAYS = {
    name: way
    for names, way in {
        "linear": _linear,
        "matmul __matmul__ mm bmm": _product,
        "__rmatmul__": _reversed_product,
        "addmm addmm_ baddbmm": _added_product,
        "_grouped_mm grouped_mm": _grouped_product,
        "conv1d conv2d conv3d": _convolution,
        "conv_transpose1d conv_transpose2d conv_transpose3d": _transposed_convolution,
        "einsum": _einsum,
    }.items()
    for name in names.split()
}
