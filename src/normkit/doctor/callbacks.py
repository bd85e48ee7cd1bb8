"""The doctor where others run the loop: Hugging Face's Trainer, and Lightning. Neither is imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from normkit.checks import integer
from normkit.doctor.report import Finding, Report
from normkit.doctor.rules import rules_for
from normkit.doctor.watch import Doctor

__all__ = ["HuggingFaceCallback", "LightningCallback"]


class _Callback:
    """What both have: a :class:`Doctor` for the time of a training; and events that do nothing."""

    def __init__(
        self,
        *,
        every: int = 100,
        select: str | Sequence[str] = (),
        ignore: str | Sequence[str] = (),
        loss: Callable[..., Any] | None = None,
        out: Callable[[str], object] | None = None,
    ) -> None:
        integer(every, what="every=", least=1)
        rules_for(select, ignore)  # raises now, and not when the training begins
        self.doctor: Doctor | None = None
        self._settings: dict[str, Any] = {
            "every": every,
            "select": select,
            "ignore": ignore,
            "loss": loss,
            "out": out,
        }

    @property
    def report(self) -> Report | None:
        """Of the last look."""
        return None if self.doctor is None else self.doctor.report

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that were found in this training, each once."""
        return () if self.doctor is None else self.doctor.findings

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return _do_nothing
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _open(self, model: Any, optimizer: Any) -> None:
        self._close()
        self.doctor = Doctor(model, optimizer, **self._settings)

    def _close(self) -> None:
        if self.doctor is not None:
            self.doctor.close()


class HuggingFaceCallback(_Callback):
    """``nk.Doctor`` for Hugging Face's Trainer; its numbers go into the log, and so to TensorBoard and W&B.

        Trainer(model=model, args=args, callbacks=[nk.doctor.HuggingFaceCallback(every=100)], ...)

    Args:
        every, select, ignore, loss, out: as of ``nk.Doctor``. A model that is given labels returns its loss.

    doctor, report, findings      the :class:`Doctor`, and what it has
    """

    _has_looked = False

    def on_init_end(self, *args: Any, **kwargs: Any) -> None:
        self._go_first(sys._getframe(1).f_locals.get("self"))

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        self._go_first(sys._getframe(1).f_locals.get("self"))
        self._open(model, optimizer)

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        if self.doctor is not None and self.doctor.step() is not None:
            self._has_looked = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.doctor is None or logs is None or not self._has_looked:
            return
        self._has_looked = False
        logs.update(self.doctor.scalars())
        if state.log_history:  # which got its copy before
            state.log_history[-1].update(self.doctor.scalars())

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self._close()

    def _go_first(self, handler: Any) -> None:
        """Before those who report: they are in the list when a user's callbacks come, and would see the log
        without our numbers. The list is the caller's; the Trainer hands it to nobody."""
        callbacks = getattr(handler, "callbacks", None)
        if isinstance(callbacks, list) and any(callback is self for callback in callbacks):
            callbacks.remove(self)
            callbacks.insert(0, self)


class LightningCallback(_Callback):
    """``nk.Doctor`` for Lightning (``lightning`` and ``pytorch_lightning``); its numbers go to the loggers.

        Trainer(callbacks=[nk.doctor.LightningCallback(every=100)])

    It looks at the call of the LightningModule in training_step, or of the child that is called there.

    Args:
        every, select, ignore, loss, out: as of ``nk.Doctor``.

    doctor, report, findings      the :class:`Doctor`, and what it has
    """

    _has_stepped = False

    @property
    def state_key(self) -> str:
        return f"normkit.doctor.LightningCallback(every={self._settings['every']})"

    @property
    def _legacy_state_key(self) -> type:
        return type(self)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Nothing; Lightning asks for it."""

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing; there is no state."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        optimizers = trainer.optimizers
        self._open(pl_module, optimizers[0] if len(optimizers) == 1 else None)

    def on_train_batch_start(self, *args: Any) -> None:
        self._has_stepped = False

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.doctor is None or self._has_stepped:  # a batch may have several optimizers
            return
        self._has_stepped = True
        if self.doctor.step() is None:
            return
        # log_dict alone would reach a logger only if a look and Lightning's log_every_n_steps meet.
        scalars = self.doctor.scalars()
        pl_module.log_dict(scalars, logger=False)
        for logger in trainer.loggers:
            logger.log_metrics(scalars, step=trainer.global_step)

    def on_train_end(self, *args: Any) -> None:
        self._close()


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    return None
