"""What the doctor takes from a training step: gradients that are there, and a few numbers to plot."""

from __future__ import annotations

from torch import Tensor, nn

from normkit.doctor.case import Case, Gradients
from normkit.doctor.report import Report

__all__ = ["is_sharded", "let_go", "scalars_of", "stored_gradients"]


def is_sharded(model: nn.Module) -> bool:
    return any(hasattr(p, "to_local") for p in model.parameters())


def stored_gradients(case: Case) -> Gradients | None:
    """Those that a backward left in the parameters of the norms; None if the model has none at all."""
    found = Gradients([], {})
    for site in case.sites:
        named = [] if site.is_function else site.module.named_parameters()
        for name, p in named:
            if p.requires_grad:
                grad, path = _here(p.grad), f"{site.path}.{name}"
                found.parameters[path] = _largest(grad)
                if grad is not None and grad.ndim == 1:
                    found.zeros[path] = grad == 0
    others = (_here(p.grad) for p in case.model.parameters())
    return found if any(found.parameters.values()) or any(map(_largest, others)) else None


def _here(grad: Tensor | None) -> Tensor | None:
    """Of a shard, the part that is here; of a sparse gradient, its numbers."""
    if grad is not None and hasattr(grad, "to_local"):
        grad = grad.to_local()
    return grad.coalesce().values() if grad is not None and grad.is_sparse else grad


def _largest(grad: Tensor | None) -> float:
    """Of absolute values; what is no number is none of 0."""
    if grad is None or grad.numel() == 0:
        return 0.0
    value = float(grad.abs().max())
    return value if value == value else float("inf")


def scalars_of(case: Case, report: Report) -> dict[str, float]:
    numbers: dict[str, float] = {"errors": report.count("error"), "warnings": report.count("warning")}
    stream = [case.seen.measures[r.node].rms for r in case.residuals if r.node in case.seen.measures]
    if stream:
        numbers["stream_rms_last"] = stream[-1]
        numbers["stream_growth"] = stream[-1] / max(stream[0], 1e-30)
    if case.seen.measures:
        numbers["largest_activation"] = max(m.largest for m in case.seen.measures.values())
    sums = case.gradients.stream if case.gradients is not None else []
    if len(sums) > 1 and sums[-1][1] > 0:
        numbers["grad_first_last"] = sums[0][1] / sums[-1][1]
    return {f"normkit/{name}": value for name, value in numbers.items()}


def let_go(case: Case) -> None:
    """Of activations, which a report would hold until the next look."""
    case.inspection.trace.result = None
    for node in case.inspection.graph.nodes:
        if node.norm is not None:
            node.norm.args, node.norm.kwargs = (), {}
