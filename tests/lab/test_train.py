"""``normkit train``: checkpoints that resume bit for bit; several processes that learn what one learns."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from lab.folders import environment
from lab.own_task import Small

import normkit as nk
from normkit.errors import NormkitError
from normkit.lab import Run, train
from normkit.lab.measuring import ENDINGS
from normkit.lab.tasks import corpus
from normkit.lab.training import Training

OWN = "lab.own_task:Small"


def small(**changes):
    return Run(**{"task": OWN, "depth": 2, "width": 16, "batch_size": 8, "steps": 30, "lr": 1e-2, **changes})


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path):
    whole = train(small(), tmp_path / "whole", progress=False)
    train(small(until=12), tmp_path / "parts", progress=False)
    parts = train(small(), tmp_path / "parts", resume=True, progress=False)
    assert parts["losses"] == whole["losses"]
    assert parts["final_loss"] == whole["final_loss"]
    first, second = (torch.load(tmp_path / f / "model.pt", weights_only=True) for f in ("whole", "parts"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_schedule_that_ends_elsewhere_now_is_said(tmp_path, capsys):
    train(small(schedule="cosine"), tmp_path)
    train(small(schedule="cosine", steps=40), tmp_path, resume=True)
    assert "schedule cosine to step 40; it had been to 30" in capsys.readouterr().out


def test_a_run_whose_data_change_with_time_is_resumed_in_its_time(tmp_path):
    run = Run(task="stream", options=(("jump", "shift"),), depth=1, width=8, batch_size=4, steps=20)
    first = train(run, tmp_path, progress=False)
    assert train(run, tmp_path, resume=True, progress=False)["final_loss"] == first["final_loss"]


def test_a_checkpoint_is_not_taken_for_a_shorter_or_another_run(tmp_path):
    train(small(), tmp_path, progress=False)
    with pytest.raises(NormkitError, match="has 30 steps behind it"):
        train(small(steps=10), tmp_path, resume=True, progress=False)
    with pytest.raises(NormkitError, match="bf16 False"):
        train(small(), tmp_path, resume=True, bf16=True, progress=False)


def test_dropout_resumes_too(tmp_path):
    run = {
        "task": "text",
        "options": (("dropout", 0.2),),
        "depth": 1,
        "width": 16,
        "batch_size": 2,
        "steps": 8,
    }
    whole = train(Run(**run), tmp_path / "whole", progress=False)
    train(Run(**run, until=3), tmp_path / "parts", progress=False)
    assert train(Run(**run), tmp_path / "parts", resume=True, progress=False)["losses"] == whole["losses"]


def test_a_language_model_is_kept_in_its_own_format(tmp_path, capsys):
    run = Run(task="text", depth=1, width=16, batch_size=2, steps=3)
    train(run, tmp_path)
    assert nk.LanguageModel.load(tmp_path / "model.safetensors").config.dim == 16
    out = capsys.readouterr().out
    assert "It goes on by itself" in out
    assert "held-out loss" in out


def test_an_earlier_run_is_not_overwritten(tmp_path):
    train(small(), tmp_path, progress=False)
    with pytest.raises(NormkitError, match="add --resume"):
        train(small(), tmp_path, progress=False)
    with pytest.raises(NormkitError, match=r"another run: lr 0.01"):
        train(small(lr=1e-3), tmp_path, resume=True, progress=False)
    (tmp_path / "checkpoint.pt").write_bytes(b"nonsense")
    with pytest.raises(NormkitError, match="cannot be read"):
        train(small(), tmp_path, resume=True, progress=False)


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    train(small(until=10), tmp_path, progress=False)
    before = (tmp_path / "checkpoint.pt").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("normkit.lab.single.os.replace", full)
    with pytest.raises(NormkitError, match="No space left"):
        train(small(), tmp_path, resume=True, progress=False)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_a_loss_that_is_no_number_ends_the_run_as_diverged(tmp_path):
    with pytest.raises(NormkitError, match=r"diverged: the loss is nan at step 11[\s\S]*fix: a smaller"):
        train(small(task="lab.own_task:Exploding"), tmp_path, progress=False)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["final_loss"], len(result["losses"])) == ("diverged", None, 11)


@dataclass(frozen=True)
class Hopeless(Small):
    """Something simpler than a model makes no mistake."""

    def baselines(self):
        return {"an oracle": 0.0}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"steps": 300}, "ok"),
        ({"steps": 300, "until": 200}, "stopped"),
        ({"steps": 300, "task": "lab.test_train:Hopeless"}, "at baseline"),
        ({"steps": 3, "lr": 1e3}, "diverged"),
    ],
)
def test_the_result_says_how_the_run_ended_in_the_words_of_a_comparison(changes, status, tmp_path, capsys):
    assert train(small(**changes), tmp_path)["status"] == status
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == status
    out = capsys.readouterr().out
    assert all(f"baseline {name}: {loss:.3f}" in out for name, loss in result["baselines"].items())
    assert result["baselines"]
    assert (f"ended    {status}: {ENDINGS[status]}" in out) == (status != "ok")


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_there_is_nothing_to_resume_in_a_folder_without_a_checkpoint(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NormkitError, match=r"--resume: .* has no checkpoint.pt[\s\S]*leave --resume out"):
        train(small(), tmp_path / folder, resume=True, progress=False)
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"], "and nothing is made"


@pytest.mark.parametrize("method", ["mkdir", "touch", "exists"])
def test_a_folder_that_cannot_be_written_is_found_before_the_training(method, tmp_path, monkeypatch):
    def denied(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("normkit.lab.single.Path." + method, denied)
    monkeypatch.setattr(Training, "advance", lambda self: pytest.fail("it trains"))
    with pytest.raises(NormkitError, match=r"cannot be written: Permission denied[\s\S]*--out"):
        train(small(), tmp_path / "out", progress=False)


def test_a_folder_of_data_that_cannot_be_read_says_so(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", denied)
    run = Run(task="text", options=(("data", str(tmp_path / "data")),), depth=1, width=16, steps=1)
    with pytest.raises(NormkitError, match=r"--data .*data cannot be read: Permission denied[\s\S]*fix:"):
        train(run, tmp_path / "out", progress=False)


def test_a_folder_within_the_data_that_may_not_be_looked_into_says_so(monkeypatch, tmp_path):
    closed = tmp_path / "data" / "closed"
    closed.mkdir(parents=True)
    (tmp_path / "data" / "open.txt").write_text("text")
    stat, scandir = os.stat, os.scandir

    def denying(real):
        def denied(path=".", *args, **kwargs):
            if str(path) == str(closed) if real is scandir else str(path).startswith(f"{closed}{os.sep}"):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *args, **kwargs)

        return denied

    monkeypatch.setattr("os.stat", denying(stat))
    monkeypatch.setattr("os.scandir", denying(scandir))
    with pytest.raises(NormkitError, match=r"closed cannot be read: Permission denied[\s\S]*fix:"):
        corpus.read(str(tmp_path / "data"))


def test_a_file_is_no_folder_for_the_results(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NormkitError, match="file cannot be written: File exists"):
        train(small(), tmp_path / "file", progress=False)


def test_a_result_that_cannot_be_written_gets_a_message(tmp_path, monkeypatch):
    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("normkit.lab.single.Path.write_text", full)
    with pytest.raises(NormkitError, match=r"result.json cannot be written[\s\S]*No space left"):
        train(small(), tmp_path, progress=False)
    assert (tmp_path / "model.pt").exists()


WITHOUT = """
import sys
from importlib.machinery import PathFinder
missing, find = {missing}, PathFinder.find_spec
PathFinder.find_spec = lambda name, *a: None if name.partition(".")[0] in missing else find(name, *a)
from normkit.cli import main
main()
"""
# What  pip install normkit  does not bring.
EXTRAS = ["jinja2", "markupsafe", "pandas", "plotly", "ray", "scipy", "sklearn"]


def train_without(missing, folder):
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT.format(missing=missing), "train"]
    sizes = ["--depth", "1", "--width", "16", "--batch-size", "2", "--steps", "3", "--out", str(folder)]
    return subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=120, check=False)


def test_without_numpy_nothing_is_trained_that_could_not_be_kept(tmp_path):
    result = train_without(["numpy"], tmp_path / "out")
    assert result.returncode == 2, result.stderr
    assert result.stderr == "This needs numpy, which is not installed.\n  fix: pip install numpy\n"
    assert "step" not in result.stdout
    assert not (tmp_path / "out").exists()


def test_a_base_install_trains_and_keeps_the_model(tmp_path):
    result = train_without(EXTRAS, tmp_path)
    assert result.returncode == 0, result.stderr
    assert nk.LanguageModel.load(tmp_path / "model.safetensors").config.dim == 16


def test_a_base_install_has_numpy():
    import re

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert "numpy" in re.search(r"^dependencies = \[(.*)\]", text, re.M)[1]


@dataclass(frozen=True)
class Divided(Small):
    """What is held out depends on the seed, as for text; and the noise on the time."""

    seed: int | None = None

    def split(self, seed):
        return replace(self, seed=seed)

    def advance(self, step, steps):
        self.__dict__["time"] = step

    def held_out(self):
        x, y = self.batch(64, torch.Generator().manual_seed(1))
        return [(x, y + (100 if self.seed is None else self.seed) + self.__dict__.get("time", 0))]

    def sample(self, model):
        return f"divided by {self.seed}"


def test_everything_is_measured_on_the_split_of_the_runs_seed(tmp_path, capsys):
    run = small(task="lab.test_train:Divided", seed=3, lr=1e-9)
    first = train(run, tmp_path)
    assert "divided by 3" in capsys.readouterr().out
    _, y = Divided().batch(64, torch.Generator().manual_seed(1))
    assert first["final_loss"] == pytest.approx((y + 3 + 29).square().mean().item(), rel=0.2)
    again = train(run, tmp_path, resume=True, progress=False)
    assert again["final_loss"] == first["final_loss"], "in its own time, too"


def test_bf16_trains(tmp_path):
    wide = train(small(), tmp_path / "wide", progress=False)
    narrow = train(small(), tmp_path / "narrow", bf16=True, progress=False)
    assert narrow["losses"] != wide["losses"]
    assert narrow["final_loss"] == pytest.approx(wide["final_loss"], rel=0.3)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_training_gives_the_same_losses(tmp_path, monkeypatch):
    """With a backend that needs no C++ compiler; what is compiled is the point here, not how fast it is."""
    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda self: setattr(
            self, "_compiled_call_impl", torch.compile(self._call_impl, backend="aot_eager")
        ),
    )
    plain = train(small(), tmp_path / "plain", progress=False)
    compiled = train(small(), tmp_path / "compiled", compile=True, progress=False)
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-4)


def launch(processes, *arguments):
    """``normkit train``, alone or under torchrun."""
    many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(many if processes > 1 else []), "-m", "normkit", "train", *arguments]
    variables = {**environment(), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=240, check=False)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    return result.stdout


def losses(folder):
    return json.loads((folder / "result.json").read_text())["losses"]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    train(small(norm="batch"), folder, progress=False)
    return losses(folder)


COMMON = ["--task", OWN, "--norm", "batch", "--steps", "30", "--lr", "1e-2", "--schedule", "constant"]


@pytest.mark.parametrize("how", [[], ["--shard"]])
def test_two_processes_train_the_loss_curve_of_one_with_batch_norm_synchronised(how, one, tmp_path):
    launch(2, *COMMON, "--out", str(tmp_path), *how)
    assert losses(tmp_path) == pytest.approx(one, rel=2e-4)
    assert len(set(one)) > 20, "and there is a curve"


def test_a_checkpoint_of_two_processes_is_resumed_by_one(one, tmp_path):
    launch(2, *COMMON[:-6], "--steps", "12", *COMMON[-4:], "--out", str(tmp_path), "--shard")
    train(small(norm="batch"), tmp_path, resume=True, progress=False)
    assert losses(tmp_path) == pytest.approx(one, rel=2e-4)


def test_a_batch_that_cannot_be_shared_is_refused():
    from normkit.lab.distributed import Group

    with pytest.raises(NormkitError, match=r"--batch-size 9"):
        Group(0, 3).check(8)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(step="x"),
        lambda state: state["model"].update({next(iter(state["model"])): torch.zeros(3)}),
        lambda state: state.update(generator=torch.zeros(3)),
        lambda state: state.pop("losses"),
        lambda state: state.update(held_out=3),
        lambda state: state.update(optimizer=None),
    ],
)
def test_a_checkpoint_with_something_else_in_it_is_refused(change, tmp_path):
    train(small(until=3), tmp_path, progress=False)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    change(state)
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(NormkitError, match=r"is damaged[\s\S]*expected: a checkpoint"):
        train(small(), tmp_path, resume=True, progress=False)
