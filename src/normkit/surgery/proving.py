"""The proof of an edit: the same change to a copy whose norms are random, compared in float64.

With a gain of 1 and a bias of 0, as in a fresh model, a wrong edit would show nothing. What a model rounds to
float32 on the way is computed in float64 here too; where that cannot be, the bound is twice what a last-digit
change of all parameters does to the model before the edit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normkit.errors import NormkitError, user_error
from normkit.inspect.batch import prepare
from normkit.inspect.edit import Edit, Edits
from normkit.inspect.operations import kind_of, name_of
from normkit.inspect.trace import tensors_of, watched
from normkit.inspect.untouched import untouched
from normkit.surgery.batches import others
from normkit.surgery.subject import Norm

__all__ = ["BOUND", "Proof", "difference", "outputs", "prove"]

BOUND = 1e-10
DRAWS = 3  # of the noise floor
NARROW = (torch.float32, torch.float16, torch.bfloat16)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Proof:
    """What the comparison gave: differences of the largest number of each tensor, the largest of them.

    error       of the outputs
    gradients   of the gradients of all parameters that the edit leaves as they are; None: no gradient came
    tolerance   1e-10, or twice the noise floor
    floor       what a change of the last digit of all parameters does to the outputs, and ``gradient_floor``
                to the gradients; None: nobody needed to ask
    where       what differs most, if something differs too much
    """

    error: float
    gradients: float | None
    tolerance: float
    floor: float | None
    gradient_floor: float | None
    dtype: str
    where: str = ""

    @property
    def holds(self) -> bool:
        return not self.where


class _Wide(TorchFunctionMode):
    """float64 wherever the code asks for less."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if name in ("float", "half", "bfloat16"):
            return args[0].double()
        if any(a in NARROW for a in args if isinstance(a, torch.dtype)):
            args = tuple(torch.float64 if isinstance(a, torch.dtype) and a in NARROW else a for a in args)
        if kwargs.get("dtype") in NARROW:
            kwargs = {**kwargs, "dtype": torch.float64}
        if name in ("_grouped_mm", "grouped_mm"):
            return _grouped_product(*_widened(args), **_widened(kwargs))
        if kind_of(name) in ("linear", "conv", "attention", "norm", "add", "mul", "join"):
            args, kwargs = (_widened(v) for v in (args, kwargs))
        return func(*args, **kwargs)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _grouped_product(x: Tensor, weight: Tensor, offs: Tensor | None = None, **more: Any) -> Tensor:
    """torch's own has no float64: each expert's rows by its matrix."""
    if offs is None or x.ndim != 2 or weight.ndim != 3 or any(v is not None for v in more.values()):
        raise NotImplementedError("grouped_mm of another form")
    stops = offs.tolist()
    rows = [
        x[start:stop] @ weight[k] for k, (start, stop) in enumerate(zip([0, *stops], stops, strict=False))
    ]
    rest = x.new_zeros(x.shape[0] - stops[-1], weight.shape[-1])
    return torch.cat([*rows, rest])


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in NARROW and not isinstance(value, nn.Parameter):
        return value.double()
    if type(value) in (tuple, list):
        return type(value)(_widened(v) for v in value)
    if type(value) is dict:
        return {k: _widened(v) for k, v in value.items()}
    return value


def prove(
    model: nn.Module,
    batch: Any,
    norms: Sequence[Norm],
    edits: Callable[[nn.Module], list[Edit]],
    say: Say = lambda words: None,
) -> Proof:
    """``edits`` of a copy of the model, against the copy before."""
    say("copying the model")
    wide = _copied(model).to(torch.float64)
    randomise(wide, norms)
    try:
        return _compare(wide, batch, edits, say, wide=True)
    except NormkitError:
        raise
    except Exception:  # there is code in it that has no float64
        narrow = _copied(model)
        randomise(narrow, norms)
        return _compare(narrow, batch, edits, say, wide=False)


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model).eval() if not model.training else copy.deepcopy(model)
    except Exception as error:
        raise user_error(
            f"{type(model).__name__} cannot be copied, and nothing is proven without a copy: {error}",
            fix="detach() tensors that are attributes of its modules.",
        ) from error


