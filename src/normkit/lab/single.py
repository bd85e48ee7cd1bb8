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
from normkit.lab.extras import needs
from normkit.lab.intervals import as_loss
from normkit.lab.judging import baselines_of, losses, mean_over_rows
from normkit.lab.measuring import ENDINGS, exploded, finite, learnt_nothing
from normkit.lab.run import Run
from normkit.lab.task import Task, explained
from normkit.lab.task_check import check_task
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
        resume: go on from the checkpoint in the folder, which must be there.
        bf16: autocast to bfloat16.
        compile: torch.compile the model.
        every: steps between two checkpoints.

    Returns:
        the result that is also in ``result.json``: run, losses, held-out losses, baselines, and as
        ``status`` how it ended, in the words of :func:`compare`.
    """
    needs("numpy")  # safetensors writes a model with it; better now than after the training
    folder = Path(out)
    with group(shard=shard, device=run.device) as processes:
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
            check_task(self.task, run.seed)
            self.data = self.task.fingerprint
        self.losses: list[float | None] = []
        self.held_out: list[tuple[int, float | None]] = []
        self.other_end: int | None = None  # of the schedule, before it was resumed

    def train(self, resume: bool, bf16: bool, compile: bool) -> dict[str, Any]:
        self.bf16 = bf16
        self._prepare_folder(resume)

        def prepare(model: nn.Module) -> nn.Module:
            if compile:
                model.compile()
            return self.group.wrap(self.task, model)

        with explained(str(self.run), self.run.task):
            training = Training(
                self.run,
                self.task,
                device=self.group.device,
                prepare=prepare,
                share=self.group.share,
                dtype=torch.bfloat16 if bf16 else None,
            )
        if resume:
            self._load(training)
        with explained(str(self.run), self.run.task):
            self._describe(training, bf16, compile)
            with _interruption() as wanted:
                stopped = self._loop(training, wanted)
        self._save(training)
        if stopped:
            self._write_result("stopped", None)
            self.console.print(
                f"\nStopped after {training.step} of {self.run.last} steps. "
                f"The same command with --resume goes on from {self.folder / CHECKPOINT}.",
            )
            raise KeyboardInterrupt
        with explained(str(self.run), self.run.task):
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
                    self._write_result("diverged", None)
                    raise user_error(
                        f"diverged: the loss is {loss} at step {training.step}.",
                        fix=f"a smaller learning rate than {self.run.lr:.3g}, or --warmup; "
                        f"{'the last checkpoint is' if kept else 'no checkpoint was'} in {self.folder}.",
                    )
                smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
                now = f"loss {as_loss(smooth)}"
                bar.update(shown, completed=training.step, state=f"step {training.step}, {now}")
                if not self.console.is_terminal and training.step % max(1, self.run.last // 20) == 0:
                    self.console.print(f"step {training.step}/{self.run.last}, {now}")
                if stop:
                    return True
                if training.step % self.every == 0 and training.step < self.run.last:
                    self.held_out.append((training.step, finite(training.evaluate())))
                    self._save(training)
        return False

    def _prepare_folder(self, resume: bool) -> None:
        try:
            has_checkpoint = (self.folder / CHECKPOINT).exists()
            if not resume and not has_checkpoint:
                self.folder.mkdir(parents=True, exist_ok=True)
            if has_checkpoint or not resume:
                probe = self.folder / f".writable.{os.getpid()}"
                probe.touch()
                probe.unlink()
        except OSError as error:
            raise user_error(
                f"{self.folder} cannot be written: {error.strerror}.",
                expected="a folder that can be",
                fix="choose another one with --out.",
            ) from error
        if has_checkpoint and not resume:
            raise user_error(
                f"{self.folder} has a checkpoint of an earlier run.",
                fix="add --resume to go on with it, or choose another folder with --out.",
            )
        if resume and not has_checkpoint:
            raise user_error(
                f"--resume: {self.folder} has no {CHECKPOINT}.",
                expected="the folder of an earlier run",
                fix="name that folder with --out, or leave --resume out to begin anew.",
            )

    def _describe(self, training: Training, bf16: bool, compile: bool) -> None:
        weights = sum(p.numel() for p in training.model.parameters())
        how = (
            [f"{self.group.size} processes, {'FSDP2' if self.group.shard else 'DDP'}"]
            if self.group.size > 1
            else []
        )
        how += ["bfloat16"] * bf16 + ["compiled"] * compile
        say = self.console.print
        say(f"data     {training.task.source}")
        say(f"model    {weights:,} weights{'; ' if how else ''}{'; '.join(how)}")
        say(f"run      {self.run}, {self.run.last} steps")
        if training.step:
            say(f"resumed  at step {training.step}")
        if self.other_end is not None:
            say(f"schedule {self.run.schedule} to step {self.run.steps}; it had been to {self.other_end}")
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
            with self._writing(path):
                torch.save(state, beside)
                os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)

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
        before = state["config"]["steps"]
        self.other_end = before if before != self.run.steps and self.run.schedule != "constant" else None
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
        training.task.advance(max(0, training.step - 1), self.run.steps)
        training.generator.set_state(state["generator"])
        torch.set_rng_state(state["random"])
        self.losses, self.held_out = list(state["losses"]), [tuple(pair) for pair in state["held_out"]]

    def _finish(self, training: Training) -> dict[str, Any]:
        """Evaluate, and keep the model and the result."""
        final = finite(training.evaluate())
        if not self.held_out or self.held_out[-1][0] != training.step:
            self.held_out.append((training.step, final))
        state, _ = self.group.state(training.model, training.optimizer)
        task = training.task
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.run.seed)
            model = task.model(self.run)  # as it was at first
        batches = list(task.held_out())
        before = mean_over_rows(losses(task, model, batches), batches)
        if self.group.first:  # others may have no state
            model.load_state_dict(state)
            kept = self._keep(model)
        found = baselines_of(task, model, task.held_out())
        baselines = {name: loss for name, loss in found.items() if finite(loss) is not None}
        status = self._ending(task, before, final, baselines)
        result = self._write_result(status, final, baselines)
        if self.group.first:
            said = "is not finite" if final is None else f"{as_loss(final)} {task.loss_name}"
            self.console.print(f"\nheld-out loss {said}")
            for name, loss in baselines.items():
                self.console.print(f"baseline {name}: {as_loss(loss)}")
            if status != "ok":
                self.console.print(f"ended    {status}: {ENDINGS[status]}")
            self.console.print(f"model    {kept}")
            sample = task.sample(model)
            if sample:
                self.console.print(f"\n{sample}")
        return result

    def _ending(self, task: Task, before: float, final: float | None, baselines: dict[str, float]) -> str:
        """In the words of a comparison; ``before`` is the held-out loss at first."""
        curve = [loss for loss in self.losses if loss is not None]
        if final is None or exploded(curve, before, final, max(baselines.values(), default=None)):
            return "diverged"
        if self.run.last < self.run.steps:
            return "stopped"
        floor = min((loss for name, loss in baselines.items() if name not in task.hard), default=None)
        return "at baseline" if learnt_nothing(final, floor) else "ok"

    def _write_result(
        self, status: str, final: float | None, baselines: dict[str, float] | None = None
    ) -> dict[str, Any]:
        result = {
            "run": self.run.config(),
            "data": self.data,
            "code": self.run.code,
            "processes": self.group.size,
            "status": status,
            "final_loss": final,
            "baselines": baselines or {},
            "losses": self.losses,
            "held_out": self.held_out,
        }
        if self.group.first:
            with self._writing(self.folder / RESULT):
                (self.folder / RESULT).write_text(json.dumps(result))
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
        with self._writing(self.folder / "model.pt"):
            torch.save(model.state_dict(), self.folder / "model.pt")
        return self.folder / "model.pt"

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            raise user_error(
                f"{path} cannot be written: {error}.",
                fix="make room; the last checkpoint, if any, is still there: go on with --resume.",
            ) from error


@contextmanager
def _interruption() -> Iterator[list[bool]]:
    """A list that is no longer empty once Ctrl-C was pressed, or SIGTERM came; the second time it is an
    error, as ever."""
    wanted: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield wanted
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(*_: Any) -> None:
        wanted.append(True)
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield wanted
    finally:
        restore()
