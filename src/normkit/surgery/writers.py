"""Who writes into a stream that LayerNorms read, and whether its mean can be taken away at the writers.

A LayerNorm does not see the mean of its input. If all who read a stream are LayerNorms, everyone who writes
into it may write numbers without a mean; and then the LayerNorms are RMSNorms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from normkit.surgery.flow import NormUse, Use
from normkit.surgery.labels import UNKNOWN, ZERO, Source
from normkit.surgery.readers import RefusedError
from normkit.surgery.subject import Norm, Subject

__all__ = ["Stream", "Streams"]


@dataclass
class Stream:
    """The sources that are added up, and the norms that read the sums. ``why`` it cannot be centred, if so.

    uses, parameters    the matrices and the parameters that write into it
    """

    norms: list[Norm]
    uses: list[Use] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    why: str = ""


class _Channels:
    """Which channel of the stream a label is: the same for all that is added up in it."""

    def __init__(self, subject: Subject) -> None:
        self.flow = subject.flow
        total = subject.flow.labels.sources[-1] if subject.flow.labels.sources else None
        table = torch.full((total.start + total.count if total else 1,), UNKNOWN)
        for s in subject.flow.labels.sources:
            table[s.start : s.start + s.count] = self._of(subject, s, table)
        self.table = table

    @staticmethod
    def _of(subject: Subject, source: Source, table: Tensor) -> Tensor:
        if source.kind == "parameter":
            size = _tensor(subject, source.name).shape[-1:]
            return torch.arange(source.count) % size[0] if size else torch.full((source.count,), UNKNOWN)
        if source.parts is None:
            return torch.arange(source.count)
        found = torch.where(source.parts > ZERO, table[source.parts.clamp_min(0)], UNKNOWN)
        if source.kind == "scaled":
            return found
        # beside something unknown, a number is still of its channel
        a, b = found.unbind(1)
        return torch.where(a == b, a, torch.where(source.parts[:, 0] == UNKNOWN, b, UNKNOWN))


def _tensor(subject: Subject, name: str) -> Tensor:
    path, _, attribute = name.rpartition(".")
    found: Tensor = getattr(subject.model.get_submodule(path), attribute)
    return found


class Streams:
    """Everything that these norms read."""

    def __init__(self, subject: Subject, norms: Sequence[Norm]) -> None:
        self.subject, self.flow = subject, subject.flow
        self.keys = {norm.key: norm for norm in norms}

    def vanishes(self, use: Use) -> list[Norm]:
        """The norms that take the mean of what a matrix writes away, if nobody else reads it or a sum of it;
        or ``RefusedError``."""
        labels = self.flow.labels
        members = {use.source.start: use.source}
        for source in labels.sources:  # in the order in which they were made
            if source.parts is not None and any(s.start in members for s in labels.sources_of(source.parts)):
                members[source.start] = source
                if source.kind == "scaled" and not source.uniform:
                    raise RefusedError("what is written is scaled by channel on the way")
        readers = [
            norm
            for norm in self.flow.norms
            if any(s.start in members for s in labels.sources_of(norm.labels))
        ]
        self._check_readers(members, readers, whole=False)
        for reader in readers:
            norm = self.keys[reader.key]
            found = reader.labels.movedim(norm.axes[0], -1)
            is_ours = torch.zeros_like(self.channels.table, dtype=torch.bool)
            for source in members.values():
                is_ours[source.start : source.start + source.count] = True
            channels = self.channels.table[found.clamp_min(0)]
            moved = (channels != torch.arange(found.shape[-1])) & is_ours[found.clamp_min(0)]
            if bool(moved.any()) or found.shape[-1] != use.source.count:
                raise RefusedError("channels are moved on the way")
        return [self.keys[reader.key] for reader in readers]

    @cached_property
    def channels(self) -> _Channels:
        return _Channels(self.subject)

    @cached_property
    def below(self) -> dict[int, set[int]]:
        """Of each source, those that its numbers are sums or multiples of."""
        labels = self.flow.labels
        return {
            s.start: {p.start for p in labels.sources_of(s.parts)} if s.parts is not None else set()
            for s in labels.sources
        }

    @cached_property
    def above(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {start: set() for start in self.below}
        for start, parts in self.below.items():
            for part in parts:
                found[part].add(start)
        return found

    def find(self) -> list[Stream]:
        """The streams that the norms read; every norm is in one."""
        found: list[Stream] = []
        left = list(self.keys)
        while left:
            stream, keys = self._stream(left[0])
            found.append(stream)
            left = [key for key in left if key not in keys and key != left[0]]
        return found

    def _stream(self, key: str) -> tuple[Stream, set[str]]:
        """Everything that is connected with a norm's input by sums and multiples."""
        flow, labels = self.flow, self.flow.labels
        first = [use for use in flow.norms if use.key == key]
        members = {s.start for use in first for s in labels.sources_of(use.labels)}
        waiting = list(members)
        while waiting:
            start = waiting.pop()
            for other in (*self.below[start], *self.above[start]):
                if other not in members:
                    members.add(other)
                    waiting.append(other)
        by_start = {s.start: s for s in labels.sources if s.start in members}
        readers = [
            use for use in flow.norms if any(s.start in members for s in labels.sources_of(use.labels))
        ]
        keys = {use.key for use in readers} | {key}
        stream = Stream([self.keys[k] for k in dict.fromkeys(use.key for use in readers) if k in self.keys])
        try:
            self._check(stream, by_start, first or [], readers)
        except RefusedError as reason:
            stream.why = str(reason)
        return stream, keys & self.keys.keys()

    def _check(
        self, stream: Stream, members: dict[int, Source], first: list[NormUse], readers: list[NormUse]
    ) -> None:
        if not first or not members:
            raise RefusedError("nothing that can be changed writes what it reads")
        self._check_readers(members, readers)
        sizes = set()
        for use in readers:
            norm = self.keys[use.key]
            labels = use.labels.movedim(norm.axes[0], -1)
            sizes.add(labels.shape[-1])
            if bool((labels == UNKNOWN).any()):
                raise RefusedError("something is added to the stream that is no parameter's")
            channels = self.channels.table[labels.clamp_min(0)]
            expected = torch.arange(labels.shape[-1])
            if not bool(((channels == expected) | (labels == ZERO)).all()):
                raise RefusedError("channels of the stream are moved on the way")
        if len(sizes) != 1:
            raise RefusedError("norms of several widths read it")
        self._writers(stream, members, sizes.pop())

    def _check_readers(
        self, members: dict[int, Source], readers: list[NormUse], *, whole: bool = True
    ) -> None:
        labels = self.flow.labels
        here = {use.key for use in readers}
        for use in self.flow.norms:
            if (
                whole
                and use.key in here
                and not all(s.start in members for s in labels.sources_of(use.labels))
            ):
                raise RefusedError(f"{use.path} reads something else, too")
        for use in readers:
            if use.key not in self.keys:
                raise RefusedError(f"{use.path} reads the stream, and is no LayerNorm of this kind")
        for matrix in self.flow.uses:
            if matrix.labels is not None and any(
                s.start in members for s in labels.sources_of(matrix.labels)
            ):
                raise RefusedError(f"{matrix.weight.name} reads the stream without a norm")
        for read in self.flow.reads:
            if any(s.start in members for s in read.sources):
                if read.what == "output":
                    raise RefusedError("the model returns the stream itself")
                raise RefusedError(f"{read.what} reads the stream{_where(read.module)}")

    def _writers(self, stream: Stream, members: dict[int, Source], size: int) -> None:
        for source in members.values():
            if source.kind == "norm":
                raise RefusedError(f"{self.subject.norm(source.name).path} writes into the stream")
            if source.kind == "scaled" and not source.uniform:
                raise RefusedError("what is written is scaled by channel on the way")
            if source.parts is not None:
                if bool((source.parts == UNKNOWN).any()):
                    raise RefusedError("something is added to the stream that is no parameter's")
                continue
            if source.kind == "parameter":
                tensor = _tensor(self.subject, source.name)
                if not tensor.ndim or tensor.shape[-1] != size:
                    raise RefusedError(f"{source.name} is added, and has no channels")
                stream.parameters.append(source.name)
                continue
            use = self.flow.uses[int(source.name)]
            if source.count != size or len(use.out_axes) != 1:
                raise RefusedError(f"{use.weight.name} writes another number of channels")
            if use.groups > 1:
                raise RefusedError(
                    f"{use.weight.name} is a convolution in groups, which no mean goes through"
                )
            if use.has_bias and use.bias is None:
                raise RefusedError(f"the bias of {use.weight.name} is computed")
            stream.uses.append(use)


def _where(module: str) -> str:
    return f" in {module}" if module else ""
