"""What a comparison trains on: the small protocol that every task follows, built in or a user's own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.errors import NormkitError, user_error

if TYPE_CHECKING:
    from normkit.lab.run import Run

__all__ = [
    "Task",
    "explained",
    "find",
    "imported",
    "loaded_defaults",
    "rows",
    "source_of",
    "task_class",
    "tensors",
]

# Where the tasks that come with normkit live.
BUILT_IN = {"text": "TextTask", "digits": "DigitsTask", "lines": "LinesTask", "stream": "StreamTask"}


@dataclass(frozen=True)
class Task:
    """Data, a model for it, and a loss.

    Inherit, as a frozen dataclass; every field is something that a comparison can vary. Four methods are
    needed: ``model``, ``batch``, ``loss`` and ``held_out``. The rest has defaults.

    A task is built anew in every process, serves several runs there, and must give the same numbers each
    time: draw from ``generator`` only. Keep data that is slow to load behind ``functools.cached_property``.

    Example:
        >>> @dataclass(frozen=True)
        ... class Line(Task):
        ...     slope: float = 2.0
        ...     def model(self, run):
        ...         return nn.Linear(1, 1)
        ...     def batch(self, size, generator):
        ...         x = torch.randn(size, 1, generator=generator)
        ...         return x, self.slope * x
        ...     def loss(self, model, batch):
        ...         return nn.functional.mse_loss(model(batch[0]), batch[1])
        ...     def held_out(self):
        ...         return [self.batch(64, torch.Generator().manual_seed(0))]
        >>> len(Line(slope=3.0).fingerprint)
        64
    """

    title: ClassVar[str] = ""
    # What a comparison uses where the user says nothing: depth, width, batch_size, steps, norm, lr, ...
    defaults: ClassVar[Mapping[str, Any]] = {}
    # What the loss is called on the page, with its unit.
    loss_name: ClassVar[str] = "loss"
    # What a batch is made of, and how many of them a row has: for the throughput.
    unit: ClassVar[str] = "rows"
    # Fields that make it another problem, not another model: losses are not compared across them.
    problem: ClassVar[tuple[str, ...]] = ("data",)

    def model(self, run: Run) -> nn.Module:
        """A new model. ``run`` has norm, placement, depth and width; the random seed has been set."""
        raise NotImplementedError

    def batch(self, size: int, generator: torch.Generator) -> Any:
        """``size`` training examples, drawn with ``generator``: a tensor, or a tuple of them, rows first."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss over the rows of a batch."""
        raise NotImplementedError

    def held_out(self) -> Sequence[Any]:
        """Batches that are never trained on, always the same; their mean loss is what runs are judged by."""
        raise NotImplementedError

    def plateau(self) -> float | None:
        """The held-out loss of the best guess that ignores its input (for text: byte frequencies), if known.
        A run that stays there has learnt nothing, and counts as diverged."""
        return None

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """Further numbers about a trained model, in evaluation mode."""
        return {}

    def sample(self, model: nn.Module) -> str | None:
        """What ``normkit train`` shows of a trained model in the end."""
        return None

    def advance(self, step: int, steps: int) -> None:
        """Called before every step; a task whose data change with time takes note."""

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        """The layers in order, for the figures by depth. By default the longest ModuleList in the model."""
        lists = [list(m) for m in model.modules() if isinstance(m, nn.ModuleList)]
        return max(lists, key=len, default=[])

    @property
    def units(self) -> int:
        """Units a row."""
        return 1

    @property
    def source(self) -> str:
        """Where the data come from, in a few words."""
        return type(self).__name__

    @property
    def fingerprint(self) -> str:
        """A hash of the data. By default of the held-out batches, and of the first training batch."""
        digest = hashlib.sha256()
        for batch in (*self.held_out(), self.batch(8, torch.Generator().manual_seed(0))):
            for tensor in tensors(batch):
                digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def tensors(batch: Any) -> Iterable[Tensor]:
    """Those in a batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors(value)


def rows(batch: Any, first: int, last: int) -> Any:
    """Some of the rows of a batch."""
    if isinstance(batch, Tensor):
        return batch[first:last]
    if isinstance(batch, Mapping):
        return {name: rows(value, first, last) for name, value in batch.items()}
    if not isinstance(batch, list | tuple):
        return batch
    parts = [rows(value, first, last) for value in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def task_class(name: str) -> type[Task]:
    """The class of a task: a name that comes with normkit, or ``package.module:Class``."""
    if ":" not in name:
        checks.one_of(name, BUILT_IN, what="task=")
        return getattr(importlib.import_module(f"normkit.lab.tasks.{name}"), BUILT_IN[name])
    found = imported(name, what="task")
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise user_error(
            f"task {name!r} is {found!r}.",
            expected="a class that inherits from normkit.lab.Task",
            fix="class MyTask(nk.lab.Task): ..., with model, batch, loss and held_out.",
        )
    return found


def loaded_defaults(name: str) -> Mapping[str, Any]:
    """The defaults of a task that comes with normkit, or is here already. Nothing is imported for it: the
    name may come from a file of anyone's."""
    if name in BUILT_IN:
        return task_class(name).defaults
    module, _, own = name.partition(":")
    found = vars(sys.modules[module]).get(own) if module in sys.modules else None
    return found.defaults if isinstance(found, type) and issubclass(found, Task) else {}


