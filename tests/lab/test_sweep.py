"""Comparisons from end to end: resumed, pruned, exported. What signals do: test_signals.py."""

import json
import subprocess
import sys

import pandas
import pytest
from lab.folders import environment

import normkit as nk
from normkit.errors import NormkitError
from normkit.lab import export
from normkit.lab.comparison import Comparison
from normkit.lab.measuring import Outcome
from normkit.lab.run import Run
from normkit.lab.store import Store

OWN = "lab.own_task:Small"
TIMED = ["seconds", "step_ms", "units_per_second", "peak_mb"]


def small(folder, **changes):
    settings = {"task": OWN, "seeds": 2, "steps": 20, "workers": 0, "progress": False, **changes}
    return nk.lab.compare(out=folder, **settings)


def numbers(result):
    return result.table.drop(columns=TIMED).to_dict("records")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return small(tmp_path_factory.mktemp("sweep") / "runs", seeds=3)


def test_a_comparison_has_table_figures_and_recommendation(result):
    assert isinstance(result.table, pandas.DataFrame)
    assert len(result.table) == 2 * 2 * 3
    wanted = {"norm", "placement", "lr", "seed", "validation_loss", "final_loss", "status"}
    assert wanted <= set(result.table.columns)
    assert {"learning rate", "loss curves", "gradient", "stream", "throughput"} <= set(result.figures)
    assert result.state in ("recommendation", "tie", "none")
    assert (result.winner is None) == (result.state != "recommendation")
    assert result.why in repr(result)
    assert "<table" in result._repr_html_()
    assert str(len(result.table)) in repr(result)
    assert (result.folder / "report.html").stat().st_size > 1e6


def test_the_same_again_trains_nothing(result, monkeypatch):
    before = (result.folder / "runs.sqlite").stat().st_size
    monkeypatch.setattr("normkit.lab.worker.measure", lambda *_, **__: pytest.fail("it trains"))
    again = small(result.folder, seeds=3)
    assert numbers(again) == numbers(result)
    assert (result.folder / "runs.sqlite").stat().st_size < 2 * before


def test_more_seeds_add_to_what_is_there(tmp_path, monkeypatch):
    small(tmp_path, seeds=1)
    from normkit.lab import worker

    done = []
    real = worker.measure
    monkeypatch.setattr(worker, "measure", lambda run, *a, **k: done.append(run.seed) or real(run, *a, **k))
    assert len(small(tmp_path, seeds=2).results) == 8
    assert done == [1] * 4


def test_a_comparison_is_loaded_again(result):
    again = Comparison.load(result.folder)
    assert numbers(again) == numbers(result)
    assert (again.state, again.why, again.command) == (result.state, result.why, result.command)


