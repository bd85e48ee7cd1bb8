"""compare, train and report as a user types them: what they say, and one clear line for every mistake."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from normkit import cli

OWN = "lab.own_task:Small"
SMALL = ["--task", OWN, "--steps", "20", "--workers", "0"]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("verbs") / "runs"


def test_compare_prints_the_plan_the_runs_the_arms_and_the_answer(capsys, folder):
    code, out, err = run(capsys, "compare", *SMALL, "--seeds", 3, "--out", folder)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "plan     12 runs (2 norm, 2 lr, 3 seed) of 20 steps"
    assert any(re.match(r"time     about \d+ seconds with one worker", line) for line in lines)
    assert f"results  {folder}" in lines
    finished = [line for line in lines if line.startswith("[")]
    assert len(finished) == 12
    assert re.fullmatch(r"\[1/12\] layer, pre, lr 0.001, seed 0: loss .*, [\d.]+ s; .* left", finished[0])
    assert "No answer yet: " in out
    assert re.search(r"To get an answer:  normkit compare --task .* --(seeds|steps) \d+", out)
    assert f"page  {folder / 'report.html'}" in lines
    table = [line for line in lines if line.startswith(("arm ", "layer · ", "rms · "))]
    assert len(table) == 3
    assert max(map(len, table)) <= 80


def test_report_gives_the_page_and_the_rows_without_training(capsys, folder, monkeypatch):
    monkeypatch.setattr("normkit.lab.worker.measure", lambda *_, **__: pytest.fail("it trains"))
    (folder / "report.html").unlink()
    code, out, _ = run(capsys, "report", folder)
    assert code == 0
    assert "No answer yet: " in out
    assert (folder / "report.html").exists()
    rows = json.loads(run(capsys, "report", folder, "--json")[1])
    assert len(rows) == 12
    assert {"norm", "placement", "lr", "seed", "validation_loss", "final_loss", "status"} <= set(rows[0])
    assert run(capsys, "report", folder, "--csv")[1].startswith("task,norm,placement,")
    assert run(capsys, "report", folder, "--parquet")[1] == f"{folder / 'runs.parquet'}\n"


def test_train_prints_what_it_does(capsys, tmp_path):
    code, out, _ = run(capsys, "train", "--task", OWN, "--steps", 20, "--out", tmp_path / "one")
    assert code == 0
    assert "rms, pre, lr 0.003, seed 0, 20 steps" in out
    assert "step 20/20, loss" in out
    assert "held-out loss" in out


def test_a_sweep_can_be_a_file_and_flags_win(capsys, tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        f'task = "{OWN}"\nnorm = ["layer"]\nlr = "1e-3:1e-2:2"\nsteps = 5\nseeds = 1\n[set]\nnoise = 0.3\n'
    )
    code, out, _ = run(capsys, "compare", path, "--norm", "rms", "--workers", 0, "--out", tmp_path / "o")
    assert code == 0
    assert "[1/2] rms, pre, lr 0.001, noise 0.3, seed 0" in out


def test_a_failed_run_shows_its_error_and_exits_with_1(capsys, tmp_path, monkeypatch):
    from normkit.lab import worker

    real = worker.measure
    monkeypatch.setattr(
        worker, "measure", lambda run, *a, **k: worker.failed("no luck") if run.seed else real(run, *a, **k)
    )
    code, out, _ = run(capsys, "compare", *SMALL, "--seeds", 2, "--out", tmp_path)
    assert code == 1
    assert "4 runs failed" in out
    assert "The first that failed:\nno luck" in out


BAD = {
    "an unknown norm": (["compare", "--norm", "rsm"], "did you mean 'rms'?"),
    "an unknown placement": (["compare", "--placement", "prre"], "did you mean 'pre'?"),
    "an unknown task": (["compare", "--task", "txt"], "did you mean 'text'?"),
    "a task that does not import": (["compare", "--task", "nowhere.at:All"], "cannot be imported"),
    "a range that is not one": (["compare", "--lr", "1e-1:1e-3:4"], "which is not a range"),
    "data that are not there": (["compare", "--data", "/no/such/data"], "no such file or folder"),
    "an engine that is not one": (["compare", "--engine", "slurm"], "engine= got 'slurm'"),
    "an address without an engine": (["compare", "--address", "auto"], "add --engine ray"),
    "a field that is not one": (["compare", "--set", "lenght=3"], "did you mean 'length'?"),
    "a field without a value": (["compare", "--set", "length"], "FIELD=VALUE"),
    "a field that is a flag": (["compare", "--set", "norm=rms"], "fix: --norm rms"),
    "a field that is no field of the task": (["compare", "--set", "engine=ray"], "a field:"),
    "an empty flag": (["compare", "--data", ""], "--data got an empty value"),
    "an empty folder name": (["compare", "--out", ""], "--out got an empty value"),
    "more seeds than anyone has": (["compare", "--seeds", "50000000"], "seeds got 50000000"),
    "a norm that does not import": (["compare", "--norm", "nowhere:Norm"], "cannot be imported"),
    "pruning a stream": (["compare", "--task", "stream", "--prune"], "whose data change with time"),
    "settings that are not there": (["compare", "/no/such.toml"], "No such file"),
    "a folder without runs": (["report", "/no/such/folder"], "has no runs.sqlite"),
    "several values for one run": (["train", "--lr", "1e-3,1e-2"], "fix: normkit compare"),
    "a warm-up that never ends": (["compare", "--warmup", "50", "--steps", "20"], "--warmup 2"),
    "a warm-up of more than the usual steps": (
        ["compare", "--task", "lines", "--warmup", "5000"],
        "warmup got 5,000",
    ),
    "two forms of a report": (["report", ".", "--json", "--csv"], "--json came with --csv"),
    "sharding alone": (["train", "--task", OWN, "--shard"], "torchrun"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_gets_one_clear_message_and_exit_code_2(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, text = BAD[name]
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert text in err
    assert "Traceback" not in err
    assert not list(Path().glob("runs/*/report.html"))


def test_data_that_cannot_be_used_get_a_message(capsys, tmp_path):
    for content, text in ((b"", "1 empty (data)"), (b"\0" * 50_000, "binary"), (b"short", "bytes of text")):
        path = tmp_path / "data"
        path.write_bytes(content)
        code, _, err = run(capsys, "compare", "--data", path, "--out", tmp_path / "out")
        assert code == 2
        assert text in err


def test_malformed_toml_gets_its_line(capsys, tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text('norm = ["rms"]\nlr = = 3\n')
    code, _, err = run(capsys, "compare", path)
    assert code == 2
    assert "line 2" in err


def test_a_folder_in_use_gets_a_message(capsys, tmp_path):
    from normkit.lab.store import Store

    with Store(tmp_path, write=True):
        code, _, err = run(capsys, "compare", *SMALL, "--out", tmp_path)
    assert code == 2
    assert "in use by another sweep" in err


def test_values_of_a_field_that_is_given_twice_are_both_taken(capsys, tmp_path):
    twice = ["--set", "noise=0.1", "--set", "noise=0.2"]
    code, out, _ = run(
        capsys, "compare", *SMALL, "--seeds", 1, "--norm", "rms", "--lr", "1e-2", *twice, "--out", tmp_path
    )
    assert code == 0
    assert "noise 0.1" in out
    assert "noise 0.2" in out


def test_a_flag_that_is_given_twice_has_both_values(capsys, tmp_path):
    twice = ["--norm", "layer", "--norm", "rms", "--lr", "1e-2"]
    code, out, _ = run(capsys, "compare", *SMALL, "--seeds", 1, *twice, "--out", tmp_path)
    assert code == 0
    assert "2 runs (2 norm)" in out


def test_a_number_of_seeds_that_is_given_twice_is_the_last_one(capsys, tmp_path):
    settings = [*SMALL, "--norm", "rms", "--lr", "1e-2", "--seeds", 3, "--seeds", 2]
    code, out, _ = run(capsys, "compare", *settings, "--out", tmp_path)
    assert code == 0
    assert "2 runs" in out


def test_a_norm_and_a_placement_of_ones_own_are_found(capsys, tmp_path, monkeypatch):
    (tmp_path / "mine_too.py").write_text(
        "import normkit as nk\n"
        "def my_norm(dim):\n    return nk.RMSNorm(dim)\n"
        "PLACE = nk.Placement(pre=True, skip=0.5)\n"
    )
    monkeypatch.chdir(tmp_path)
    own = ["--norm", "mine_too:my_norm", "--placement", "mine_too:PLACE", "--seeds", 2, "--lr", "1e-2"]
    code, out, err = run(capsys, "compare", *SMALL, *own, "--out", tmp_path / "o")
    assert (code, err) == (0, "")
    assert "mine_too:my_norm · mine_too:PLACE" in out.replace("\n", "")


def test_report_says_that_a_sweep_is_not_finished(capsys, tmp_path, monkeypatch):
    from normkit.lab.store import Store

    real, count = Store.put, []

    def put(self, *arguments):
        count.append(1)
        if len(count) > 5:
            raise KeyboardInterrupt
        real(self, *arguments)

    monkeypatch.setattr(Store, "put", put)
    assert run(capsys, "compare", *SMALL, "--seeds", 2, "--out", tmp_path)[0] == 130
    code, out, _ = run(capsys, "report", tmp_path)
    assert code == 0
    assert "No answer yet: 3 of 8 runs are missing. The same command goes on." in out


def test_an_own_task_is_found_in_the_current_folder(tmp_path):
    (tmp_path / "mine.py").write_text((Path(__file__).parent / "own_task.py").read_text())
    command = [sys.executable, "-c", "import sys; sys.path.remove(''); from normkit.cli import main; main()"]
    arguments = ["compare", "--task", "mine:Small", "--steps", "5", "--seeds", "1", "--workers", "1"]
    result = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "runs" / "mine-Small" / "report.html").exists()
