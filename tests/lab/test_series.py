"""The task series: that it learns, how rows are divided, and what a loss is set beside."""

import math
from functools import partial

import pandas as pd
import pytest
import torch
from lab.series_files import ROWS, SMALL, days, frame, in_truth, one_run, write

import normkit as nk
from normkit.lab.judging import losses
from normkit.lab.machine import borrowed_process
from normkit.lab.task import find
from normkit.lab.tasks import windows
from normkit.lab.tasks.forecasts import simple_forecasts
from normkit.lab.tasks.series import SeriesTask
from normkit.lab.tasks.series_data.panel import read_panel
from normkit.lab.tasks.window_model import ReversibleInstanceNorm
from normkit.lab.training import Training


@pytest.fixture(autouse=True)
def _one_thread():
    """As in a worker: small models are slower with more, and much slower on a busy machine."""
    with borrowed_process():
        yield


@pytest.fixture
def written(tmp_path):
    return partial(write, tmp_path)


# ---- it learns -----------------------------------------------------------------------------------


@pytest.mark.parametrize("instance", [True, False])
@pytest.mark.parametrize("goal", ["forecast", "classify"])
def test_it_learns_more_than_its_baselines_know(goal, instance):
    fields = {"goal": goal, "instance": instance, "length": 48, "horizon": 12}
    steps = 40 if goal == "forecast" else 120
    run = one_run(set=fields, steps=steps)
    training = Training(run, find("series", fields))
    for _ in range(steps):
        assert math.isfinite(training.advance())
    known = training.task.baselines()
    floor = min(loss for name, loss in known.items() if name not in training.task.hard)
    assert training.evaluate() < 0.95 * floor
    found = training.task.metrics(training.model.eval())
    assert 0 < found["error" if goal == "classify" else "absolute error of channel 1"] < 80
    assert len(training.task.layers(training.model)) == 1


@pytest.mark.parametrize("goal", ["forecast", "classify"])
def test_the_same_numbers_every_time(goal):
    first, second = find("series", {"goal": goal}), find("series", {"goal": goal})
    assert first.fingerprint == second.fingerprint
    a, b = (task.split(1).batch(4, torch.Generator().manual_seed(3)) for task in (first, second))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert first.split(1) is first.split(1)
    assert (
        find("series", {"goal": "forecast"}).fingerprint != find("series", {"goal": "classify"}).fingerprint
    )


@pytest.mark.parametrize("norm", ["layer", "rms", "batch", "none"])
@pytest.mark.parametrize("placement", ["post", "pre", "peri", "deepnorm"])
def test_every_norm_and_placement_makes_a_step(norm, placement):
    run = one_run(norm=norm, placement=placement, steps=1, set=SMALL)
    assert math.isfinite(Training(run, find("series", SMALL)).advance())


# ---- an honest division --------------------------------------------------------------------------


def rows_of(task, part):
    starts = task._starts(task.parts, part)
    return set((starts[:, None] + torch.arange(task.span)).flatten().tolist())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("goal", ["forecast", "classify"])
