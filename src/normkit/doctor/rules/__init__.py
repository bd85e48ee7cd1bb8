"""The rules of the doctor: one file each, one line in this table."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from normkit.doctor.rule import Rule
from normkit.doctor.rules import (
    absurd_eps,
    axes_differ,
    bn_not_frozen,
    bn_small_batch,
    bn_stat_drift,
    cast_differs,
    dead_gamma,
    decayed_norm,
    double_norm,
    eps_differs,
    eps_underflow,
    gain_convention,
    grad_imbalance,
    group_collapse,
    inverted_momentum,
    kind_differs,
    massive_activation,
    missing_final_norm,
    not_a_norm,
    pad_leak,
    place_differs,
    ranks_differ,
    redundant_bias,
    shared_norm,
    square_overflow,
    stream_growth,
    unused_norm,
    wrong_axes,
    wrong_skip,
)
from normkit.errors import user_error

__all__ = ["RULES", "rule_of", "rules_for"]

RULES = (
    Rule("NK101", "wrong-skip", "error", wrong_skip),
    Rule("NK102", "missing-final-norm", "error", missing_final_norm),
    Rule("NK103", "double-norm", "warning", double_norm),
    Rule("NK104", "wrong-axes", "error", wrong_axes),
    Rule("NK105", "group-collapse", "error", group_collapse),
    Rule("NK106", "unused-norm", "warning", unused_norm),
    Rule("NK107", "shared-norm", "warning", shared_norm),
    Rule("NK201", "eps-underflow", "error", eps_underflow),
    Rule("NK202", "square-overflow", "error", square_overflow),
    Rule("NK203", "massive-activation", "info", massive_activation),
    Rule("NK204", "absurd-eps", "error", absurd_eps),
    Rule("NK205", "not-a-norm", "error", not_a_norm),
    Rule("NK301", "bn-small-batch", "warning", bn_small_batch),
    Rule("NK302", "bn-stat-drift", "warning", bn_stat_drift),
    Rule("NK303", "bn-not-frozen", "warning", bn_not_frozen),
    Rule("NK304", "pad-leak", "error", pad_leak),
    Rule("NK305", "inverted-momentum", "warning", inverted_momentum),
    Rule("NK401", "stream-growth", "info", stream_growth),
    Rule("NK402", "grad-imbalance", "info", grad_imbalance),
    Rule("NK501", "decayed-norm", "warning", decayed_norm),
    Rule("NK502", "dead-gamma", "warning", dead_gamma),
    Rule("NK601", "redundant-bias", "info", redundant_bias),
    Rule("NK701", "gain-convention", "error", gain_convention),
    Rule("NK702", "eps-differs", "error", eps_differs),
    Rule("NK703", "kind-differs", "error", kind_differs),
    Rule("NK704", "cast-differs", "error", cast_differs),
    Rule("NK705", "place-differs", "error", place_differs),
    Rule("NK706", "axes-differ", "error", axes_differ),
    Rule("NK707", "ranks-differ", "error", ranks_differ),
)


def rule_of(code: str) -> Rule:
    """By its code or its name."""
    for rule in RULES:
        if code.upper() == rule.code or code.lower() == rule.name:
            return rule
    known = [r.code for r in RULES]
    close = difflib.get_close_matches(code.upper(), known, n=1)
    raise user_error(
        f"there is no rule {code!r}.",
        expected=f"one of {', '.join(known)}",
        fix=f"did you mean {close[0]}?" if close else None,
    )


def rules_for(select: str | Sequence[str] = (), ignore: str | Sequence[str] = ()) -> list[Rule]:
    """Those whose codes begin as ``select`` says, but not as ``ignore`` does."""
    chosen, left_out = (_prefixes(given) for given in (select, ignore))
    return [
        rule
        for rule in RULES
        if (not chosen or rule.code.startswith(chosen)) and not (left_out and rule.code.startswith(left_out))
    ]


def _prefixes(given: str | Sequence[str]) -> tuple[str, ...]:
    words = given.replace(",", " ").split() if isinstance(given, str) else list(given)
    for word in words:
        if not any(rule.code.startswith(word.upper()) for rule in RULES):
            rule_of(word)
    return tuple(word.upper() for word in words)
