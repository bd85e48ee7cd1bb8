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
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.errors import NormkitError, user_error
from normkit.lab import own

if TYPE_CHECKING:
    from normkit.lab.run import Run

__all__ = [
    "Task",
    "divided",
    "explained",
    "find",
    "imported",
    "loaded_defaults",
    "row_count",
    "rows",
    "source_of",
    "task_class",
    "tensors",
]

# Where the tasks that come with normkit live.
BUILT_IN = {
    **{"text": "TextTask", "digits": "DigitsTask", "lines": "LinesTask", "stream": "StreamTask"},
    "series": "SeriesTask",
}


KEPT = 4  # divisions of a task's data
LOOKED_AT = 32  # training batches, and their rows, that a fingerprint is of
T = TypeVar("T", bound="Task")


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
    # Baselines that are shown, and need not be beaten.
    hard: ClassVar[tuple[str, ...]] = ()
    # Fields that make it another problem, not another model: losses are not compared across them.
    problem: ClassVar[tuple[str, ...]] = ("data",)

    def model(self, run: Run) -> nn.Module:
        """A new model. ``run`` has norm, placement, depth and width; the random seed has been set."""
        raise _missing(self)

    def batch(self, size: int, generator: torch.Generator) -> Any:
        """``size`` training examples, drawn with ``generator``: a tensor, or a tuple of them, rows first."""
        raise _missing(self)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss over the rows of a batch."""
        raise _missing(self)

    def held_out(self) -> Sequence[Any]:
        """Batches that are never trained on, always the same; their mean loss is what runs are judged by."""
        raise _missing(self)

    def validation(self) -> Sequence[Any] | None:
        """Batches by which the learning rate is chosen: neither trained on nor held out. None: half of the
        rows of ``held_out``, drawn by the seed, and the other half judges."""
        return None

    def split(self, seed: int) -> Task:
        """This task, with what is trained on and what is kept apart drawn by a seed. By default it is the
        same for every seed, and what that leaves to chance is added to the intervals."""
        return self

    def plateau(self) -> float | None:
        """The held-out loss of the best guess that ignores its input, if known. Without it a constant is
        fitted, where the model gives one tensor with a row for each row of the batch."""
        return None

    def baselines(self) -> Mapping[str, float]:
        """Held-out losses of what is simpler than any model, by name. A run that is not below all of them,
        but for those in ``hard``, has learnt nothing worth a comparison, and cannot win one."""
        guess = self.plateau()
        return {} if guess is None else {"a constant": guess}

    def leak(self, model: nn.Module) -> float | None:
        """For a task that predicts what comes next: how much a model in training lets through of what comes
        after, as a share of its outputs; 0 if nothing. None: there is nothing that it must not see."""
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
        """A hash of the data. By default of what is held out, and of some training batches."""
        generator = torch.Generator().manual_seed(0)
        seen = [self.batch(LOOKED_AT, generator) for _ in range(LOOKED_AT)]
        return hashlib.sha256(own.identity([list(self.held_out()), seen]).encode()).hexdigest()


def _missing(task: Task) -> NormkitError:
    """Of a task that lacks one of the four."""
    needed = [name for name in _NEEDED if getattr(type(task), name) is getattr(Task, name)]
    return user_error(
        f"The task {type(task).__name__} has no {', '.join(needed)}.",
        expected=f"the methods {', '.join(_NEEDED)}",
    )


_NEEDED = ("model", "batch", "loss", "held_out")


def divided(task: T, seed: int, **shared: Any) -> T:
    """A task that divides its data by a seed, for :meth:`Task.split`: a copy, with ``seed`` and what it
    shares with the others. The last few are kept."""
    copies: dict[int, T] = vars(task).setdefault("_divided", {})
    if seed not in copies:
        while len(copies) >= KEPT:
            del copies[next(iter(copies))]
        copies[seed] = dataclasses.replace(task)
        vars(copies[seed]).update(shared, seed=seed)
    return copies[seed]


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


def row_count(batch: Any) -> int:
    """How many rows a batch has: the first axis of its first tensor."""
    return next((len(t) for t in tensors(batch) if t.ndim), 0)


def rows(batch: Any, chosen: Tensor) -> Any:
    """Some of the rows of a batch. What has another number of rows belongs to all of them."""
    count = row_count(batch)

    def pick(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[chosen] if value.ndim and len(value) == count else value
        if isinstance(value, Mapping):
            return {name: pick(part) for name, part in value.items()}
        if not isinstance(value, list | tuple):
            return value
        if len(value) == count and not any(True for _ in tensors(value)):  # words, names, ...
            return [value[k] for k in chosen.tolist()]
        parts = [pick(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)

    return pick(batch)


def task_class(name: str) -> type[Task]:
    """The class of a task: a name that comes with normkit, ``package.module:Class``, or that of an object."""
    if own.is_object(name):
        thing = own.get(name)
        cls: type[Task] = thing if isinstance(thing, type) else type(thing)
        return cls
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
    if name in BUILT_IN or own.is_known(name):
        return task_class(name).defaults
    module, _, cls = name.partition(":")
    found = vars(sys.modules[module]).get(cls) if module in sys.modules else None
    return found.defaults if isinstance(found, type) and issubclass(found, Task) else {}


def find(name: str, options: Mapping[str, Any]) -> Task:
    """The task itself, with its fields."""
    cls = task_class(name)
    names = [f.name for f in dataclasses.fields(cls)]
    for option in options:
        checks.one_of(option, names, what=f"task {name}, a field:")
    made = own.get(name) if own.is_object(name) else None
    with explained(f"task {own.short_name(name)}", name):
        if isinstance(made, Task):
            return dataclasses.replace(made, **options) if options else made
        return cls(**options)


def imported(path: str, *, what: str) -> Any:
    """What ``package.module:name`` stands for; the current folder is searched too."""
    module, _, name = path.partition(":")
    found = _module(module, f"{what} {path!r}")
    if not hasattr(found, name):
        where = getattr(found, "__file__", None) or "a part of Python"
        here = Path(*module.split(".")).with_suffix(".py")
        is_other = here.is_file() and str(here.resolve()) != where
        raise user_error(
            f"{what} {path!r}: module {module} has no {name!r}.",
            expected=f"{name} in {where}",
            fix=f"rename {here}: another module of this name is found before it." if is_other else None,
        )
    return getattr(found, name)


def _module(name: str, what: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except NormkitError:
        raise
    except (Exception, SystemExit) as error:
        is_file = name.endswith(".py") or "/" in name
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        refused = user_error(
            f"{what} cannot be imported: {_said(error)}.",
            expected=f"package.module:name, importable from {Path.cwd()}",
            fix=f"name the module, and not its file: {module}:…"
            if is_file
            else f'try  python -c "import {name}"',
        )
        raise NormkitError(f"{refused}{_own_traceback(error)}") from error


@functools.cache
def source_of(path: str) -> str:
    """The text of the module that holds a user's own part; empty for what comes with normkit.

    It is read once: if the file changes later, this process still has what it has imported.
    """
    if own.is_object(path):
        return own.identity(path)
    if ":" not in path:
        return ""
    module = _module(path.partition(":")[0], repr(path))
    thing = getattr(module, path.partition(":")[2], None)
    is_code = inspect.isclass(thing) or inspect.isroutine(thing)
    home = inspect.getmodule(thing) if is_code else None  # a package may only pass it on
    text = "".join(_source(part) for part in dict.fromkeys((module, home))) or _source(thing)
    if text:
        return text
    raise user_error(
        f"{path!r} has no source that can be read.",
        expected="a file, so that stored runs are known to be of this code",
        fix="put it into a module of its own, mine.py, and name it mine:Name.",
    )


def _source(part: Any) -> str:
    try:
        return inspect.getsource(part)
    except (OSError, TypeError):
        return ""


@contextlib.contextmanager
def explained(what: str, task: str) -> Iterator[None]:
    """An error inside of a user's task is said in plain words, with the place in the task's code and the
    traceback from there on."""
    try:
        yield
    except NormkitError as error:
        raise NormkitError(f"{what}: {error}") from error
    except (Exception, SystemExit) as error:  # sys.exit() in a task is a mistake of the task, and no wish
        home = own.module_name(task) if own.is_object(task) else task.partition(":")[0]
        file = getattr(sys.modules.get(home), "__file__", None)
        frames = traceback.extract_tb(error.__traceback__)
        in_reach = [f for f in frames if not f.filename.startswith(_NOT_A_USERS + _TORCH)]
        frame = next((f for f in reversed(frames) if f.filename == file), (in_reach or frames)[-1])
        refused = user_error(
            f"{what}: {_said(error)}",
            expected=f"a task {own.short_name(task)} that trains",
            fix=f"look at {frame.filename}, line {frame.lineno}, in {frame.name}",
        )
        raise NormkitError(f"{refused}{_own_traceback(error, file)}") from error


def _said(error: BaseException) -> str:
    return ": ".join(part for part in (type(error).__name__, str(error)) if part)


def _own_traceback(error: BaseException, home: str | None = None) -> str:
    """The traceback, from the first frame in the file ``home``, or else from the first that is neither ours
    nor the import system's; nothing if there is none, as for a module that is not there."""
    links, link = [], error.__traceback__
    while link is not None:
        links.append((link.tb_frame.f_code.co_filename, link))
        link = link.tb_next
    inside = [link for file, link in links if file == home]
    others = [link for file, link in links if not file.startswith(_NOT_A_USERS)]
    first = next(iter(inside or others), None)
    if first is None and not isinstance(error, SyntaxError):
        return ""
    return "\n\n" + "".join(traceback.format_exception(type(error), error, first)).rstrip()


# This package, and what imports modules; and torch.
_TORCH = (str(Path(torch.__file__).parent),)
_NOT_A_USERS = (str(Path(__file__).parent.parent), str(Path(importlib.__file__).parent), "<frozen importlib")
