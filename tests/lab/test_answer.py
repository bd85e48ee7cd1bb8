"""The three states of an answer, on made-up rows whose answer is known: nothing that leaks, diverges or stays
at a baseline can win."""

from dataclasses import replace

import pytest
from lab.test_analysis import VARIED, rows

from normkit.lab.advice import changed, wider
from normkit.lab.analysis import summarise
from normkit.lab.intervals import interval


def answer(*parts, **settings):
    summary = summarise([row for part in parts for row in part], VARIED, "nats", **settings)
    return summary.answers[0]


def with_curve(made, *losses):
    """With these validation losses over the run."""
    for _, outcome in made:
        outcome.validation = [(20 * k, loss) for k, loss in enumerate(losses, start=1)]
    return made


def test_a_recommendation_has_a_winner_and_says_by_how_much():
    found = answer(rows("layer", [2.00, 2.01, 2.02]), rows("rms", [2.50, 2.51, 2.52]))
    assert (found.state, found.winner.label, found.choice) == ("recommendation", "layer · pre", found.winner)
    assert "behind by 0.500" in found.why
    assert not found.change


def test_a_tie_names_all_and_the_cheapest():
    layer, rms = rows("layer", [2.000, 2.010, 2.020]), rows("rms", [2.001, 2.012, 2.019])
    for _, outcome in layer:
        outcome.parameters = 1200
    for _, outcome in rms:
        outcome.parameters = 1000
    found = answer(layer, rms, rows("batch", [2.9, 2.91, 2.92]))
    assert (found.state, found.winner) == ("tie", None)
    assert found.choice.label == "rms · pre"
    assert "layer · pre and rms · pre differ by less than" in found.why
    assert "any of them will do" in found.why
    assert "They beat batch · pre by" in found.why


def test_a_difference_as_large_as_the_loss_is_no_tie_however_much_was_learnt():
    """A forecast of a trend: the mean is a hundred times further off than anything that was trained."""
    made = [rows("layer", [0.010, 0.011, 0.012]), rows("rms", [0.011, 0.010, 0.016])]
    for _, outcome in (row for part in made for row in part):
        outcome.baselines = {"the mean": 18.0}
        outcome.floor = 18.0
    assert answer(*made).state == "none"


def test_a_tie_of_equal_weights_goes_to_the_faster():
    layer, rms = rows("layer", [2.000, 2.010, 2.020]), rows("rms", [2.001, 2.012, 2.019])
    for _, outcome in rms:
        outcome.step_ms = 0.5
    assert answer(layer, rms).choice.label == "rms · pre"


def test_close_is_no_answer_and_the_seeds_that_would_tell_follow_from_the_spread():
    noisy = answer(rows("layer", [2.0, 2.2, 2.1]), rows("rms", [2.2, 2.1, 2.3]))
    assert (noisy.state, noisy.winner, noisy.choice) == ("none", None, None)
    assert noisy.open == ("layer · pre", "rms · pre")
    assert f"{noisy.change['seeds']} seeds should tell" in noisy.why
    noisier = answer(rows("layer", [2.0, 2.4, 2.1]), rows("rms", [2.2, 2.1, 2.4]))
    assert noisier.change.get("seeds", 99) > noisy.change["seeds"]


def test_what_leaks_is_refused_with_the_reason():
    cheating = rows("batch", [0.5, 0.5, 0.5])
    for _, outcome in cheating:
        outcome.leak = 0.3
    found = answer(cheating, rows("layer", [2.0, 2.01, 2.02]), rows("rms", [2.5, 2.51, 2.52]))
    assert (found.state, found.winner.label) == ("recommendation", "layer · pre")
    assert "batch · pre sees the future (earlier outputs change if a later" in found.why
    assert "refused as the answer" in found.why
    alone = answer(cheating)
    assert (alone.state, alone.winner) == ("none", None)


@pytest.mark.parametrize("status", ["diverged", "at baseline"])
def test_a_dead_arm_cannot_win(status):
    dead = rows("rms", [None if status == "diverged" else 3.0] * 3, status=status)
    found = answer(dead, rows("layer", [2.9, 2.91, 2.92]))
    assert (found.state, found.winner.label) == ("recommendation", "layer · pre")


def test_the_best_must_surely_be_below_the_baseline():
    """Below on average, and above with one seed: nobody should follow that."""
    found = answer(rows("layer", [2.5, 2.9, 3.0]), rows("rms", [3.0, 3.0, 3.0], status="at baseline"))
    assert (found.state, found.winner) == ("none", None)
    assert "layer · pre is below a constant by 0.200 ± 0.657" in found.why
    assert found.change == {"steps": 200}


