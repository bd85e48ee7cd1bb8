"""The results in print: one line for each norm, check and backend, 80 columns."""

from __future__ import annotations

from rich.table import Table

from normkit.verify.checking import Result
from normkit.verify.norms import NORMS

__all__ = ["LEGEND", "failures", "table"]

LEGEND = """worst: the largest error beyond the rounding of the result's dtype, against
float64 on the CPU, as a share of max(1, the true number), of gradients of their
largest. Bits: how many results differ. Memory: the peak of a forward, over its
outputs and statistics. torch's: its own operator computes, and rounds as torch
does; the bound is twice its own error. –: not promised, shown all the same.
hard inputs: a row, sample or channel of the largest floats, constant, with a
NaN or an inf, which the others must not notice; and an empty input."""
MOST = 20  # failures in print; the file has all


def table(results: list[Result]) -> Table:
    """Worst of all sizes, means, layouts and dtypes that share a bound."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, right in (
        *(("norm", False), ("check", False), ("by", False)),
        *(("passed", True), ("worst", True), ("bound", True)),
    ):
        found.add_column(name, justify="right" if right else "left", no_wrap=True)
    order = list(NORMS)
    counted = [result for result in results if result.status != "skipped"]
    kinds = dict.fromkeys(_kind(result) for result in counted)
    for kind in sorted(kinds, key=lambda kind: order.index(kind[0])):
        own = [result for result in counted if _kind(result) == kind]
        passed = sum(result.status == "passed" for result in own)
        found.add_row(*kind[:3], f"{passed}/{len(own)}", _worst(own), _bound(own))
    return found


def failures(results: list[Result]) -> list[str]:
    """One line for each check that failed, up to a number."""
    found = [
        f"failed: {r.norm}, {r.check}, {r.case}, {r.dtype}, by {r.backend or 'nothing'}: "
        f"{_number(r.check, r.value)}, bound {_number(r.check, r.bound)}{f' ({r.note})' if r.note else ''}"
        for r in results
        if r.status == "failed"
    ]
    more = [f"and {len(found) - MOST} more, which --json writes"] if len(found) > MOST else []
    return found[:MOST] + more


def _kind(result: Result) -> tuple[str, str, str, str]:
    bound = "" if result.whose == "torch's" else f"{result.bound}"
    return result.norm, result.check, result.backend, f"{result.whose} {bound}"


def _worst(own: list[Result]) -> str:
    values = [r.value for r in own if r.value is not None]
    if len(values) < len(own):
        return "no number"
    return _number(own[0].check, max(values))


def _bound(own: list[Result]) -> str:
    if own[0].whose == "not promised":
        return "–"
    if own[0].whose == "ours":
        return _number(own[0].check, own[0].bound)
    bounds = [r.bound for r in own if r.bound is not None]
    return f"torch's, {_number(own[0].check, max(bounds))}" if len(bounds) == len(own) else "torch's, none"


def _number(check: str, value: float | None) -> str:
    if value is None:
        return "no number"
    if check == "memory":
        return f"{value:.2f}"
    return f"{value:.0f}" if check.startswith("same") or value == 0 else f"{value:.0e}"