def _compare(
    model: nn.Module, batch: Any, edits: Callable[[nn.Module], list[Edit]], say: Say, *, wide: bool
) -> Proof:
    say("the copy before")
    before, gradients = _run(model, batch, wide)
    elsewhere = _elsewhere(model, batch, wide)
    old = _identities(model)
    changes = Edits(edits(model))
    changes.apply()
    unchanged = {name for name, identity in _identities(model).items() if old.get(name) == identity}
    say("the copy after")
    after, new_gradients = _run(model, batch, wide)
    error, where = difference(before, after)
    grad_error, grad_where, names = None, "", []
    if gradients is not None and new_gradients is not None:
        names = sorted(unchanged & gradients.keys() & new_gradients.keys())
        grad_error, grad_where = _gradient_difference(gradients, new_gradients, names)
    floor = grad_floor = None
    if max(error, grad_error or 0.0) > BOUND:
        say("the noise floor")
        changes.undo()
        floor, grad_floor = _floor(model, batch, before, gradients, names, wide)
    tolerance = max(BOUND, 2 * (floor or 0.0))
    culprit = where if error > tolerance else ""
    if grad_error is not None and grad_error > max(BOUND, 2 * (grad_floor or 0.0)):
        culprit = culprit or f"the gradient of {grad_where}"
    if not culprit:
        say("the copy after, on other batches")
        if floor is not None:
            changes.apply()
        far, culprit = _off_elsewhere(model, elsewhere, changes, wide)
        error = max(error, far) if culprit else error
    dtype = "float64" if wide else "its own dtype"
    return Proof(error, grad_error, tolerance, floor, grad_floor, dtype, culprit)


def _elsewhere(model: nn.Module, batch: Any, wide: bool) -> list[tuple[str, Any, Named]]:
    """What it gives on other batches, as far as it takes them and gives numbers."""
    found = []
    for words, other in others(batch):
        with suppress(Exception), torch.no_grad():
            made = {n: t.detach() for n, t in outputs(model, other, wide=wide).items()}
            if all(bool(t.isfinite().all()) for t in made.values()):
                found.append((words, other, made))
    return found


def _off_elsewhere(
    model: nn.Module, elsewhere: Sequence[tuple[str, Any, Named]], changes: Edits, wide: bool
) -> tuple[float, str]:
    """The difference on the first of them that differs too much, and where."""
    with torch.no_grad():
        off = [
            (*difference(old, outputs(model, other, wide=wide)), k)
            for k, (_, other, old) in enumerate(elsewhere)
        ]
        if max((error for error, _, _ in off), default=0.0) <= BOUND:
            return 0.0, ""
        changes.undo()
        for error, where, k in off:
            words, other, old = elsewhere[k]
            if error > BOUND and error > 2 * _floor(model, other, old, None, (), wide)[0]:
                return error, f"{where} of a batch with {words}"
    return 0.0, ""


def _gradient_difference(before: Named, after: Named, names: Sequence[str]) -> tuple[float, str]:
    old, new = ({n: gradients[n] for n in names} for gradients in (before, after))
    return difference(old, new, scale=_largest(before))


Named = dict[str, Tensor]


def _identities(model: nn.Module) -> dict[str, tuple[int, int, int]]:
    """Which tensor a name means, how often it was written to, and how many names it has."""
    names: dict[int, list[str]] = {}
    found = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in found.items():
        names.setdefault(id(parameter), []).append(name)
    return {n: (id(p), p._version, len(names[id(p)])) for n, p in found.items()}


def _run(model: nn.Module, batch: Any, wide: bool) -> tuple[Named, Named | None]:
    """Outputs; gradients of a random sum of them, by parameter, if it has any."""
    parameters = {n: p for n, p in model.named_parameters() if p.is_floating_point()}
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    try:
        with torch.enable_grad():
            found = outputs(model, batch, wide=wide)
            grads = _gradients(found, parameters)
    except Exception:  # in evaluation mode there are models that refuse to be differentiated
        with torch.no_grad():
            found, grads = outputs(model, batch, wide=wide), None
    return {n: t.detach() for n, t in found.items()}, grads


def _gradients(found: Named, parameters: dict[str, nn.Parameter]) -> Named | None:
    generator = torch.Generator("cpu").manual_seed(0)
    terms = []
    for tensor in found.values():
        if tensor.requires_grad:
            weights = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            terms.append((tensor * weights.to(tensor.device)).mean())
    if not terms:
        return None
    made = torch.autograd.grad(sum(terms[1:], terms[0]), list(parameters.values()), allow_unused=True)
    return {n: g.detach() for n, g in zip(parameters, made, strict=True) if g is not None}


