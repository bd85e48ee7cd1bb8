"""What a run gives: losses, an honest status, figures by depth, costs."""

import copy
import json
import math

import pytest
import torch
from torch import nn

from normkit.errors import NormkitError
from normkit.lab import measuring
from normkit.lab.judging import judged_by, mean_over_rows
from normkit.lab.measuring import Outcome, exploded, is_cut_off, is_stuck, measure, probe, thin
from normkit.lab.run import Run
from normkit.lab.task import find
from normkit.lab.training import Training, learning_rate

OWN = "lab.own_task:Small"


def small(**changes):
    return Run(**{"task": OWN, "depth": 2, "width": 16, "batch_size": 8, "steps": 60, "lr": 1e-2, **changes})


def numbers(outcome):
    """All that must not depend on the machine's mood."""
    timed = ("seconds", "step_ms", "units_per_second", "peak_mb")
    return {name: value for name, value in outcome.as_dict().items() if name not in timed}


def test_a_run_is_a_function_of_its_configuration():
    run = small()
    first = measure(run, run.build_task())
    torch.rand(7)
    again = measure(run, run.build_task())
    assert numbers(first) == numbers(again)
    assert numbers(measure(small(seed=1), run.build_task()))["curve"] != first.curve


def test_an_outcome_has_everything_and_survives_json():
    run = small()
    reports = []
    outcome = measure(run, run.build_task(), report=lambda *news: reports.append(news))
    assert outcome.status == "ok"
    _, judging = judged_by(run.build_task(), run.seed)
    assert outcome.final_loss == pytest.approx(mean_over_rows(outcome.judged, judging))
    assert len(outcome.judged) >= 16, "parts, for their sampling error"
    assert outcome.chosen_by == outcome.validation[-1][1] != outcome.final_loss, "other data"
    assert outcome.best_loss == min(loss for _, loss in outcome.validation)
    assert [step for step, _ in outcome.validation] == [12, 24, 36, 48, 60]
    assert outcome.steps == 60
    assert len(reports) == 60
    for when in ("start", "end"):
        assert len(outcome.by_depth[when]["gradient"]) == len(outcome.by_depth[when]["stream"]) == 2
        assert all(v > 0 for values in outcome.by_depth[when].values() for v in values)
    assert outcome.step_ms > 0
    assert outcome.units_per_second == pytest.approx(8 / outcome.step_ms * 1e3)
    assert outcome.parameters == sum(p.numel() for p in run.build_task().model(run).parameters())
    again = Outcome(**json.loads(json.dumps(outcome.as_dict(), allow_nan=False)))
    assert again.final_loss == outcome.final_loss


def test_a_shorter_run_on_the_same_schedule_is_the_beginning_of_the_longer():
    long = measure(small(), find(OWN, {}))
    short = measure(small(until=24), find(OWN, {}))
    assert short.curve == long.curve[:24]


def test_no_number_is_a_result_and_stops_the_run():
    run = small(task="lab.own_task:Exploding")
    outcome = measure(run, run.build_task())
    assert outcome.status == "diverged"
    assert outcome.diverged
    assert outcome.steps == 11
    assert outcome.final_loss is None
    assert outcome.curve[-1] == (11, None)
    json.dumps(outcome.as_dict(), allow_nan=False)


def test_stuck_means_at_the_plateau_and_not_falling():
    flat, falling = [3.2] * 80, [5 - 0.02 * k for k in range(80)]
    assert is_stuck(flat, 3.2, plateau=3.2)
    assert is_stuck(flat, 3.2, plateau=2.5), "above it counts too"
    assert not is_stuck(falling, 3.4, plateau=3.2), "it still falls"
    assert not is_stuck(flat, 3.2, plateau=4.0), "it has learnt something"
    assert not is_stuck(flat, 2.0, plateau=3.2), "the held-out loss says otherwise"
    assert not is_stuck([3.2] * 20, 3.2, plateau=3.2), "too early to say"
    assert not is_stuck(flat, 3.2, plateau=None)


def test_a_run_that_ends_worse_than_it_began_has_diverged():
    run = small(lr=30.0, steps=20)
    outcome = measure(run, run.build_task())
    assert outcome.status == "diverged"


