"""Forecast the next steps of a time series, or classify windows of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from normkit import checks
from normkit.errors import user_error
from normkit.lab.task import Task, divided
from normkit.lab.tasks import windows
from normkit.lab.tasks.forecasts import simple_forecasts
from normkit.lab.tasks.made_series import made_classes, made_forecast
from normkit.lab.tasks.series_data.panel import Panel, read_panel
from normkit.lab.tasks.window_model import WindowModel

if TYPE_CHECKING:
    from normkit.lab.run import Run

__all__ = ["SeriesTask"]

GOALS = ("forecast", "classify")
JUDGED_BY, CHOSEN_BY, FITTED = 600, 200, 2000  # windows at most: held out, of validation, for a baseline
FEWEST = 10  # windows of each part
FARTHEST = 1e4  # standard deviations: a value farther away than that would decide every loss
ABSURD = 1e8  # times the deviation of all others: no storm, no crash, but a slip of the pen
NAMED = 4  # targets that get a metric each


@dataclass(frozen=True)
class SeriesTask(Task):
    """Forecast the ``horizon`` steps after a window, or classify the window. Loss: squared error, in standard
    deviations of the training data, or cross-entropy; on rows that no training window has seen.

    A forecast is judged on what comes after all that it was trained on. Statistics for the standardisation
    come from the training rows alone, and the loss is in those units with and without ``instance``.

    Args:
        data: a CSV or Parquet file, a row for each time; series that are made here if left out.
        goal: "forecast" or "classify".
        length: steps that the model sees.
        horizon: steps that it forecasts.
        columns: which to use, ``a+b`` or a pattern like ``temp*``; all that are numbers if left out.
        target: the column to forecast from all of them; each of them if left out.
        label: the column with the classes; a window has the class of its last row.
        group: the column that tells several series apart, or ``a+b``; no window goes from one to another.
        instance: normalise every window by its own mean and deviation, undone for a forecast (RevIN).
        patch: steps of a token.
        heads: of attention.
    """

    data: str | None = None
    goal: str = "forecast"
    length: int = 96
    horizon: int = 24
    columns: str | None = None
    target: str | None = None
    label: str | None = None
    group: str | None = None
    instance: bool = True
    patch: int = 8
    heads: int = 4

    title: ClassVar[str] = "forecasts of a time series"
    loss_name: ClassVar[str] = "squared error over variance"
    unit: ClassVar[str] = "windows"
    defaults: ClassVar[dict[str, Any]] = {
        "norm": ["layer", "rms"],
        "placement": ["post", "pre"],
        "lr": "1e-4:3e-3:4",
        "depth": 2,
        "width": 64,
        "batch_size": 32,
        "steps": 300,
        "set": {"instance": [True, False]},
    }

    hard: ClassVar[tuple[str, ...]] = ("a linear forecast",)
    problem: ClassVar[tuple[str, ...]] = (
        *("data", "goal", "length", "horizon", "columns", "target", "label", "group"),
    )

    def __post_init__(self) -> None:
        checks.one_of(self.goal, GOALS, what="goal=")
        for name, least in (("length", 2), ("horizon", 1), ("patch", 1), ("heads", 1)):
            checks.integer(getattr(self, name), what=f"{name}=", least=least)
        if self.patch > self.length:
            raise user_error(
                f"patch={self.patch} is longer than length={self.length}.", fix=f"patch={self.length}"
            )
        if self.data is None:
            for name in ("columns", "target", "label", "group"):
                if getattr(self, name) is not None:
                    raise user_error(f"{name}= came without data.", fix="--data FILE.csv")
        only = {"forecast": ("target",), "classify": ("label",)}
        for goal, names in only.items():
            for name in names:
                if getattr(self, name) is not None and self.goal != goal:
                    raise user_error(f"{name}= came with goal={self.goal}.", fix=f"goal={goal}")
        if self.goal == "classify":
            vars(self).update(title="classes of windows of a series", loss_name="nats a window")

    # ---- data ------------------------------------------------------------------------------------

    @cached_property
    def panel(self) -> Panel:
        if self.data is None:
            return made_forecast() if self.goal == "forecast" else made_classes()
        if self.goal == "classify" and self.label is None:
            raise user_error(
                "The task series got no label=.",
                expected="the column with the classes, to classify",
                fix="--set label=COLUMN, or --set goal=forecast",
            )
        return read_panel(self.data, self.columns, self.label, self.group)

    @cached_property
    def targets(self) -> Tensor:
        """The numbers of the columns that are forecast."""
        if self.target is None:
            return torch.arange(len(self.panel.columns))
        checks.one_of(self.target, self.panel.columns, what="target=")
        return torch.tensor([self.panel.columns.index(self.target)])

    def split(self, seed: int) -> SeriesTask:
        return divided(self, seed, panel=self.panel)

    @cached_property
    def seed(self) -> int:
        """By which rows are divided; see ``split``."""
        return 0

    @property
    def span(self) -> int:
        """The rows of a window and of what is to be known about it."""
        return self.length + (self.horizon if self.goal == "forecast" else 0)

    @cached_property
    def parts(self) -> Tensor:
        """Of each row; see ``windows``."""
        panel = self.panel
        if panel.labels is None or self.goal == "forecast":
            self._enough(windows.parts_by_time(panel.time, windows.EARLIEST))
            return windows.parts_by_time(panel.time, windows.origin(self.seed))
        found = windows.parts_by_pieces(panel.series, panel.labels, self.length, self.seed)
        self._enough(found)
        return found

    def _enough(self, parts: Tensor) -> None:
        """A few windows in each part, or an error that says how short they would have to be."""
        panel, kinds = self.panel, (windows.TRAINING, windows.VALIDATION, windows.HELD_OUT)
        if all(len(self._starts(parts, kind)) >= FEWEST for kind in kinds):
            return
        most = min(windows.longest(panel.stretches, parts, kind) for kind in kinds) - FEWEST + 1
        raise user_error(
            f"Too few rows for windows of {self.span}: {panel.source}.",
            expected=f"at least {FEWEST} windows to train on, {FEWEST} to choose by and {FEWEST} to judge by",
            fix=self._shorter(most),
        )

    def _shorter(self, most: int) -> str:
        """Settings with which a window has so many rows."""
        horizon = self.span - self.length
        if most - horizon < max(2, horizon):
            horizon = min(horizon, most // 5 or 1)
        length = most - horizon
        if length < 2:
            return "more rows"
        sizes = {"length": length, "horizon": horizon or self.horizon, "patch": min(self.patch, length)}
        changed = [f"--set {name}={size}" for name, size in sizes.items() if size != getattr(self, name)]
        return f"{' '.join(changed)}, or less"

    def _starts(self, parts: Tensor, part: int) -> Tensor:
        starts = windows.window_starts(self.panel.stretches, parts, part, self.span)
        labels = self.panel.labels
        if labels is None or self.goal == "forecast":
            return starts
        return starts[labels[starts + self.length - 1] >= 0]

    @cached_property
    def scales(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each column, in training rows."""
        rows = self.panel.values[self.parts == windows.TRAINING]
        size = rows.abs().amax(dim=0).clamp_min(1e-300)  # squares of large numbers are infinite
        std, mean = torch.std_mean(rows / size, dim=0, correction=0)
        return mean * size, torch.where(std > 0, std * size, 1.0)

    @property
    def _spread_of_others(self) -> Tensor:
        """The standard deviation of each column without its farthest training row, which may make it alone;
        that of all, where the others are constant."""
        mean, std = self.scales
        rows = self.panel.values[self.parts == windows.TRAINING]
        farthest = ((rows - mean) / std).abs().argmax(dim=0, keepdim=True)
        there = torch.ones_like(rows, dtype=torch.bool).scatter_(0, farthest, False)
        others = rows.t()[there.t()].view(rows.shape[1], -1)
        size = others.abs().amax(dim=1).clamp_min(1e-300)
        spread = (others / size[:, None]).std(dim=1, correction=0)
        return torch.where(spread > 1e-12, spread * size, std)

    @cached_property
    def values(self) -> Tensor:
        """All rows, in standard deviations from the mean."""
        (mean, std), others = self.scales, self._spread_of_others
        found = (self.panel.values - mean) / std
        far = found * torch.where(std > ABSURD * others, std / others, 1.0)  # one row makes all of it
        used = torch.where((self.parts != windows.UNUSED)[:, None], far, 0.0).abs()
        if float(used.max()) > FARTHEST:
            row, column = divmod(int(used.argmax()), used.shape[1])
            raise user_error(
                f"{self.panel.columns[column]} is {self.panel.values[row, column].item():.4g} in one row, "
                f"{used.max().item():.2g} times as far from the mean as training rows usually are.",
                expected=f"at most {FARTHEST:,.0f}: it alone would decide every loss",
                fix="mend the value, or leave the column out with --set columns=OTHERS.",
            )
        return found.float()

    def _windows(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """What the model sees, and what it is to say."""
        rows = self.values[starts[:, None] + torch.arange(self.span)]
        if self.goal == "forecast":
            return rows[:, : self.length], rows[:, self.length :, self.targets]
        assert self.panel.labels is not None
        return rows, self.panel.labels[starts + self.length - 1]

    @cached_property
    def _training(self) -> Tensor:
        return self._starts(self.parts, windows.TRAINING)

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(self._training), (size,), generator=generator)
        return self._windows(self._training[chosen])

    def held_out(self) -> list[tuple[Tensor, Tensor]]:
        return [self._kept[0]]

    def validation(self) -> list[tuple[Tensor, Tensor]]:
        return [self._kept[1]]

    @cached_property
    def _kept(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Windows that are held out, and those of validation, in time order."""
        judge = _evenly(self._starts(self.parts, windows.HELD_OUT), JUDGED_BY)
        choose = _evenly(self._starts(self.parts, windows.VALIDATION), CHOSEN_BY)
        return self._windows(judge), self._windows(choose)

    # ---- model -----------------------------------------------------------------------------------

    def model(self, run: Run) -> nn.Module:
        forecast = self.goal == "forecast"
        return WindowModel(
            run,
            length=self.length,
            channels=len(self.panel.columns),
            patch=self.patch,
            heads=self.heads,
            outputs=(self.horizon, len(self.targets)) if forecast else (len(self.panel.classes),),
            targets=self.targets if forecast else None,
            instance=self.instance,
        )

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        found = model(batch[0]).float()
        if self.goal == "forecast":
            return nn.functional.mse_loss(found, batch[1])
        return nn.functional.cross_entropy(found, batch[1])

    def baselines(self) -> dict[str, float]:
        return self._simple

    @cached_property
    def _simple(self) -> dict[str, float]:
        if self.goal == "forecast":
            seen = self._windows(_evenly(self._training, FITTED))
            found = simple_forecasts(self.held_out()[0][0], self.targets, self.horizon, seen)
            truth = self.held_out()[0][1]
            return {name: float((y - truth).square().mean()) for name, y in found.items()}
        assert self.panel.labels is not None
        labels = self.panel.labels[self._training + self.length - 1]
        share = torch.bincount(labels, minlength=len(self.panel.classes)).double() + 1
        return {"class frequencies": -float((share / share.sum()).log()[self.held_out()[0][1]].mean())}

    @torch.no_grad()
    def metrics(self, model: nn.Module) -> dict[str, float]:
        """Mean absolute errors, of a few targets in their own units; or the error in percent."""
        x, y = self.held_out()[0]
        if self.goal == "classify":
            return {"error": 100 * (model(x).argmax(-1) != y).double().mean().item()}
        errors = (model(x) - y).abs().double().mean(dim=(0, 1))
        own = errors * self.scales[1][self.targets]
        names = [self.panel.columns[k] for k in self.targets.tolist()]
        single = dict(zip(names, own.tolist(), strict=True)) if len(names) <= NAMED else {}
        return {
            "absolute error": errors.mean().item(),
            **{f"absolute error of {n}": e for n, e in single.items()},
        }

    @property
    def source(self) -> str:
        return self.panel.source

    @property
    def fingerprint(self) -> str:
        return self.panel.fingerprint


def _evenly(starts: Tensor, most: int) -> Tensor:
    """At most that many, from the first to the last."""
    wanted = min(len(starts), most)
    return starts[torch.arange(wanted) * len(starts) // max(1, wanted)]