def test_an_arm_at_the_baseline_that_is_as_good_forbids_a_recommendation():
    """One is a hair below the threshold, the other a hair above: that is no difference."""
    found = answer(
        rows("layer", [2.960, 2.961, 2.967]), rows("rms", [2.97, 2.969, 2.98], status="at baseline")
    )
    assert found.winner.label == "layer · pre", "apart by more than the seeds vary"
    found = answer(
        rows("layer", [2.960, 2.961, 2.967]), rows("rms", [2.975, 2.96, 2.98], status="at baseline")
    )
    assert (found.state, found.winner) == ("none", None)
    assert "rms · pre, which is not, is behind it by" in found.why
    assert f"About {found.change['seeds']} seeds should" in found.why
    assert found.open == ("layer · pre", "rms · pre")
    same = answer(
        rows("layer", [2.960, 2.970, 2.9795]), rows("rms", [2.984, 2.9675, 2.960], status="at baseline")
    )
    assert same.change == {"steps": 200}, "no number of seeds tells them apart"


def test_an_arm_that_was_pruned_because_it_leaks_is_refused_with_the_reason():
    leaking = rows("batch", [1.0], until=25)
    leaking[0][1].leak, leaking[0][1].status = 0.5, "stopped"
    found = answer(leaking, rows("layer", [2.0, 2.01, 2.02]), rows("rms", [2.5, 2.51, 2.52]))
    assert "batch · pre sees the future (earlier outputs change if a later" in found.why


def test_an_arm_of_which_one_seed_diverged_cannot_win():
    shaky = rows("rms", [1.0, 1.0]) + [(run, o) for run, o in rows("rms", [1.0, 1.0, None]) if run.seed == 2]
    shaky[-1][1].status = "diverged"
    assert answer(shaky, rows("layer", [2.0, 2.01, 2.02])).winner.label == "layer · pre"


def test_nothing_learnt_is_said_with_the_baseline_and_what_to_change():
    flat = with_curve(rows("layer", [3.0, 3.01, 3.02], status="at baseline"), 3.0, 3.0, 3.0, 3.0, 3.0)
    found = answer(flat)
    assert found.state == "none"
    assert "Nothing learnt anything" in found.why
    assert "a constant gets 3.000" in found.why
    assert "flat at the one learning rate" in found.why
    assert found.change == {"lr": "0.0001,0.000316,0.001,0.00316,0.01"}
    both = flat + with_curve(
        rows("layer", [3.02, 3.03, 3.04], lr=0.01, status="at baseline"), 3.0, 3.0, 3.0, 3.0, 3.0
    )
    assert "flat, at every learning rate" in answer(both).why
    assert not answer(both).change


def test_a_falling_curve_asks_for_the_steps_that_its_slope_says():
    made = with_curve(rows("layer", [2.95] * 3, status="at baseline"), 4.0, 3.6, 3.3, 3.1, 2.95)
    for _, outcome in made:
        outcome.baselines = {"unigram": 3.0, "bigram": 2.0}
        outcome.floor = 2.0
    found = answer(made)
    assert "no arm has learnt more than a table of pairs of bytes, which gets 2.000" in found.why
    # By the logarithm of the steps: from 40 to 100 it fell by 0.65, and 0.99 are missing to 2 % below 2.0;
    # as it falls ever more slowly, a third more.
    assert found.change["steps"] == pytest.approx(100 * 2.5 ** (1.3 * 0.99 / 0.65), rel=0.1)


def test_a_curve_that_has_just_begun_to_fall_is_not_called_flat():
    early = with_curve(rows("layer", [3.25] * 3, status="at baseline"), 3.35, 3.34, 3.32, 3.29, 3.25)
    for _, outcome in early:
        outcome.baselines, outcome.floor = {"unigram": 3.32, "bigram": 2.65}, 2.65
    found = answer(early)
    assert "still falls" in found.why
    assert "flat" not in found.why
    assert found.change == {"steps": 500}


def test_a_curve_that_comes_down_to_the_worst_baseline_names_that_one():
    made = with_curve(rows("layer", [3.31] * 3, status="at baseline"), 4.5, 4.0, 3.7, 3.5, 3.31)
    for _, outcome in made:
        outcome.baselines, outcome.floor = {"unigram": 3.3, "bigram": 2.6}, 2.6
    assert "has come down to a table of bytes, 3.300, and still falls a little" in answer(made).why


def test_all_diverged_asks_for_smaller_rates_and_keeps_those_that_are_done():
    made = rows("layer", [None] * 3, lr=0.1, status="diverged") + rows(
        "layer", [None] * 3, lr=0.01, status="diverged"
    )
    assert answer(made).change == {"lr": "0.0001,0.001,0.01,0.1"}


def test_a_wider_range_keeps_every_rate_that_is_done():
    made = [rows("layer", [2.5 - k / 10] * 3, lr=lr) for k, lr in enumerate((0.001, 0.00311, 0.00965, 0.03))]
    summary = summarise([row for part in made for row in part], VARIED)
    rates = [float(rate) for rate in wider(summary.arms, "largest").split(",")]
    assert rates[:4] == [0.001, 0.00311, 0.00965, 0.03]
    assert rates[4:] == pytest.approx([0.0933, 0.29], rel=0.01)
    (warning,) = [w for w in summary.warnings if "largest that was tried" in w]
    assert warning.endswith(wider(summary.arms, "largest"))


