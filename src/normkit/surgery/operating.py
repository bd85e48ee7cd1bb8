"""One way to operate: plan, prove on a copy, change the model, compare, certify. All of it, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from normkit.errors import NormkitError, user_error
from normkit.inspect.batch import build_batch, unwrap
from normkit.inspect.edit import Edit, Edits
from normkit.inspect.sites import folded
from normkit.inspect.trace import tensors_of
from normkit.surgery.certificate import Certificate, Left, changes, digests, model_hash
from normkit.surgery.proving import Proof, difference, outputs, prove
from normkit.surgery.subject import Norm

__all__ = ["Plan", "checked_model", "operate", "progress", "told"]

# Of the largest output, on the model itself: what rounding may do to it. More is a bug of ours.
ROUNDING = {torch.float64: 1e-3, torch.float32: 5e-2, torch.float16: 0.5, torch.bfloat16: 0.5}


CACHES = ("past_key_values", "cache_params", "mems", "past_buckets_states")


@dataclass
class Plan:
    """What a surgery would do to a model, or to a copy of it.

    edits    for a model of this structure, the changes in order
    exact    whether it must compute the same then
    is_refused   nothing of it can be done
    """

    surgery: str
    edits: Callable[[nn.Module], list[Edit]]
    norms: Sequence[Norm] = ()
    left: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    exact: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)
    is_refused: bool = False


_told = threading.local()


@contextmanager
def progress(say: Callable[[str], None]) -> Iterator[None]:
    """``say`` hears what is going on, of every surgery within."""
    before = getattr(_told, "say", None)
    _told.say = say
    try:
        yield
    finally:
        _told.say = before


def told(words: str) -> None:
    say = getattr(_told, "say", None)
    if say is not None:
        say(words)


def checked_model(surgery: str, model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise user_error(f"{surgery} got {type(model).__name__}.", expected="a torch.nn.Module")
    return unwrap(model)


def batch_for(model: nn.Module, batch: Any) -> Any:
    return build_batch(model) if batch is None else batch


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode; every module is in its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def operate(model: nn.Module, batch: Any, plan: Plan, dry_run: bool = False) -> Certificate:
    """Carry it out. An edit that fails its check is rolled back, and the error says what differed.

    ``dry_run``: a certificate of nothing, with the edits that would be made.
    """
    if plan.is_refused:
        raise _refused(plan)
    if dry_run:
        edits = Edits(plan.edits(model))
        return Certificate(plan.surgery, plan.exact, edits, tuple(plan.left), notes=tuple(plan.notes))
    if any(p.is_meta for p in model.parameters()):
        raise user_error(
            f"{plan.surgery} got a model on the meta device, which has no numbers.",
            fix="load the weights; dry_run=True shows the plan without them.",
        )
    with evaluating(model):
        planned = plan.edits(model)
        proof = None
        if planned and plan.exact:
            proof = prove(model, batch, plan.norms, plan.edits, told)
            if not proof.holds:
                raise _not_proven(plan, proof)
        told("hashing")
        state = digests(model)
        before = outputs_of(model, batch) if planned else {}
        edits = Edits(planned)
        told("changing the model")
        edits.apply()
        try:
            drift, where = difference(before, outputs_of(model, batch)) if planned else (0.0, "")
            limit = _limit(model)
            if plan.exact and not drift <= limit:
                raise user_error(
                    f"{plan.surgery} changes {where} of this model by {drift:.2g} of the largest number: it "
                    f"was undone.",
                    expected=f"at most {limit:.2g}, as its dtype rounds",
                )
            new_state = digests(model)
        except BaseException as error:  # Ctrl-C too
            edits.undo()
            if isinstance(error, Exception) and not isinstance(error, NormkitError):
                said = " ".join(str(error).split())[:200]
                raise user_error(
                    f"{plan.surgery} was undone: the edited model raises {type(error).__name__}: {said}"
                ) from error
            raise
    return Certificate(
        plan.surgery,
        plan.exact,
        edits,
        tuple(plan.left),
        tensors=changes(state, new_state),
        error=proof.error if proof else None,
        gradients=proof.gradients if proof else None,
        tolerance=proof.tolerance if proof else None,
        floor=proof.floor if proof else None,
        drift=drift if planned else None,
        before=model_hash(state),
        after=model_hash(new_state),
        notes=tuple(plan.notes),
        arguments=plan.arguments,
        batch=_described(batch),
        proven_in=proof.dtype if proof else "",
    )


def outputs_of(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    """Without caches: what others read of a model."""
    with torch.no_grad():
        found = outputs(model, batch)
    return {n: t for n, t in found.items() if n.partition(".")[0] not in CACHES} or found


def _limit(model: nn.Module) -> float:
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()} or {torch.float32}
    return max(ROUNDING.get(dtype, 0.5) for dtype in dtypes)


def _refused(plan: Plan) -> Exception:
    """Reasons, the most common first."""
    reasons: dict[str, list[str]] = {}
    for entry in plan.left:
        reasons.setdefault(folded(entry.why), []).append(entry.path)
    ordered = sorted(reasons.items(), key=lambda item: -len(item[1]))
    said = "; ".join(f"{paths[0]}{_and_more(paths)}: {why}" for why, paths in ordered[:4])
    return user_error(f"{plan.surgery} cannot be done on this model. {said}.")


def _and_more(paths: list[str]) -> str:
    return f" and {len(paths) - 1} more" if len(paths) > 1 else ""


def _not_proven(plan: Plan, proof: Proof) -> Exception:
    other = "of a batch with" in proof.where
    return user_error(
        f"{plan.surgery} is not proven: {proof.where} differs by "
        f"{proof.gradients if proof.where.startswith('the gradient') else proof.error:.2g} of its largest "
        "number on a copy with random norms. "
        "The model was not changed.",
        expected=f"at most {proof.tolerance:.2g}, or twice what rounding does to the model",
        fix="what the model does there depends on its input, and one run does not show how: leave its norms."
        if other
        else "the model does something with these norms that cannot be seen: please report it.",
    )


def _described(batch: Any) -> str:
    shapes = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors_of(batch)]
    return ", ".join(shapes)
