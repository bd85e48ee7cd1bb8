"""A gain or bias of a norm in a group with weight decay.

What it finds: parameters of norms in a group of the optimizer whose weight_decay is not 0. It names the
value that they decay to: 0, or, where the gain is 1 + w, 1.

Why it matters: decay pulls at the scale of every layer with a strength that was chosen for matrices. Most
recipes leave norms out. It is debated: for gains of 1 + w, and for some roles (norms of queries and keys,
final norms), decay has been found to help.

Example:
    torch.optim.AdamW(model.parameters(), weight_decay=0.1)

Fix: two groups; ``report.fix()`` splits them.

References: huggingface/transformers#35927 (against), NVIDIA/Megatron-LM#1428 and arXiv:2605.26895 (for
some).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.inspect.edit import Edit
from normkit.inspect.sites import Site


def check(case: Case) -> Iterator[Found]:
    groups = getattr(case.optimizer, "param_groups", None) or []
    decay = {
        id(p): (g["weight_decay"], g)
        for g in groups
        if g.get("weight_decay")
        for p in g["params"]
        if p.requires_grad  # without a gradient, an optimizer leaves it alone
    }
    for site in case.sites:
        own = {n: p for n, p in _parameters(case, site).items() if id(p) in decay}
        if not own:
            continue
        value, _ = decay[id(next(iter(own.values())))]
        to = "1 (it is 1 + w)" if site.spec.gain == "1 + w" else "0"
        yield at(
            site,
            float(value),
            "0 for the parameters of norms",
            f"weight decay of {value:g} pulls {' and '.join(own)} of this {site.place} norm: "
            f"its gain goes to {to}.",
            "put the parameters of norms into a group with weight_decay=0.",
            edit=split(case.optimizer, site.path, list(own.values())),
        )


def _parameters(case: Case, site: Site) -> dict[str, Tensor]:
    if not site.is_function:
        return dict(site.module.named_parameters(recurse=False))
    named = dict(case.model.named_parameters())
    return {n: named[n] for n in case.inspection.graph.nodes[site.nodes[0]].weights if n in named}


def split(optimizer: Any, where: str, parameters: list[Tensor]) -> Edit:
    """Into a group of their own, with all else as it was; the optimizer's state stays."""

    def make() -> Callable[[], None]:
        groups = optimizer.param_groups
        before = [(group, list(group["params"])) for group in groups]
        ids = {id(p) for p in parameters}
        for group in list(groups):
            moved = [p for p in group["params"] if id(p) in ids]
            if not moved or not group.get("weight_decay"):
                continue
            group["params"] = [p for p in group["params"] if id(p) not in ids]
            options = {k: v for k, v in group.items() if k != "params"}
            settings = {**options, "weight_decay": 0.0, "normkit": "norms"}
            own = next((g for g in groups if {k: v for k, v in g.items() if k != "params"} == settings), None)
            if own is None:
                groups.append({**settings, "params": moved})
            else:
                own["params"] = [*own["params"], *moved]

        def undo() -> None:
            groups[:] = [group for group, _ in before]
            for group, params in before:
                group["params"] = params

        return undo

    return Edit(where, "its parameters move to a group of the optimizer with weight_decay=0", make)