def outputs(model: nn.Module, batch: Any, *, wide: bool = False) -> Named:
    """All floating-point tensors that the model returns, by their names or numbers."""
    args, kwargs = prepare(model, batch)
    if wide:
        args, kwargs = _widened(args), _widened(kwargs)
    with untouched(model), watched(lambda original: original):
        torch.manual_seed(0)  # of a model that draws numbers; the states outside are kept
        if wide:
            with _Wide(), _default_dtype(torch.float64):
                result = model(*args, **kwargs)
        else:
            result = model(*args, **kwargs)
    return {name: t for name, t in _named(result) if t.is_floating_point()}


def _named(result: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(result, Tensor):
        yield "the output", result
        return
    parts = result.items() if isinstance(result, Mapping) else [("output", result)]
    for name, part in parts:
        tensors = list(tensors_of(part))
        for k, tensor in enumerate(tensors):
            yield (str(name) if len(tensors) == 1 else f"{name}.{k}"), tensor


def difference(before: Named, after: Named, scale: float = 0.0) -> tuple[float, str]:
    """The largest, of the largest number of its tensor, and where it is. ``scale``: tensors that are nothing
    but rounding beside the others are measured by them."""
    if [t.shape for t in before.values()] != [t.shape for t in after.values()]:
        return float("inf"), "the shapes of the outputs"
    worst, where = 0.0, ""
    for name, a in before.items():
        b = after[name]
        if a.numel() == 0 or a.is_meta:
            continue
        a, b = a.double(), b.double()
        same = (a == b) | (a.isnan() & b.isnan())
        off = float((a - b).abs().masked_fill(same, 0.0).nan_to_num(float("inf")).max())
        size = max(float(a.nan_to_num(0, 0, 0).abs().max()), 1e-3 * scale, 1e-300)
        if off / size > worst:
            worst, where = off / size, name
    return worst, where


def _largest(tensors: Named) -> float:
    return max((float(t.nan_to_num(0, 0, 0).abs().max()) for t in tensors.values() if t.numel()), default=0.0)


@torch.no_grad()
def randomise(model: nn.Module, norms: Sequence[Norm]) -> None:
    """Gains, biases and running statistics of all norms: far from 1 and from 0, the same each time."""
    generator = torch.Generator("cpu").manual_seed(1)

    def between(like: Tensor, low: float, high: float) -> Tensor:
        numbers = torch.rand(like.shape, generator=generator, dtype=torch.float64)
        return (low + (high - low) * numbers).to(like.device, like.dtype)

    by_name = dict(model.named_parameters())
    for norm in norms:
        if norm.gain is not None and norm.gain in by_name:
            gain = by_name[norm.gain]
            gain.copy_(between(gain, 0.5, 1.5) - (1.0 if norm.spec.gain == "1 + w" else 0.0))
        if norm.bias is not None and norm.bias in by_name:
            bias = by_name[norm.bias]
            bias.copy_(between(bias, -0.5, 0.5))
        module = model.get_submodule(norm.path) if not norm.is_function else None
        mean, var = (getattr(module, n, None) for n in ("running_mean", "running_var"))
        if isinstance(mean, Tensor) and isinstance(var, Tensor):
            # where they are: others would drive what follows out of any range
            spread = var.sqrt()
            mean.add_(between(mean, -0.5, 0.5) * spread)
            var.mul_(between(var, 0.5, 2.0))


def _floor(
    model: nn.Module, batch: Any, before: Named, gradients: Named | None, names: Sequence[str], wide: bool
) -> tuple[float, float | None]:
    """What the last digit of every parameter is worth: the most of some draws."""
    generator = torch.Generator("cpu").manual_seed(2)
    step = 1e-14 if wide else 6e-8
    kept = {name: p.detach().clone() for name, p in model.named_parameters() if p.is_floating_point()}
    floor, grad_floor = 0.0, 0.0
    for _ in range(DRAWS):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in kept:
                    sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2.0 - 1.0
                    parameter.copy_(kept[name] * (1 + step * sign.to(parameter.device, parameter.dtype)))
        outputs_, grads = _run(model, batch, wide)
        floor = max(floor, difference(before, outputs_)[0])
        if gradients is not None and grads is not None:
            grad_floor = max(grad_floor, _gradient_difference(gradients, grads, names)[0])
    return floor, grad_floor if gradients is not None else None