def test_two_rates_that_are_worlds_apart_are_widened_by_decades():
    made = rows("layer", [2.5] * 3, lr=1e-6) + rows("layer", [2.4] * 3, lr=0.03)
    assert wider(summarise(made, VARIED).arms, "largest") == "1e-06,0.03,0.3,3"


def test_held_out_noise_is_part_of_the_interval():
    """The seeds agree to a hair; twenty parts of the held-out data do not."""
    made = rows("layer", [2.0, 2.001, 2.002])
    narrow = summarise(made, VARIED).arms[0].best.loss.half
    for _, outcome in made:
        outcome.judged = [outcome.final_loss + (-1) ** k for k in range(20)]
    assert summarise(made, VARIED).arms[0].best.loss.half > 10 * narrow


def test_the_rate_is_chosen_by_validation_and_not_by_what_judges():
    good, lucky = rows("layer", [2.2] * 3, lr=1e-3), rows("layer", [2.0] * 3, lr=1e-2)
    for _, outcome in good:
        outcome.validation = [(100, 2.1)]
    for _, outcome in lucky:
        outcome.validation = [(100, 2.3)]
    (arm,) = summarise(good + lucky, VARIED).arms
    assert arm.best.lr == 1e-3


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("normkit compare --steps 100 --norm rms", "normkit compare --norm rms --steps 300"),
        (
            "normkit.lab.compare(task=T(steps=5), norm=[partial(f, a=[1]), 'rms'], steps=9)",
            "normkit.lab.compare(task=T(steps=5), norm=[partial(f, a=[1]), 'rms'], steps=300)",
        ),
        ("normkit.lab.compare(data='a, b(', steps=9)", "normkit.lab.compare(data='a, b(', steps=300)"),
        ("normkit compare --steps=100", "normkit compare --steps 300"),
        (
            "normkit compare --steps 100 --out 'a b' --prune",
            "normkit compare --out 'a b' --prune --steps 300",
        ),
        ("normkit compare", "normkit compare --steps 300"),
        ("normkit.lab.compare(task='text', steps=100)", "normkit.lab.compare(task='text', steps=300)"),
        ("normkit.lab.compare(steps=100, norm='rms')", "normkit.lab.compare(norm='rms', steps=300)"),
        ("normkit.lab.compare()", "normkit.lab.compare(steps=300)"),
    ],
)
def test_the_next_command_is_the_last_with_one_setting_changed(command, wanted):
    assert changed(command, {"steps": 300}) == wanted


def test_seeds_that_would_never_tell_are_not_asked_for():
    assert interval([0.0, 10.0, -10.0]).seeds_for(half=0.01) is None
    assert interval([0.0, 0.2, 0.1]).seeds_for(half=0.1) == 7
    assert interval([0.0, 0.2, 0.1], sampling=0.01).seeds_for(half=0.1) is None, "that no seed makes smaller"


def test_both_ends_of_a_range_are_widened_by_one_command():
    made = [*rows("layer", [2.0, 2.01, 2.02], lr=0.01), *rows("layer", [2.5, 2.51, 2.52], lr=0.1)]
    made += [*rows("rms", [2.5, 2.51, 2.52], lr=0.01), *rows("rms", [2.001, 2.012, 2.019], lr=0.1)]
    (said,) = summarise(made, VARIED, "nats").warnings
    assert said.startswith(
        "The best learning rate of rms · pre is the largest, and that of layer · pre is the smallest"
    )
    assert said.endswith("--lr 0.0001,0.001,0.01,0.1,1,10")


def test_one_seed_recommends_nothing_even_where_nothing_else_can_win():
    found = answer(rows("layer", [2.0]), rows("rms", [3.0], status="at baseline"))
    assert (found.state, found.winner, found.change) == ("none", None, {"seeds": 3})


def test_a_lost_baseline_and_a_single_row_that_judges_are_said():
    made = rows("layer", [2.0, 2.01, 2.02])
    for _, outcome in made:
        outcome.baselines, outcome.floor, outcome.judged = {}, None, [outcome.final_loss]
    said = " ".join(summarise(made, VARIED).warnings)
    assert "No baseline is known" in said
    assert "One row judges" in said


def test_arms_that_all_diverged_in_short_runs_are_not_called_unfinished():
    made = rows("layer", [None], lr=1e30, status="diverged") + rows(
        "layer", [None], lr=1e31, status="diverged"
    )
    made = [(replace(run, steps=100, until=25), outcome) for run, outcome in made]
    found = answer(made)
    assert "every arm diverged" in found.why
    assert found.change["lr"].endswith("1e+30,1e+31")
