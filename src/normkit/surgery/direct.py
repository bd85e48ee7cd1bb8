"""The matrix right before a norm: whose output goes there, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normkit.surgery.flow import Use
from normkit.surgery.labels import ZERO, Source
from normkit.surgery.readers import RefusedError
from normkit.surgery.subject import Norm, Subject

__all__ = ["NOTHING_BEFORE", "Writer", "writer_of"]


NOTHING_BEFORE = "no matrix or convolution stands right before it"


@dataclass(frozen=True)
class Writer:
    """A matrix with its parameters. ``bias``: its name; None if it has none."""

    use: Use
    bias: str | None

    def by_channel(self, values: Tensor) -> Tensor:
        """A number for each output channel, as it broadcasts to the weight."""
        use, ndim = self.use, len(self.use.weight_shape)
        if use.transposed and use.groups > 1:  # weight[i, o] writes channel o of the group of i
            ins, outs = use.weight_shape[:2]
            by_group = values.reshape(use.groups, 1, outs).expand(-1, ins // use.groups, -1)
            return by_group.reshape([ins, outs, *[1] * (ndim - 2)])
        view = [1] * ndim
        view[use.out_axes[0]] = len(values)
        return values.reshape(view)


def writer_of(subject: Subject, norm: Norm) -> Writer:
    """Or ``RefusedError``."""
    flow = subject.flow
    calls = [use for use in flow.norms if use.key == norm.key]
    if len(calls) != 1:
        raise RefusedError("it is called in several places" if calls else "the batch does not reach it")
    labels = calls[0].labels.movedim(norm.axes[0], -1)
    sources = flow.labels.sources_of(labels)
    if len(sources) != 1 or sources[0].kind != "weighted":
        raise RefusedError(NOTHING_BEFORE)
    source = sources[0]
    use = flow.uses[int(source.name)]
    expected = torch.arange(source.start, source.start + source.count)
    if source.count != labels.shape[-1] or not bool((labels == expected).all()):
        is_padded = bool((labels == ZERO).any())
        raise RefusedError(
            f"what {use.weight.name} writes is {'padded' if is_padded else 'moved'} on the way"
        )
    _refuse_other_readers(subject, norm, source, use)
    if use.weight.index is not None or use.weight.is_buffer:
        raise RefusedError(f"of {use.weight.name} a part is used")
    _refuse_sharing(subject, use)
    if use.has_bias and (use.bias is None or use.bias.index is not None):
        raise RefusedError(f"the bias of {use.weight.name} is computed")
    return Writer(use, use.bias.name if use.bias is not None else None)


def _refuse_other_readers(subject: Subject, norm: Norm, source: Source, use: Use) -> None:
    flow, name = subject.flow, use.weight.name
    for other in flow.labels.sources:
        if other.parts is not None and source in flow.labels.sources_of(other.parts):
            raise RefusedError(f"what {name} writes is used elsewhere too")
    for read in flow.reads:
        if source in read.sources:
            raise RefusedError(f"{read.what} reads what {name} writes, too")
    for reader in flow.uses:
        if reader.labels is not None and source in flow.labels.sources_of(reader.labels):
            raise RefusedError(f"{reader.weight.name} reads what {name} writes, too")
    for other_norm in flow.norms:
        if other_norm.key != norm.key and source in flow.labels.sources_of(other_norm.labels):
            raise RefusedError(f"{other_norm.path} reads what {name} writes, too")


def _refuse_sharing(subject: Subject, use: Use) -> None:
    flow = subject.flow
    for name in filter(None, (use.weight.name, use.bias.name if use.bias is not None else None)):
        users = [u for u in flow.uses if name in (u.weight.name, u.bias.name if u.bias else None)]
        is_number = any(s.kind == "parameter" and s.name == name for s in flow.labels.sources)
        if len(users) != 1 or name in flow.params or is_number:
            raise RefusedError(f"{name} is used in several places")
