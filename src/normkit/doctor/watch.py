"""``nk.Doctor``: the doctor in a training loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from normkit.checks import integer
from normkit.doctor.case import Case, Gradients, examine_run, gradients
from normkit.doctor.readings import is_sharded, let_go, scalars_of, stored_gradients
from normkit.doctor.report import Finding, Report, grouped
from normkit.doctor.rules import rules_for
from normkit.errors import NormkitError, user_error
from normkit.inspect.sites import folded

__all__ = ["Doctor"]

LOOKS = 3  # in a row at which a gain gets no gradient, before it is called dead
LOGGER = logging.getLogger("normkit.doctor")
LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


class Doctor:
    """Look at the norms of a model while it trains: at the first step, and at every 100th.

        doctor = nk.Doctor(model, optimizer, every=100)
        for batch in loader:
            loss = model(batch).mean()
            loss.backward()
            doctor.step()  # while the gradients are there
            optimizer.step()
            optimizer.zero_grad()

    A look runs the model once more on what it was last called with, and leaves all as it was. What is new is
    said once, in a line. An examination that fails is a line, too, and training goes on. Under
    torch.distributed build it in all processes: they look together.

    Args:
        model: what the loop calls: give it compiled or wrapped, if it is.
        optimizer: its groups are looked at, too: weight decay.
        every: the number of calls of ``step`` from one look to the next.
        select, ignore: codes of rules, or how they begin: "NK1".
        loss: see ``nk.doctor``; for the gradients of the residual stream, unless the model returns its loss.
        out: gets each line; None: Python's ``logging``, as "normkit.doctor".

    report        of the last look
    findings      all that were found so far, each once
    steps         how often ``step`` was called

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=0.1))
        >>> with Doctor(model, select="NK2", out=lambda line: print(line[:43])) as doctor:
        ...     loss = model(torch.randn(8, 4)).square().mean()
        ...     loss.backward()
        ...     _ = doctor.step()
        step 1: error NK204 absurd-eps at 1: eps is
        >>> doctor.scalars()["normkit/errors"]
        1
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        *,
        every: int = 100,
        select: str | Sequence[str] = (),
        ignore: str | Sequence[str] = (),
        loss: Callable[..., Any] | None = None,
        out: Callable[[str], object] | None = None,
    ) -> None:
        from normkit.doctor.last_call import LastCall  # imports torch's compiler

        if not isinstance(model, nn.Module):
            raise user_error(f"Doctor got {type(model).__name__}.", expected="a torch.nn.Module")
        integer(every, what="every=", least=1)
        self.optimizer, self.every, self.loss, self.out = optimizer, every, loss, out
        self.report: Report | None = None
        self.findings: tuple[Finding, ...] = ()
        self.steps = 0
        self._rules = rules_for(select, ignore)
        self._calls = LastCall(model)
        self._scalars: dict[str, float] = {}
        self._dead: dict[str, int] = {}  # where gains get no gradient: at how many looks in a row
        self._warned: set[str] = set()
        self._is_open = True
        self._calls.start()

    def step(self) -> Report | None:
        """Once a step, after ``backward`` and before ``zero_grad``. The report, if it looked."""
        self.steps += 1
        if not self._is_open:
            return None
        report = None
        if self.steps == 1 or self.steps % self.every == 0:
            try:
                report = self._look()
            except Exception as error:  # training is worth more than a look at it
                said = str(error) if isinstance(error, NormkitError) else repr(error)
                self._warn(f"could not look: {said}")
        if (self.steps + 1) % self.every == 0:
            self._calls.start()
        return report

    def scalars(self) -> dict[str, float]:
        """A few numbers of the last look, for TensorBoard and its like."""
        return dict(self._scalars)

    def log_to(self, writer: Any, step: int | None = None) -> None:
        """``scalars`` to anything with ``add_scalar(name, number, step)``."""
        for name, value in self._scalars.items():
            writer.add_scalar(name, value, self.steps if step is None else step)

    def close(self) -> None:
        """Look no more. The model is as it was before."""
        self._is_open = False
        self._calls.take()

    def __enter__(self) -> Doctor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _look(self) -> Report | None:
        called = self._calls.take()
        if called is None:
            name = type(self._calls.model).__name__
            self._warn(
                f"could not look: {name} was not called since the step before, or only in compiled code. "
                "Give Doctor what the loop calls: the compiled or wrapped model, if it is."
            )
            return None
        with called.context(), torch.no_grad():
            case = examine_run(called.module, called.batch(), optimizer=self.optimizer)
            case.gradients = self._gradients(case)
            found = [finding for rule in self._rules for finding in rule.findings(case)]
        if called.path:
            found = [replace(f, where=f"{called.path}.{f.where}".rstrip(".")) for f in found]
        self.report = Report(case.inspection, self._without_short_deaths(found))
        self._scalars = scalars_of(case, self.report)
        let_go(case)
        self._tell(self.report.findings)
        return self.report

    def _gradients(self, case: Case) -> Gradients | None:
        """Those that the backward of this step left; at the residual stream, of a run of its own."""
        stored = stored_gradients(case)
        traced = None
        try:
            traced = None if is_sharded(case.model) else gradients(case, self.loss)
        except NormkitError as error:
            self._warn(f"no gradients of the stream: {error}")
        if stored is None or traced is None:
            return stored or traced
        return replace(stored, stream=traced.stream)

    def _without_short_deaths(self, found: list[Finding]) -> list[Finding]:
        dead = {f.where for f in found if f.name == "dead-gamma"}
        self._dead = {where: self._dead.get(where, 0) + 1 for where in dead}
        return [f for f in found if f.name != "dead-gamma" or self._dead[f.where] >= LOOKS]

    def _tell(self, findings: Sequence[Finding]) -> None:
        known = {(f.code, f.where) for f in self.findings}
        new = [f for f in findings if (f.code, f.where) not in known]
        self.findings += tuple(new)
        if _rank() != 0:
            return  # the first process speaks for all
        for group in grouped(new):
            first = group[0]
            where = first.where if len(group) == 1 else f"{folded(first.where)} ({len(group)} of them)"
            line = f"{first.severity} {first.code} {first.name} at {where or 'the model'}: {first.message}"
            self._say(first.severity, f"{line} fix: {first.fix}" + (f" ({first.line})" if first.line else ""))

    def _say(self, severity: str, line: str) -> None:
        line = f"step {self.steps}: {line}"
        if self.out is not None:
            self.out(line)
        else:
            LOGGER.log(LEVELS[severity], line)

    def _warn(self, line: str) -> None:
        line = " ".join(line.split())
        if line not in self._warned:
            self._warned.add(line)
            self._say("warning", line)


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