def test_numbers_of_a_task_may_be_tensors_and_nothing_else():
    class Odd(type(find(OWN, {}))):
        def plateau(self):
            return torch.tensor(8.0)

        def metrics(self, model):
            return {"some": torch.tensor(3)}

    outcome = measure(small(), Odd())
    assert (outcome.plateau, outcome.metrics) == (8.0, {"some": 3.0})

    class Wrong(type(find(OWN, {}))):
        def plateau(self):
            return "eight"

    with pytest.raises(NormkitError, match="baselines\\(\\), 'a constant', of the task is 'eight'"):
        measure(small(), Wrong())


def test_cut_off_means_that_a_gradient_has_vanished():
    assert is_cut_off([1.0, 1.0], [1.0, 1e-4])
    assert not is_cut_off([1.0, 1.0], [1.0, 1e-2])
    assert not is_cut_off([None, 0.0], [1e-9, 1e-9])


def test_a_run_that_lies_on_the_plateau_with_live_gradients_goes_on(monkeypatch):
    """A Post-LN model may lie there for a hundred steps, and then learn."""
    run = small(lr=1e-7, steps=200)
    outcome = measure(run, run.build_task())
    assert outcome.steps == 200
    assert outcome.status == "at baseline"
    monkeypatch.setattr(measuring, "is_cut_off", lambda *_: True)
    assert measure(run, run.build_task()).steps < 200


def test_the_probe_leaves_the_model_as_it_was():
    run = small(norm="batch")
    task = run.build_task()
    training = Training(run, task)
    training.advance()
    before, state = copy.deepcopy(training.model.state_dict()), torch.get_rng_state()
    found = probe(task, training.model, task.held_out()[0])
    assert all(value > 0 for values in found.values() for value in values)
    for name, value in training.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in training.model.parameters())


def test_the_probe_measures_what_it_says():
    task = find(OWN, {})
    run = small(depth=1, placement="none", norm="none")
    torch.manual_seed(0)
    model = task.model(run)
    batch = task.held_out()[0]
    found = probe(task, model, batch)
    stream = model.blocks[0](model.entry(batch[0]))
    assert found["stream"][0] == pytest.approx(stream.square().mean().sqrt().item(), rel=1e-5)
    task.loss(model, batch).backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in model.blocks[0].parameters()))
    assert found["gradient"][0] == pytest.approx(norm, rel=1e-5)


def test_a_model_without_layers_has_no_figures_by_depth():
    class Plain(type(find(OWN, {}))):
        def model(self, run):
            return nn.Linear(8, 1)

    outcome = measure(small(), Plain())
    assert outcome.by_depth["start"] == {"gradient": [], "stream": []}
    assert outcome.final_loss is not None


@pytest.mark.parametrize("count", [1, 7, 99, 100, 101, 1234])
def test_a_thinned_curve_keeps_its_mean_and_its_end(count):
    losses = [float(k) for k in range(count)]
    curve = thin(losses, count)
    assert len(curve) <= measuring.POINTS
    assert curve[-1][0] == count
    assert curve[0][1] == pytest.approx(sum(losses[: curve[0][0]]) / curve[0][0])


def test_the_learning_rate_rises_and_falls_as_asked():
    constant = small(warmup=10, lr=1.0)
    assert [learning_rate(constant, k) for k in (0, 4, 9, 10, 59)] == pytest.approx([0.1, 0.5, 1, 1, 1])
    cosine = small(schedule="cosine", lr=1.0, steps=100)
    assert learning_rate(cosine, 0) == pytest.approx(1)
    assert learning_rate(cosine, 50) == pytest.approx(0.55)
    assert learning_rate(cosine, 99) == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize(
    ("end", "plateau", "diverged"),
    [(2.03, None, True), (2.01, None, False), (2.03, 1.0, True), (3.05, 3.0, True), (3.02, 3.0, False)],
)
def test_a_hundredth_above_the_worst_is_an_explosion(end, plateau, diverged):
    assert exploded([2.0, end], 2.0, end, plateau) is diverged


def test_an_explosion_in_the_first_steps_is_one():
    assert exploded([2.0, *[1e12] * 59], 2.0, 1e12, 3.0)


def test_a_first_batch_that_was_easy_makes_no_explosion():
    assert not exploded([0.6, *[1.3] * 20, *[1.0] * 20], 1.0, 1.02, None)


def test_who_overfits_has_not_diverged():
    assert not exploded([2.0, 0.1], 2.0, 9.0, 2.0), "the training loss is low"
    assert not exploded([2.0, 9.0], 2.0, 1.0, 2.0), "validation says otherwise"