def test_no_window_shares_a_step_with_one_of_another_part(goal, seed, written):
    table = frame().assign(state=["ab"[k // 60 % 2] for k in range(ROWS)])
    fields = {"data": written(table), **SMALL, "length": 8, "goal": goal}
    fields |= {"label": "state"} if goal == "classify" else {}
    task = find("series", fields).split(seed)
    parts = [rows_of(task, k) for k in (windows.TRAINING, windows.VALIDATION, windows.HELD_OUT)]
    assert all(parts)
    assert not parts[0] & (parts[1] | parts[2])
    assert not parts[1] & parts[2]
    if goal == "forecast":
        assert max(parts[0]) < min(parts[1]) <= max(parts[1]) < min(parts[2])
    else:  # and neighbours are not next to each other
        assert min(abs(a - b) for a in parts[0] for b in parts[1] | parts[2]) > fields["length"]


UNUSUAL = {
    "years of two digits": lambda t: t.assign(when=t["when"].dt.strftime("%d.%m.%y")),
    "newest first, and numbered": lambda t: t[::-1].reset_index(drop=True).reset_index(),
    "a measured time": lambda t: t.assign(time=[k * 7919 % 1500 / 7 for k in range(len(t))]),
    "newest first, in integers": lambda t: t[::-1].assign(when=t["when"].dt.strftime("%Y%m%d").astype(int)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", UNUSUAL)
def test_nothing_of_the_future_is_trained_on_however_dates_are_written(kind, seed, written):
    table = UNUSUAL[kind](in_truth(days(1500, "2021-01-01")))
    task = find("series", {"data": written(table, sep=";"), **SMALL}).split(seed)
    truth = task.panel.values[:, task.panel.columns.index("truth")]
    parts = [truth[task.parts == k] for k in (windows.TRAINING, windows.VALIDATION, windows.HELD_OUT)]
    assert parts[0].max() < parts[1].min() <= parts[1].max() < parts[2].min()


def test_a_row_number_does_not_divide_whole_series(written):
    table = pd.concat([in_truth(days(300), store=k) for k in "abc"], ignore_index=True).reset_index()
    task = find("series", {"data": written(table), "group": "store", **SMALL}).split(0)
    truth = task.panel.values[:, 0]
    for store in range(3):
        own = task.panel.series == store
        trained, judged = (own & (task.parts == k) for k in (windows.TRAINING, windows.HELD_OUT))
        assert truth[trained].max() < truth[judged].min()


def test_a_fifth_of_all_rows_judges_whatever_the_seed():
    for seed in range(20):
        parts = windows.parts_by_time(torch.arange(1000.0), windows.origin(seed))
        assert (parts == windows.HELD_OUT).sum() >= 200
        assert (parts == windows.TRAINING).sum() >= 500
        series, labels = torch.arange(100).repeat_interleave(10), torch.arange(1000) // 10 % 5
        parts = windows.parts_by_pieces(series, labels, 4, seed)
        assert (parts == windows.HELD_OUT).sum() >= 200


def test_every_seed_has_an_origin_of_its_own():
    task = find("series", {})
    ends = {int((task.split(seed).parts == windows.HELD_OUT).nonzero().max()) for seed in range(4)}
    assert len(ends) == 4


def test_series_are_divided_at_the_same_time(written):
    early, late = frame(600).assign(store="early"), frame(600).assign(store="late")
    late["date"] += pd.Timedelta(400, "h")
    task = find("series", {"data": written(pd.concat([early, late])), "group": "store", **SMALL})
    known = task.panel.time[task.parts == windows.TRAINING]
    assert known.max() < task.panel.time[task.parts == windows.VALIDATION].min()
    assert known.max() < task.panel.time[task.parts == windows.HELD_OUT].min()


def test_no_window_goes_from_one_series_to_another(written):
    table = pd.concat([frame(300).assign(store=k, x=ord(k)) for k in "abc"])
    table["x"] += torch.rand(900, generator=torch.Generator().manual_seed(0)).numpy() / 10
    task = find("series", {"data": written(table), "group": "store", "columns": "x", **SMALL})
    mean, std = task.scales
    x, y = task.batch(200, torch.Generator().manual_seed(0))
    levels = (torch.cat([x, y], 1)[..., 0] * std + mean).floor()
    assert (levels == levels[:, :1]).all()
    assert len(levels.unique()) == 3


def test_no_window_crosses_a_gap_in_time(written):
    table = frame()
    table.loc[300:, "date"] += pd.Timedelta(200, "h")
    task = find("series", {"data": written(table), **SMALL})
    assert task.panel.source.endswith("1 gap in time, which no window crosses")
    starts = torch.cat([task._starts(task.parts, part) for part in range(3)])
    last = starts + task.span - 1
    assert len(starts) > 700
    assert not ((starts < 300) & (last >= 300)).any()


@pytest.mark.parametrize(
    "dates",
    [
        pd.bdate_range("2015-01-01", periods=ROWS),
        pd.date_range("1950-01-01", periods=ROWS, freq="MS"),
        pd.date_range("2021-03-01", periods=ROWS + 9, freq="h").delete(range(200, 218, 2)),
    ],
    ids=["trading days", "months", "single hours missing"],
)
def test_times_that_are_irregular_by_nature_and_small_holes_are_no_gaps(dates, written):
    found = read_panel(written(frame().assign(date=dates)), None, None, None)
    assert "gap" not in found.source
    assert found.stretches.unique().tolist() == [0]


def test_a_series_of_which_nothing_is_left_is_not_counted(written):
    table = pd.concat([frame(300).assign(store=k) for k in "abc"])
    table.loc[table["store"] == "b", "x"] = float("nan")
    found = read_panel(written(table), None, None, "store")
    assert found.series.unique().tolist() == [0, 1]
    assert "600 rows of x, y, 2 series by store" in found.source


def test_whole_series_are_kept_apart_where_there_are_enough():
    task = find("series", {"goal": "classify"})
    for seed in range(3):
        own = task.split(seed)
        judged = own.panel.series[own.parts == windows.HELD_OUT].unique()
        trained = own.panel.series[own.parts == windows.TRAINING].unique()
        assert not set(judged.tolist()) & set(trained.tolist())
        assert set(own.held_out()[0][1].tolist()) == set(range(6))


def test_statistics_come_from_training_rows_alone(written):
    table = frame()
    task = find("series", {"data": written(table), **SMALL}).split(0)
    last = int((task.parts == windows.TRAINING).nonzero().max())
    table.loc[last + 1 :, "y"] += 1000
    other = find("series", {"data": written(table, "other.csv"), **SMALL}).split(0)
    assert torch.equal(task.scales[0], other.scales[0])
    trained = task.values[task.parts == windows.TRAINING]
    torch.testing.assert_close(trained.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(trained.std(0, correction=0), torch.ones(2))


def test_a_forecast_sees_nothing_of_what_it_forecasts():
    task = find("series", {})
    start = task._training[:1]
    x, y = task._windows(start)
    first = int(start)
    assert torch.equal(x[0], task.values[first : first + 96])
    assert torch.equal(y[0], task.values[first + 96 : first + 120])


# ---- names that look like something else ---------------------------------------------------------


def test_classes_and_groups_may_be_called_none(written):
    names = ["None", "NA", "nan", "null", "01"]
    table = pd.concat([frame(100).assign(store=k, state=k) for k in names], ignore_index=True)
    table.loc[5:7, "state"] = None
    found = read_panel(written(table), None, "state", "store")
    assert set(found.classes) == set(names)
    assert len(found.series.unique()) == 5
    assert "rows without a class in state: 3" in found.source
    table = table.astype({"x": object})
    table.loc[5:7, "x"] = "NA"
    assert (
        "missing, filled with the value before: 3"
        in read_panel(written(table), None, "state", "store").source
    )


def test_several_columns_may_tell_series_apart(written):
    table = pd.concat([frame(100).assign(store=a, item=b) for a in "ab" for b in (1, 2, 3)])
    found = read_panel(written(table), None, None, "store+item")
    assert len(found.series.unique()) == 6
    assert "6 series by store+item" in found.source
    renamed = table.assign(both=table["store"] + table["item"].astype(str)).drop(columns=["store", "item"])
    plus = read_panel(written(renamed.rename(columns={"both": "a+b"})), None, None, "a+b")
    assert torch.equal(plus.values, found.values)


# ---- normalisation of a window, and baselines ----------------------------------------------------


def test_a_reversible_norm_is_an_instance_norm_that_is_undone():
    x = 7 + 3 * torch.randn(4, 12, 3, dtype=torch.float64)
    norm = ReversibleInstanceNorm(3).double()
    x_hat, statistics = norm(x)
    torch.testing.assert_close(x_hat, nk.functional.instance_norm(x, axis=-1))
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
        norm.bias.copy_(torch.tensor([1.0, 0.0, -3.0]))
    x_hat, statistics = norm(x)
    torch.testing.assert_close(norm.undo(x_hat, statistics), x)
    one = torch.tensor([2])
    torch.testing.assert_close(norm.undo(x_hat[..., 2:], statistics, one), x[..., 2:])


def test_with_instance_a_forecast_moves_with_its_window():
    task = find("series", {})
    model = task.model(one_run(depth=2)).eval()
    x = task.held_out()[0][0][:8]
    torch.testing.assert_close(model(10 * x + 5), 10 * model(x) + 5, rtol=1e-3, atol=1e-3)
    without = find("series", {"instance": False}).model(one_run(depth=2)).eval()
    assert (without(x + 5) - without(x) - 5).abs().max() > 0.1


def test_both_arms_have_the_same_loss_units_and_baselines():
    plain, normed = (find("series", {"instance": i}).split(2) for i in (False, True))
    assert torch.equal(plain.held_out()[0][1], normed.held_out()[0][1])
    assert plain.baselines() == normed.baselines()
    assert "instance" not in SeriesTask.problem


def test_baselines_are_what_they_say():
    x, y = torch.randn(50, 6, 2), torch.randn(50, 3, 2)
    found = simple_forecasts(x, torch.tensor([1]), 3, (x, y[..., 1:]))
    assert not found["the mean"].any()
    assert torch.equal(found["the last value"][:, 2, 0], x[:, -1, 1])
    torch.testing.assert_close(found["the window's mean"][:, 0, 0], x[:, :, 1].mean(1))
    line = torch.arange(20.0)[:, None] * torch.randn(1, 50) + torch.randn(1, 50)
    x, y = line[:16].T[..., None], line[16:].T[..., None]
    known = simple_forecasts(x, torch.tensor([0]), 4, (x, y))["a linear forecast"]
    assert (known - y).abs().max() < 0.05


def test_a_loss_is_on_the_windows_that_the_baselines_are_on():
    class Zero(torch.nn.Module):
        def forward(self, x):
            return torch.zeros(len(x), 24, 4)

    task = find("series", {}).split(1)
    assert losses(task, Zero(), task.held_out()) == pytest.approx([task.baselines()["the mean"]])
