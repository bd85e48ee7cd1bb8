"""The answer, on made-up rows whose answer is known."""

import math

import pytest

from normkit.lab.analysis import Interval, interval, row, summarise
from normkit.lab.measuring import Outcome
from normkit.lab.overview import overview
from normkit.lab.run import Run

PLATEAU = 3.0
VARIED = ["norm", "placement", "lr", "seed"]


def rows(norm, losses, *, placement="pre", lr=1e-3, status="ok", **changes):
    """One result a seed."""
    return [
        (
            Run(norm=norm, placement=placement, lr=lr, seed=seed, **changes),
            Outcome(
                status,
                best_loss=loss,
                final_loss=loss,
                baselines={"a constant": PLATEAU},
                floor=PLATEAU,
                steps=100,
                validation=[(50, loss), (100, loss)],
                step_ms=1.0,
                units_per_second=1.0,
                peak_mb=1.0,
            ),
        )
        for seed, loss in enumerate(losses)
    ]


def test_the_interval_is_students():
    """t for 2 degrees of freedom at 97.5 % is 4.3027: any table of the distribution has it."""
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.half == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert interval([1.0]).half is None


def test_a_clear_winner_is_named_with_its_margin():
    summary = summarise(rows("layer", [2.00, 2.01, 2.02]) + rows("rms", [2.50, 2.51, 2.52]), VARIED, "nats")
    assert [arm.label for arm in summary.arms] == ["layer · pre", "rms · pre"]
    assert summary.ties == ()
    assert summary.behind["rms · pre"].mean == pytest.approx(0.5)
    assert "Use norm=layer, placement=pre, lr=0.001: held-out loss 2.010 ± 0.025 nats" in summary.why
    assert "beats every other arm" in summary.why


def test_what_the_seeds_do_not_separate_is_close_and_no_answer():
    """The seeds leave room for a difference of half of what was learnt: that is no tie."""
    summary = summarise(rows("layer", [2.0, 2.3, 2.1]) + rows("rms", [2.2, 2.1, 2.3]), VARIED)
    assert summary.ties == ("rms · pre",)
    assert summary.state == "none"
    assert "neither a difference nor a tie" in summary.why


def test_seeds_are_compared_one_by_one():
    """Between seeds there is much noise, and all of it is common to both arms."""
    summary = summarise(rows("layer", [1.0, 2.0, 2.9]) + rows("rms", [1.05, 2.06, 2.95]), VARIED)
    assert summary.ties == ()


def test_one_seed_gives_no_verdict():
    summary = summarise(rows("layer", [2.0]) + rows("rms", [2.5]), VARIED)
    assert "one seed" in summary.why
    assert "cannot judge" in summary.why
    assert summary.ties == ()


def test_an_arm_is_judged_at_its_best_learning_rate():
    results = (
        rows("layer", [2.5] * 3, lr=1e-3)
        + rows("layer", [2.1] * 3, lr=1e-2)
        + rows("rms", [2.2] * 3, lr=1e-3)
    )
    summary = summarise(results, VARIED)
    assert summary.arms[0].label == "layer · pre"
    assert summary.arms[0].best.lr == 1e-2


def test_max_stable_lr_and_sensitivity_follow_their_definitions():
    """limit of layer: 2.0 + 0.5 (3.0 - 2.0) = 2.5; the global best is 1.8."""
    layer = (
        rows("layer", [2.0] * 3, lr=1e-3)
        + rows("layer", [2.4] * 3, lr=1e-2)
        + rows("layer", [9.0] * 3, lr=1e-1)
    )
    rms = (
        rows("rms", [1.8] * 3, lr=1e-3)
        + rows("rms", [2.5] * 3, lr=1e-2)
        + rows("rms", [None] * 3, lr=1e-1, status="diverged")
    )
    arms = {arm.label: arm for arm in summarise(layer + rms, VARIED).arms}
    assert arms["layer · pre"].max_stable_lr == 1e-2
    assert arms["rms · pre"].max_stable_lr == 1e-3, "2.5 is above 1.8 + 0.5 (3.0 - 1.8) = 2.4"
    assert arms["layer · pre"].sensitivity == pytest.approx((0.2 + 0.6 + 1.2) / 3), "clipped at the plateau"
    assert arms["rms · pre"].sensitivity == pytest.approx((0.0 + 0.7 + 1.2) / 3)
    assert sum(p.diverged for p in arms["rms · pre"].points) == 3


def test_all_dead_is_said():
    summary = summarise(
        rows("layer", [None] * 3, status="diverged") + rows("rms", [3.5] * 3, status="at baseline"), VARIED
    )
    assert summary.state == "none"
    assert "Nothing learnt anything" in summary.why
    assert summarise(rows("layer", [None] * 3, status="failed"), VARIED) is None


def test_the_edge_of_the_range_is_pointed_out():
    results = rows("layer", [2.5] * 3, lr=1e-3) + rows("layer", [2.1] * 3, lr=1e-2)
    assert any("is the largest that was tried" in w for w in summarise(results, VARIED).warnings)
    inside = results + rows("layer", [2.6] * 3, lr=1e-1)
    assert summarise(inside, VARIED).warnings == ()


def test_failed_runs_are_left_out_and_counted():
    results = (
        rows("layer", [2.0, 2.1, 2.2]) + rows("rms", [2.0] * 3) + rows("rms", [None], lr=0.1, status="failed")
    )
    summary = summarise(results, VARIED)
    assert any("1 runs failed" in w for w in summary.warnings)
    assert len(summary.arms) == 2


