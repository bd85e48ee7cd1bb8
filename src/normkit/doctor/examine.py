"""``nk.doctor``: run the model, then ask every rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from normkit.doctor.case import Case, examine_run, gradients
from normkit.doctor.report import Report
from normkit.doctor.rules import rules_for
from normkit.errors import user_error

__all__ = ["assert_healthy", "doctor"]


def doctor(
    model: nn.Module,
    batch: Any = None,
    *,
    optimizer: Any = None,
    loss: Callable[..., Any] | None = None,
    reference: nn.Module | None = None,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
) -> Report:
    """What is wrong with the norms of a model, with a number and a fix for each finding.

    The model is run on the batch, in the mode it is in, and is as before in the end. An error or a warning
    means that the measurement leaves no innocent reading; what may be its author's choice is information.

    Args:
        batch: a tensor, a tuple of arguments or a dict of keyword arguments, as the model takes them. None: a
            random one, where a config says what the model reads.
        optimizer: its groups are looked at, too: weight decay.
        loss: of the model's output; or of output and batch; or of model and batch, if its first argument is
            called ``model``. Gradients are looked at, too.
        reference: another model that should compute the same: the norms that differ are found.
        select, ignore: codes of rules, or how they begin: "NK1".

    Example:
        >>> import torch
        >>> report = doctor(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=True)), torch.randn(8, 4))
        >>> report.findings[0].code, report.findings[0].name, report.findings[0].where, report.ok
        ('NK204', 'absurd-eps', '1', False)
    """
    rules = rules_for(select, ignore)
    other = None
    if reference is not None:
        if not isinstance(reference, nn.Module):
            raise user_error(f"reference= got {type(reference).__name__}.", expected="a torch.nn.Module")
        other = examine_run(reference, batch, keep_outputs=True)
    case = examine_run(model, batch, optimizer=optimizer, reference=other)
    case.gradients = gradients(case, loss)
    findings = [finding for rule in rules for finding in rule.findings(case)]
    return Report(case.inspection, findings, _notes(case))


def assert_healthy(model: nn.Module, batch: Any = None, **options: Any) -> None:
    """Raise an AssertionError with the report if :func:`doctor` has an error or a warning to report.

    Example:
        >>> import torch
        >>> assert_healthy(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), torch.randn(8, 4))
    """
    report = doctor(model, batch, **options)
    if not report.ok:
        raise AssertionError(str(report))


def _notes(case: Case) -> list[str]:
    notes = []
    if case.is_synthetic:
        notes.append("The batch was made up: what depends on data was not judged.")
    if not case.sites:
        notes.append("No norm was called.")
    if case.reference is not None:
        notes += _first_difference(case, case.reference)
    return notes


def _first_difference(case: Case, other: Case) -> list[str]:
    """The first norm whose output differs from the one at the same place in the reference."""
    first = True
    for mine, theirs in zip(case.sites, other.sites, strict=False):
        a, b = case.seen.outputs.get(mine.nodes[0]), other.seen.outputs.get(theirs.nodes[0])
        if a is None or b is None:
            continue
        if a.shape != b.shape:
            return [f"First difference: {mine.path} gives {list(a.shape)}, the reference {list(b.shape)}."]
        off = float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30))
        if not off <= 1e-3:
            return [
                f"First difference: the output of {mine.path} is off by {off:.2g} of the reference's "
                f"({theirs.path})." + ("" if first else " The norms before it agree.")
            ]
        first = False
    return ["The outputs of all norms agree with the reference's to 1e-3."] if other.seen.outputs else []