def test_an_arm_that_cannot_be_built_is_named_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr("normkit.lab.worker.measure", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(NormkitError, match=r"subln.*norms inside of the sublayer"):
        small(tmp_path, placement="pre,subln")


def test_a_bug_in_a_users_task_is_shown_with_its_line(tmp_path):
    with pytest.raises(NormkitError) as error:
        small(tmp_path, task="lab.own_task:Broken")
    assert "AttributeError: 'Tensor' object has no attribute" in str(error.value)
    assert "own_task.py, line" in str(error.value)


def test_what_changed_on_disk_is_not_taken_for_what_was_imported(tmp_path, monkeypatch):
    """One process, one key: that of the code it has. Another process has the new code, and another key."""
    source = tmp_path / "changing.py"
    source.write_text("from lab.own_task import Small as Task1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = Run(task="changing:Task1").key("data")
    source.write_text("from lab.own_task import Small as Task1\n# changed\n")
    assert Run(task="changing:Task1").key("data") == first
    code = "from normkit.lab.run import Run; print(Run(task='changing:Task1').key('data'))"
    other = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() != first


def test_data_that_change_between_two_comparisons_are_noticed(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"text {k * k} of some length {k}\n" for k in range(1000)))
    settings = {"task": "text", "data": str(path), "norm": "rms", "placement": "pre", "lr": 1e-3, "depth": 1}
    settings |= {"width": 16, "batch_size": 2, "steps": 2, "seeds": 1}
    before = small(tmp_path / "o", **settings)
    path.write_text("".join(f"another {k * k}, really {k}\n" for k in range(1000)))
    after = small(tmp_path / "o", **settings)
    assert before.about["data"] != after.about["data"]
    assert before.rows[0]["final_loss"] != after.rows[0]["final_loss"]


def test_figures_by_depth_do_not_depend_on_the_run_before(tmp_path):
    first = small(tmp_path / "a", task="stream", norm="rms", lr=1e-2, steps=10, seeds=2, depth=2, width=8)
    second = small(
        tmp_path / "b", task="stream", norm="rms", lr=1e-2, steps=10, seeds="1,0", depth=2, width=8
    )
    by_seed = [{run.seed: o.by_depth for run, o in r.results} for r in (first, second)]
    assert by_seed[0] == by_seed[1]


def test_failed_runs_are_tried_again(tmp_path, monkeypatch):
    from normkit.lab import worker

    def unlucky(run, *_, **__):
        if run.seed:
            return worker.failed("no luck")
        return Outcome("ok", 1.0, 1.0, baselines={"a constant": 8.0}, step_ms=1.0, units_per_second=1.0)

    with monkeypatch.context() as patch:
        patch.setattr(worker, "measure", unlucky)
        first = small(tmp_path)
        assert sum(o.status == "failed" for _, o in first.results) == 4
        assert any("4 runs failed" in w for w in first.summary.warnings)
    second = small(tmp_path)
    assert all(o.status != "failed" for _, o in second.results)


def test_pruning_halves_the_rates_of_every_arm_and_keeps_the_best(tmp_path):
    full = small(tmp_path / "full", seeds=3, lr="1e-4:3e-2:4", steps=40)
    pruned = small(tmp_path / "pruned", seeds=3, lr="1e-4:3e-2:4", steps=40, prune=True)
    assert pruned.summary.arms[0].best.lr == full.summary.arms[0].best.lr
    steps = [sum(o.steps for _, o in r.results) for r in (full, pruned)]
    assert steps[1] <= 0.5 * steps[0]
    html = (tmp_path / "pruned" / "report.html").read_text()
    assert "Pruned by successive halving" in html
    again = small(tmp_path / "pruned", seeds=3, lr="1e-4:3e-2:4", steps=40, prune=True)
    assert numbers(again) == numbers(pruned)


def test_exports(result, tmp_path):
    rows = json.loads(export.to_json(result))
    assert len(rows) == 12
    assert {"norm", "placement", "lr", "seed", "validation_loss", "final_loss", "status"} <= set(rows[0])
    assert len(export.to_csv(result).splitlines()) == 13
    table = pandas.read_parquet(export.to_parquet(result))
    assert table["final_loss"].tolist() == result.table["final_loss"].tolist()


@pytest.mark.filterwarnings("ignore")  # tensorboard's own
def test_tensorboard_reads_what_is_written(result):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = export.to_tensorboard(result)
    folders = sorted(path.iterdir())
    assert len(folders) == 12
    events = EventAccumulator(str(folders[0]))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss/training", "loss/validation"]
    assert len(events.Scalars("loss/training")) == 20


def test_a_page_that_cannot_be_written_keeps_the_old_one(result, monkeypatch):
    before = (result.folder / "report.html").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("normkit.lab.page.os.replace", full)
    with pytest.raises(NormkitError, match="all runs are stored"):
        result.save()
    assert (result.folder / "report.html").read_bytes() == before
    assert not list(result.folder.glob(".report*"))


def test_a_full_disk_during_a_sweep_says_what_is_stored(tmp_path, monkeypatch, capsys):
    real, count = Store.put, []

    def put(self, *arguments):
        count.append(1)
        if len(count) > 3:
            raise self._cannot_write(OSError(28, "No space left on device"))
        real(self, *arguments)

    monkeypatch.setattr(Store, "put", put)
    with pytest.raises(NormkitError, match="No space left"):
        small(tmp_path, progress=True)
    assert "3 of 8 runs are stored" in capsys.readouterr().out


def test_a_sweep_that_has_ended_is_known_to_have_ended(result):
    assert "finished" in result.about
    again = Comparison.load(result.folder)
    assert "finished" in again.about
    assert not any("Not finished" in warning for warning in again.warnings)