def test_other_axes_make_arms_of_their_own():
    results = rows("layer", [2.0] * 3, depth=2) + rows("layer", [2.2] * 3, depth=4)
    summary = summarise(results, [*VARIED, "depth"])
    assert [arm.label for arm in summary.arms] == ["layer · pre · depth 2", "layer · pre · depth 4"]
    assert "depth=2" in summary.why


def test_without_a_plateau_there_is_no_stable_rate():
    results = [
        (run, Outcome("ok", 2.0 + run.seed, 2.0 + run.seed, step_ms=1.0, units_per_second=1.0))
        for run, _ in rows("layer", [0] * 3)
    ]
    arm = summarise(results, VARIED).arms[0]
    assert arm.max_stable_lr is None
    assert arm.sensitivity is None


def blind(norm, losses, **changes):
    """Results of a task that does not know its baselines."""
    made = rows(norm, losses, **changes)
    for _, outcome in made:
        outcome.baselines, outcome.floor = {}, None
        if outcome.final_loss is None:
            outcome.status = "diverged"
    return made


def test_an_arm_that_diverged_is_last_and_never_a_tie_even_without_a_plateau():
    summary = summarise(blind("rms", [None] * 3) + blind("layer", [0.5, 0.6, 0.9]), VARIED)
    assert [arm.label for arm in summary.arms] == ["layer · pre", "rms · pre"]
    assert summary.ties == ()
    assert "no other arm can be the answer" in summary.why
    assert summary.arms[1].loss == "diverged"


def test_a_single_good_run_without_a_plateau_is_good():
    assert summarise(blind("layer", [0.05, 0.06]), VARIED).why.startswith("Use norm=layer")


def test_all_diverged_without_a_plateau_is_a_result():
    summary = summarise(blind("layer", [None]), VARIED)
    assert (summary.state, summary.answers[0].change) == ("none", {"lr": "0.0001,0.000316,0.001"})
    assert "every arm diverged" in summary.why


def test_arms_are_ranked_over_the_seeds_that_all_have():
    """The second arm is the same on two seeds, and has not done the third, which is hard."""
    summary = summarise(rows("layer", [1.0, 1.1, 2.9]) + rows("rms", [1.01, 1.11]), VARIED)
    assert summary.arms[0].label == "layer · pre"


def test_different_problems_are_not_compared():
    easy = rows("layer", [1.0, 1.1, 1.2], options=(("length", 8),)) + rows(
        "rms", [2.0] * 3, options=(("length", 8),)
    )
    hard = rows("layer", [2.5, 2.6, 2.7], options=(("length", 64),))
    summary = summarise(easy + hard, [*VARIED, "length"], "nats", ["length"])
    assert "2 different problems (length)" in summary.why
    assert summary.why.count("Use norm=layer") == 2
    assert "layer · pre · length 64" not in summary.behind


def test_an_arm_that_only_failed_is_named():
    summary = summarise(rows("layer", [2.0] * 3) + rows("rms", [None] * 3, status="failed"), VARIED)
    assert any("All runs of rms · pre failed" in w for w in summary.warnings)
    titles, *shown = overview(summary)
    assert shown[1] == ["rms · pre", *[""] * (len(titles) - 2), "failed"]
    assert titles[-1] == "ended"


def test_a_metric_does_not_replace_a_column():
    (run, outcome), *_ = rows("layer", [2.0])
    outcome.metrics = {"lr": 7.0, "wrong dates": 3.0}
    found = row(run, outcome)
    assert (found["lr"], found["metric_lr"], found["wrong_dates"]) == (1e-3, 7.0, 3.0)


@pytest.mark.parametrize(
    ("mean", "ties"), [(0.0, True), (0.99, True), (-1.0, True), (1.01, False), (-1.9, False)]
)
def test_a_tie_is_an_interval_that_holds_zero_and_no_more(mean, ties):
    assert Interval(mean, 1.0, 3).includes_zero is ties


def test_one_seed_is_no_tie():
    assert not Interval(0.0, None, 1).includes_zero


def test_arms_apart_by_more_than_the_interval_are_no_tie():
    """By one and a half times the half-width: a wider rule would call it one."""
    gaps = [1.0 + spread for spread in (-0.27, 0.0, 0.27)]
    found = interval(gaps)
    assert 1.2 < found.mean / found.half < 1.8
    assert not found.includes_zero


@pytest.mark.parametrize("values", [[1.7e308] * 3, [1e308, -1e308, 1e308]])
def test_losses_beyond_all_measure_count_as_diverged(values):
    assert str(interval(values)) == "diverged"


def test_a_baseline_that_is_still_better_than_every_arm_is_said():
    """Not one that must be beaten: three bytes, a linear forecast."""
    made = rows("layer", [2.0, 2.01, 2.02]) + rows("rms", [2.5, 2.51, 2.52])
    assert not any("What is simpler" in warning for warning in summarise(made, VARIED).warnings)
    for _, outcome in made:
        outcome.baselines = {"a constant": PLATEAU, "a linear forecast": 1.5}
    summary = summarise(made, VARIED)
    assert summary.state == "recommendation"
    said = "What is simpler is still better: a linear forecast, 1.500; layer · pre, 2.010."
    assert said in summary.warnings
