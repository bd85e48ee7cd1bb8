"""``train``: one run, with checkpoints, on one process or on many."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from normkit.errors import NormkitError, user_error
from normkit.lab.console import plain_console
from normkit.lab.distributed import Group, group
from normkit.lab.measuring import finite
from normkit.lab.run import Run
from normkit.lab.task import explained
from normkit.lab.training import Training

__all__ = ["train"]

CHECKPOINT, RESULT = "checkpoint.pt", "result.json"


def train(
    run: Run,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    bf16: bool = False,
    compile: bool = False,
    shard: bool = False,
    every: int = 100,
    progress: bool = True,
) -> dict[str, Any]:
    """Train one run, and keep it in a folder.

    Under torchrun its processes share every batch: DDP, or FSDP2 with ``shard``. The loss is that of one
    process with the whole batch. A checkpoint can be resumed on another number of processes.

    Args:
        run: what to train.
        out: the folder of checkpoint, model and result.
        resume: go on from the checkpoint, if there is one.
        bf16: autocast to bfloat16.
        compile: torch.compile the model.
        every: steps between two checkpoints.

    Returns:
        the result that is also in ``result.json``: run, losses, held-out losses.
    """
    folder = Path(out)
    with group(shard=shard) as processes:
        console = plain_console(soft_wrap=True, quiet=not (progress and processes.first))
        return _Single(run, folder, processes, console, every).train(resume, bf16, compile)


class _Single:
    def __init__(self, run: Run, folder: Path, processes: Group, console: Console, every: int) -> None:
        if every < 1:
            raise user_error(f"every= got {every}.", expected="at least 1")
        processes.check(run.batch_size)
        self.run, self.folder, self.group, self.console, self.every = run, folder, processes, console, every
        self.task = run.build_task()
        with explained(f"The data of the task {run.task}", run.task):
            self.data = self.task.fingerprint
        self.losses: list[float | None] = []
        self.held_out: list[tuple[int, float | None]] = []

    def train(self, resume: bool, bf16: bool, compile: bool) -> dict[str, Any]:
        self.bf16 = bf16
        self._prepare_folder(resume)

        def prepare(model: nn.Module) -> nn.Module:
            if compile:
                model.compile()
            return self.group.wrap(self.task, model)

        training = Training(
            self.run,
            self.task,
            prepare=prepare,
            share=self.group.share,
            dtype=torch.bfloat16 if bf16 else None,
        )
        if resume and (self.folder / CHECKPOINT).exists():
            self._load(training)
        self._describe(training, bf16, compile)
        with _interruption() as wanted, explained(str(self.run), self.run.task):
            stopped = self._loop(training, wanted)
        self._save(training)
        if stopped:
            self.console.print(
                f"\nStopped after {training.step} of {self.run.last} steps. "
                f"The same command with --resume goes on from {self.folder / CHECKPOINT}.",
            )
            raise KeyboardInterrupt
        return self._finish(training)

    def _loop(self, training: Training, wanted: list[bool]) -> bool:
        """Step by step to the end, or until somebody wants to stop: always between two steps."""
        columns = (
            TextColumn("training"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
        )
        bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        smooth: float | None = None
        with bar:
            shown = bar.add_task("", total=self.run.last, completed=training.step, state="")
            while training.step < self.run.last:
                loss, stop = self.group.agree(training.advance(), bool(wanted))
                self.losses.append(finite(loss))
                if finite(loss) is None:
                    kept = (self.folder / CHECKPOINT).exists()
                    raise NormkitError(
                        f"The loss is {loss} at step {training.step}.\n"
                        f"  fix: a smaller learning rate than {self.run.lr:.3g}, or --warmup; "
                        f"{'the last checkpoint is' if kept else 'no checkpoint was'} in {self.folder}."
                    )
                smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
                bar.update(shown, completed=training.step, state=f"step {training.step}, loss {smooth:.3f}")
                if not self.console.is_terminal and training.step % max(1, self.run.last // 20) == 0:
                    self.console.print(f"step {training.step}/{self.run.last}, loss {smooth:.3f}")
                if stop:
                    return True
                if training.step % self.every == 0 and training.step < self.run.last:
                    self.held_out.append((training.step, finite(training.evaluate())))
                    self._save(training)
        return False

    def _prepare_folder(self, resume: bool) -> None:
        path = self.folder / CHECKPOINT
        if path.exists() and not resume:
            raise user_error(
                f"{self.folder} has a checkpoint of an earlier run.",
                fix="add --resume to go on with it, or choose another folder with --out.",
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise user_error(f"{self.folder} cannot be made: {error.strerror}.") from error

    def _describe(self, training: Training, bf16: bool, compile: bool) -> None:
        weights = sum(p.numel() for p in training.model.parameters())
        how = (
            [f"{self.group.size} processes, {'FSDP2' if self.group.shard else 'DDP'}"]
            if self.group.size > 1
            else []
        )
        how += ["bfloat16"] * bf16 + ["compiled"] * compile
        say = self.console.print
        say(f"data     {self.task.source}")
        say(f"model    {weights:,} weights{'; ' if how else ''}{'; '.join(how)}")
        say(f"run      {self.run}, {self.run.last} steps")
        if training.step:
            say(f"resumed  at step {training.step}")
        say(f"results  {self.folder}\n")

    def _save(self, training: Training) -> None:
        """The checkpoint; the one before stays until the new one is complete."""
        model, optimizer = self.group.state(training.model, training.optimizer)
        if not self.group.first:
            return
        state = {
            "config": self.run.config(),
            "data": self.data,
            "code": self.run.code,
            "bf16": self.bf16,
            "step": training.step,
            "model": model,
            "optimizer": optimizer,
            "generator": training.generator.get_state(),
            "random": torch.get_rng_state(),
            "losses": self.losses,
            "held_out": self.held_out,
        }
        path = self.folder / CHECKPOINT
        beside = path.with_suffix(".new")
        try:
            torch.save(state, beside)
            os.replace(beside, path)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            beside.unlink(missing_ok=True)
            raise user_error(
                f"{path} cannot be written: {error}.",
                fix="make room; the checkpoint before it, if any, is still there: go on with --resume.",
            ) from error

    def _load(self, training: Training) -> None:
        path = self.folder / CHECKPOINT
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            config, now = {**state["config"], "bf16": state["bf16"]}, {**self.run.config(), "bf16": self.bf16}
        except Exception as error:
            raise user_error(
                f"{path} cannot be read: {error}.", expected="a checkpoint of normkit train"
            ) from error
        for free in ("steps", "until"):  # one may go on for longer
            config.pop(free), now.pop(free)
        for where in (config, now):
            where["options"] = {k: v for k, v in where["options"].items() if k != "data"}
        differ = [name for name in now if config.get(name) != now[name]]
        if differ or state["data"] != self.data:
            what = ", ".join(f"{n} {config.get(n)!r}" for n in differ) or "other data"
            raise user_error(
                f"{path} is of another run: {what}.",
                expected=", ".join(f"{n} {now[n]!r}" for n in differ) or "the same data",
                fix="give the same settings, or choose another folder with --out.",
            )
        try:
            self._restore(training, state)
        except NormkitError:
            raise
        except Exception as error:  # torch's own, of many kinds
            raise user_error(
                f"{path} is damaged: {str(error).partition(chr(10))[0]}.",
                expected="a checkpoint of normkit train",
                fix="begin anew in another folder, with --out.",
            ) from error

    def _restore(self, training: Training, state: dict[str, Any]) -> None:
        if state["step"] > self.run.last:
            raise user_error(
                f"{self.folder / CHECKPOINT} has {state['step']} steps behind it.",
                expected=f"at most --steps {self.run.last}",
            )
        if state["code"] != self.run.code:
            self.console.print(f"note     the checkpoint is of other code: {state['code']}")
        self.group.load(training.model, training.optimizer, (state["model"], state["optimizer"]))
        training.step = state["step"]
        self.task.advance(max(0, training.step - 1), self.run.steps)
        training.generator.set_state(state["generator"])
        torch.set_rng_state(state["random"])
        self.losses, self.held_out = list(state["losses"]), [tuple(pair) for pair in state["held_out"]]

    def _finish(self, training: Training) -> dict[str, Any]:
        """Evaluate, and keep the model and the result."""
        final = finite(training.evaluate())
        if not self.held_out or self.held_out[-1][0] != training.step:
            self.held_out.append((training.step, final))
        result = {
            "run": self.run.config(),
            "data": self.data,
            "code": self.run.code,
            "processes": self.group.size,
            "final_loss": final,
            "losses": self.losses,
            "held_out": self.held_out,
        }
        state, _ = self.group.state(training.model, training.optimizer)
        if self.group.first:
            (self.folder / RESULT).write_text(json.dumps(result))
            model = self.task.model(self.run)
            model.load_state_dict(state)
            kept = self._keep(model)
            said = "is no number" if final is None else f"{final:.3f} {self.task.loss_name}"
            self.console.print(f"\nheld-out loss {said}")
            self.console.print(f"model    {kept}")
            sample = self.task.sample(model)
            if sample:
                self.console.print(f"\n{sample}")
        return result

    def _keep(self, model: nn.Module) -> Path:
        """In the model's own format if it has one."""
        save = getattr(model, "save", None)
        if (
            callable(save)
            and isinstance(self.run.placement_rule, str)
            and isinstance(self.run.norm_factory, str)
        ):
            save(self.folder / "model.safetensors")
            return self.folder / "model.safetensors"
        torch.save(model.state_dict(), self.folder / "model.pt")
        return self.folder / "model.pt"


@contextmanager
def _interruption() -> Iterator[list[bool]]:
    """A list that is no longer empty once Ctrl-C was pressed; the second time it is an error, as ever."""
    wanted: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield wanted
        return
    before = signal.getsignal(signal.SIGINT)

    def note(*_: Any) -> None:
        wanted.append(True)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield wanted
    finally:
        signal.signal(signal.SIGINT, before)
