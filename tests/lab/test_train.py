"""``normkit train``: checkpoints that resume bit for bit; several processes that learn what one learns."""

import json
import signal
import subprocess
import sys

import pytest
import torch
from lab.folders import environment

import normkit as nk
from normkit.errors import NormkitError
from normkit.lab import Run, train

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


def test_a_loss_that_is_no_number_ends_the_run_with_a_word(tmp_path):
    with pytest.raises(NormkitError, match=r"The loss is nan at step 11"):
        train(small(task="lab.own_task:Exploding"), tmp_path, progress=False)


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


def test_ctrl_c_keeps_a_checkpoint(tmp_path):
    command = [
        sys.executable,
        "-m",
        "normkit",
        "train",
        "--task",
        OWN,
        "--steps",
        "100000",
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    )
    for line in process.stdout:
        if "results" in line:
            break
    process.stdout.readline()
    import time

    time.sleep(1)
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 130, rest
    assert "--resume goes on from" in rest
    assert "Traceback" not in rest
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] > 0


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
