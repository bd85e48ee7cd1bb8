"""The weights are frozen, and BatchNorm still moves.

What it finds: a BatchNorm in training mode whose own parameters, and the weights before it, take no
gradient.

Why it matters: requires_grad=False does not stop running statistics: they follow every batch. The frozen
backbone is another one after fine-tuning than before, and its features depend on the rest of the batch.

Example:
    for p in backbone.parameters(): p.requires_grad = False
    model.train()                                # backbone's BatchNorms move

Fix: put them into evaluation mode after model.train(): every epoch.

References: pytorch/pytorch#86590, lightly-ai/lightly#1438, pgniewko/gt-pyg#112.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

from normkit.doctor.case import Case
from normkit.doctor.rule import Found, at
from normkit.inspect.edit import Edit
from normkit.inspect.sites import Site


def check(case: Case) -> Iterator[Found]:
    named = dict(case.model.named_parameters())
    for site in case.sites:
        if not (site.spec.running and site.training) or site.is_function:
            continue
        own = list(site.module.parameters())
        before = [named[w] for w in site.writers if w in named]
        if any(p.requires_grad for p in (*own, *before)) or not (own or before):
            continue
        frozen = sum(p.numel() for p in (*own, *before))
        yield at(
            site,
            float(frozen),
            "evaluation mode where the weights are frozen",
            f"its {frozen:,} weights and those before it take no gradient, and its running statistics move.",
            f"after model.train(): model.get_submodule({site.path!r}).eval().",
            edit=freeze(site),
        )


def freeze(site: Site) -> Edit:
    module: nn.Module = site.module

    def make() -> Callable[[], None]:
        module.eval()
        return lambda: _train(module)

    return Edit(site.path, "goes into evaluation mode: its running statistics stop", make)


def _train(module: nn.Module) -> None:
    module.train()