def find(name: str, options: Mapping[str, Any]) -> Task:
    """The task itself, with its fields."""
    cls = task_class(name)
    names = [f.name for f in dataclasses.fields(cls)]
    for option in options:
        checks.one_of(option, names, what=f"task {name}, a field:")
    with explained(f"task {name}", name):
        return cls(**options)


def imported(path: str, *, what: str) -> Any:
    """What ``package.module:name`` stands for; the current folder is searched too."""
    module, _, name = path.partition(":")
    found = _module(module, f"{what} {path!r}")
    if not hasattr(found, name):
        raise user_error(f"{what} {path!r}: module {module} has no {name!r}.")
    return getattr(found, name)


def _module(name: str, what: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except NormkitError:
        raise
    except (Exception, SystemExit) as error:
        raise user_error(
            f"{what} cannot be imported: {type(error).__name__}: {error}.",
            expected=f"package.module:name, importable from {Path.cwd()}",
            fix=f'try  python -c "import {name}"',
        ) from error


@functools.cache
def source_of(path: str) -> str:
    """The text of the module that holds a user's own part; empty for what comes with normkit.

    It is read once: if the file changes later, this process still has what it has imported.
    """
    if ":" not in path:
        return ""
    module = _module(path.partition(":")[0], repr(path))
    for thing in (module, getattr(module, path.partition(":")[2], None)):
        try:
            return inspect.getsource(thing)  # type: ignore[arg-type]  # or a TypeError
        except (OSError, TypeError):
            continue
    raise user_error(
        f"{path!r} has no source that can be read.",
        expected="a file, so that stored runs are known to be of this code",
        fix="put it into a module of its own, mine.py, and name it mine:Name.",
    )


@contextlib.contextmanager
def explained(what: str, task: str) -> Iterator[None]:
    """An error inside of a user's task is said in plain words, with the place in the task's code."""
    try:
        yield
    except NormkitError as error:
        raise NormkitError(f"{what}: {error}") from error
    except (Exception, SystemExit) as error:  # sys.exit() in a task is a mistake of the task, and no wish
        own = getattr(sys.modules.get(task.partition(":")[0]), "__file__", None)
        frames = traceback.extract_tb(error.__traceback__)
        frame = next((f for f in reversed(frames) if f.filename == own), frames[-1])
        raise user_error(
            f"{what}: {type(error).__name__}: {error}",
            expected=f"a task {task} that trains",
            fix=f"look at {frame.filename}, line {frame.lineno}, in {frame.name}",
        ) from error
