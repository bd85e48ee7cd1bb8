"""Data and baselines of a task of one's own: copies, fingerprints, leaks, and fields that change the data."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import normkit as nk
from normkit.errors import NormkitError


class Rows(nk.lab.Task):
    """A classifier of few numbers; what differs is said by those that inherit."""

    def model(self, run):
        from normkit.lab.tasks.networks import mlp

        return mlp(run, 4, 3)

    def batch(self, size, generator):
        x = torch.randn(size, 4, generator=generator)
        return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def held_out(self):
        return [self.batch(128, torch.Generator().manual_seed(7))]


def compared(task, folder, **changes):
    settings = {"norm": ["layer", "rms"], "placement": "pre", "lr": 1e-2, "depth": 1, "width": 16, "seeds": 2}
    settings |= {"batch_size": 16, "steps": 40, "workers": 0, "progress": False, "out": folder}
    return nk.lab.compare(task, **{**settings, **changes})


class Remembered(Rows):
    """What is held out is what is trained on."""

    def batch(self, size, generator):
        x, y = super().batch(100, torch.Generator().manual_seed(0))
        chosen = torch.randint(100, (size,), generator=generator)
        return x[chosen], y[chosen]


class Strict(Rows):
    """It has a baseline of its own, which no arm beats."""

    def baselines(self):
        return {"my rule": 1e-3}


class NaNAtFirst(Rows):
    def loss(self, model, batch):
        return super().loss(model, batch) * (1 if model.training else float("nan"))


class Forgetful(Rows):
    held_out = nk.lab.Task.held_out


def test_rows_that_are_held_out_and_trained_on_are_noticed(tmp_path):
    result = compared(Remembered(), tmp_path / "a")
    assert any("100% of the held-out rows are among a few training batches" in w for w in result.warnings)
    again = nk.lab.Comparison.load(tmp_path / "a")
    assert again.warnings == result.warnings
    assert not any("held-out rows" in w for w in compared(Rows(), tmp_path / "b").warnings)


def test_a_baseline_of_ones_own_is_beside_the_constant_and_losses_are_what_they_are(tmp_path):
    result = compared(Strict(), tmp_path)
    assert set(result.summary.baselines) == {"my rule", "a fitted constant"}
    (best, *_) = result.summary.arms
    assert best.ending == "at baseline"
    losses = [o.final_loss for run, o in result.results if run.norm == best.values["norm"]]
    assert best.best.loss.mean == pytest.approx(sum(losses) / len(losses))
    assert result.state == "none"
    assert "no arm has learnt more than my rule, which gets 0.001" in result.why


def test_a_loss_that_is_nan_before_training_is_the_tasks_and_no_divergence(tmp_path):
    with pytest.raises(nk.NormkitError, match="NaN before the first step"):
        compared(NaNAtFirst(), tmp_path)


def test_a_task_without_a_method_is_told_which(tmp_path):
    with pytest.raises(nk.NormkitError, match="The task Forgetful has no held_out"):
        compared(Forgetful(), tmp_path)


class Noisy(Rows):
    """Its field changes the data, and it does not say so."""

    def batch(self, size, generator):
        x, y = super().batch(size, generator)
        return x * self.scale, y


@dataclass(frozen=True)
class Scaled(Noisy):
    scale: float = 1.0


def test_a_field_that_changes_the_data_makes_another_problem(tmp_path):
    result = compared(Scaled(), tmp_path, norm="layer", scale=[1.0, 9.0])
    assert result.about["problem"] == ["scale", "data"]
    assert len(result.summary.answers) == 2


class Arrays(Rows):
    """Batches of numpy's arrays, which the loss makes tensors of."""

    sign = 1

    def batch(self, size, generator):
        x, y = super().batch(size, generator)
        return {"x": self.sign * x.numpy(), "y": y.numpy()}


class Turned(Arrays):
    sign = -1


def test_data_that_are_no_tensors_have_a_fingerprint_too():
    assert Arrays().fingerprint != Turned().fingerprint
    assert Arrays().fingerprint == Arrays().fingerprint


class Leaky(Rows):
    found = float("nan")

    def leak(self, model):
        return self.found


class LeakyTensor(Leaky):
    found = torch.tensor(0.5)


def test_a_leak_is_a_number_or_refused(tmp_path):
    assert all(o.leak == 0.5 for _, o in compared(LeakyTensor(), tmp_path / "a").results)
    with pytest.raises(NormkitError, match="leak\\(\\) of the task is NaN"):
        compared(Leaky(), tmp_path / "b")


def test_the_next_command_goes_on_in_the_same_folder(tmp_path):
    result = compared(Rows(), tmp_path, seeds=1)
    assert result.command.startswith("normkit.lab.compare(task=")
    assert f"out={str(tmp_path)!r}" in result.command
    assert result.command.endswith("seeds=3)")
