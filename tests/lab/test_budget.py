"""A budget of time: what it plans, what it prunes, and how long it says that it will take."""

import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import normkit as nk
from normkit.errors import NormkitError
from normkit.lab import budget, halving
from normkit.lab.answer import Answer
from normkit.lab.comparison import Comparison
from normkit.lab.jobs import asked
from normkit.lab.measuring import Outcome
from normkit.lab.pace import Pace
from normkit.lab.plan import make_plan
from normkit.lab.run import Run
from normkit.lab.sweep import _typed, compare

OWN = "lab.own_task:Small"
RUNS = [
    Run(norm=norm, lr=lr, seed=seed, steps=400)
    for seed in range(3)
    for norm in ("layer", "rms")
    for lr in (1e-3, 3e-3, 1e-2, 3e-2)
]


def cost(run):
    return 1.0 + 0.01 * run.last


def outcome(loss, **changes):
    status = "diverged" if loss is None else "stopped"
    return Outcome(status, validation=[(1, loss)], baselines={"a constant": 3.0}, **changes)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), (60, 60), ("45", 45)]
)
def test_a_time_is_read_as_people_write_it(text, seconds):
    assert budget.budget_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "-3m", "0", 0, "10 parsecs", "1e9h", True, [], "5m3"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(NormkitError, match=r"budget= got .*\n.*expected: a time"):
        budget.budget_seconds(text)


def test_each_arm_keeps_the_better_half_of_its_rates():
    rounds = halving.rounds(RUNS)
    first = next(rounds)
    assert {(run.seed, run.until) for run in first} == {(0, 100)}
    assert len(first) == 8
    second = rounds.send([(run, outcome(2.0 + abs(math.log10(run.lr / 3e-3)) / 4.8)) for run in first])
    assert {run.until for run in second} == {200}
    assert sorted((run.norm, run.lr) for run in second) == [
        *(("layer", 1e-3), ("layer", 3e-3)),
        *(("rms", 1e-3), ("rms", 3e-3)),
    ]
    last = rounds.send([(run, outcome(2.0 + 100 * run.lr)) for run in second])
    assert sorted((run.norm, run.lr, run.seed) for run in last) == [
        (norm, 1e-3, seed) for norm in ("layer", "rms") for seed in range(3)
    ]
    assert all(run.until is None for run in last)


def test_rates_that_are_close_go_on_so_that_arms_are_compared_at_the_same():
    """Losses of a real sweep after a quarter of the steps; in the end 0.00311 was best for both arms."""
    early = {
        "layer": {1e-3: 2.894, 3e-3: 2.667, 1e-2: 2.610, 3e-2: 2.623},
        "rms": {1e-3: 2.902, 3e-3: 2.627, 1e-2: 2.596, 3e-2: 2.672},
    }
    results = [(run, outcome(early[run.norm][run.lr])) for run in RUNS if run.seed == 0]
    results.append((Run(norm="layer", placement="deepnorm", lr=5e-3, steps=400), outcome(2.501)))
    results = [(run, replace(o, baselines={"unigram": 3.2})) for run, o in results]
    kept = sorted((run.norm, run.lr) for run in halving.survivors(results) if run.lr != 5e-3)
    assert kept == [*(("layer", lr) for lr in (3e-3, 1e-2, 3e-2)), ("rms", 3e-3), ("rms", 1e-2)]
    last = sorted((run.norm, run.lr) for run in halving.survivors(results, last=True) if run.lr != 5e-3)
    assert last == [("layer", 1e-2), ("layer", 3e-2), ("rms", 3e-3), ("rms", 1e-2)]
    nothing = [(run, outcome(3.0 + run.lr)) for run in RUNS if run.seed == 0]
    assert {run.lr for run in halving.survivors(nothing)} == {1e-3, 3e-3}, "nothing is learnt: the half"


def test_an_arm_that_cannot_win_goes_no_further():
    """It leaks, diverged at every rate, or is behind by more than a quarter of what the best has learnt."""
    first = next(halving.rounds(RUNS))
    for rms in (outcome(1.0, leak=0.5), outcome(None), outcome(2.3)):
        results = [(run, outcome(2.0) if run.norm == "layer" else rms) for run in first]
        assert {run.norm for run in halving.survivors(results)} == {"layer"}
    close = [(run, outcome(2.0 if run.norm == "layer" else 2.2)) for run in first]
    assert {run.norm for run in halving.survivors(close)} == {"layer", "rms"}


def test_before_anything_is_learnt_no_arm_is_dropped():
    """After twenty steps the best of twelve was a hundredth below the baseline, and ten were dropped."""
    first = next(halving.rounds(RUNS))
    results = [(run, outcome(2.97 if run.norm == "layer" else 3.1)) for run in first]
    assert {run.norm for run in halving.survivors(results)} == {"layer", "rms"}
    assert len(halving.survivors(results)) == 4, "of each arm the half"


def test_a_second_rate_that_is_close_is_trained_in_full_too():
    """Half of the steps and one seed do not decide between them."""
    results = [(run, outcome(2.0 + 10 * run.lr)) for run in RUNS if run.seed == 0 and run.lr < 5e-3]
    far = [(run, outcome(2.0 + 60 * run.lr)) for run, _ in results]
    assert {run.lr for run in halving.survivors(far, last=True)} == {1e-3}
    assert {run.lr for run in halving.survivors(results, last=True)} == {1e-3, 3e-3}


def test_when_time_is_short_second_rates_go_before_arms():
    runs = [run for run in RUNS if run.lr < 5e-3]
    results = [(run, outcome(2.0 + run.lr + (run.norm == "rms") / 100)) for run in runs if run.seed == 0]

    def affordable(seconds, more=()):
        said = []
        kept = budget._affordable([*runs, *more], results, lambda arm: 0.0, seconds, cost, said.append)
        return {(run.norm, run.lr) for run in kept}, said

    assert len(affordable(60.0)[0]) == 4
    assert affordable(50.0)[0] == {("layer", 1e-3), ("layer", 3e-3), ("rms", 1e-3)}
    assert affordable(1.0) == ({("layer", 1e-3), ("rms", 1e-3)}, []), "two arms stay"


def test_when_all_have_diverged_nothing_longer_is_tried():
    rounds = halving.rounds(RUNS)
    first = next(rounds)
    with pytest.raises(StopIteration):
        rounds.send([(run, outcome(None)) for run in first])


def test_steps_fill_the_first_part_of_a_budget():
    steps = budget.fitting_steps(RUNS, cost, 200.0, most=4000)
    assert budget.planned_cost(RUNS, cost, steps) <= budget.FIRST * 200
    assert budget.planned_cost(RUNS, cost, math.ceil(steps * 1.34)) > budget.FIRST * 200
    assert budget.fitting_steps(RUNS, cost, 1e9, most=4000) == 4000
    assert budget.fitting_steps(RUNS, cost, 1.0, most=4000) == 0


def test_the_planned_cost_is_that_of_the_rounds():
    total, rounds = 0.0, halving.rounds(RUNS)
    runs = next(rounds)
    while True:
        total += sum(map(cost, runs))
        try:
            runs = rounds.send([(run, outcome(2.0 + 100 * run.lr)) for run in runs])
        except StopIteration:
            break
    shorter, in_full = 2 * cost(replace(RUNS[0], until=200)), 6 * cost(RUNS[0])
    more = budget.MORE * (shorter + in_full)  # here no rate was close
    assert budget.planned_cost(RUNS, cost, 400) == pytest.approx(total + more)


class Verdict:
    """A summary that finds two arms close."""

    def __init__(self, arms, seeds):
        self.arms = arms
        labels = tuple(arm.label for arm in arms)
        self.answers = (Answer("none", "", change={"seeds": seeds}, open=labels),)


def played(seconds, judge):
    """All rounds, with results that please everyone."""
    said, stored = [], set()
    rounds = budget.rounds(
        RUNS,
        (),
        seconds=lambda: seconds,
        cost=lambda run: 0.0 if run in stored else cost(run),
        judge=judge,
        say=said.append,
    )
    done, runs = [], next(rounds)
    while True:
        done.append(runs)
        stored.update(runs)
        try:
            runs = rounds.send([(run, outcome(2.0 + (run.norm == "rms") / 10)) for run in runs])
        except StopIteration:
            return done, said


def verdict(results):
    from normkit.lab.analysis import summarise

    made = [(run, replace(o, status="ok", final_loss=2.0 + run.seed / 10)) for run, o in results]
    return Verdict(summarise(made, ["norm", "lr", "seed"]).arms, seeds=7)


def test_what_is_left_goes_into_seeds_for_the_arms_that_are_close():
    done, said = played(1000.0, verdict)
    assert sorted({run.seed for run in done[-1]}) == [3, 4, 5, 6]
    assert {run.norm for run in done[-1]} == {"layer", "rms"}
    assert len(said) == 1
    assert "4 more seeds" in said[0]


def test_more_seeds_than_there_is_time_for_are_not_begun():
    done, _ = played(21.0, verdict)  # a pair of runs costs 10
    assert sorted({run.seed for run in done[-1]}) == [3, 4]
    done, _ = played(0.0, verdict)
    assert len(done) == 3


def test_seeds_that_an_earlier_budget_has_paid_for_count_and_the_next_come_after_them():
    """Else a longer budget would forget them, do nothing, and ask for a longer one."""
    stored = {replace(run, seed=seed) for run in RUNS for seed in (3, 4)}
    rounds = budget.rounds(
        *(RUNS, ()),
        seconds=lambda: 25.0,
        cost=lambda run: 0.0 if run in stored else cost(run),
        judge=verdict,
        say=lambda _: None,
    )
    done, runs = [], next(rounds)
    while runs:
        done.append(runs)
        stored.update(runs)
        try:
            runs = rounds.send([(run, outcome(2.0 + 100 * run.lr)) for run in runs])
        except StopIteration:
            break
    assert [sorted({run.seed for run in runs}) for runs in done[-2:]] == [[3, 4], [5, 6]]


def test_a_decided_answer_ends_it():
    done, said = played(1000.0, lambda results: None)
    assert len(done) == 3
    assert said == []


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def simulated(slowness, *, workers=2, runs=40, work=2.0, early=()):
    """A sweep in which time passes as told; the errors of the estimate at every tenth, from a fifth on."""
    clock = Clock()
    keys = [str(k) for k in range(runs)]
    pace = Pace(dict.fromkeys(keys, work), {k: int(k) % 8 for k in keys}, workers=workers, clock=clock)
    waiting, going, said = list(keys), {}, []
    while waiting or going:
        while waiting and len(going) < workers:
            going[waiting.pop(0)] = 0.0
        clock.now += 0.1
        for key in list(going):
            going[key] += 0.1 / slowness(clock.now)
            whole = 0.3 if int(key) % 8 in early else 1.0
            share = min(going[key] / work, whole)
            pace.advance(key, share)
            if share >= whole:
                del going[key]
                pace.finish(key, share)
        said.append((clock.now, pace.left()))
    end = clock.now
    return [left / (end - when) - 1 for when, left in said if 0.2 < when / end < 0.9]


@pytest.mark.parametrize("early", [(), (1, 5)])
@pytest.mark.parametrize("load", [1.0, 3.0])
def test_the_time_left_is_right_within_a_quarter_under_load(load, early):
    errors = simulated(lambda now: load, early=early)
    assert max(map(abs, errors)) < 0.25


def test_the_time_left_is_right_within_a_quarter_soon_after_the_load_changes():
    errors = simulated(lambda now: 1.0 if now < 30 else 2.0, runs=200)
    assert max(map(abs, errors[len(errors) // 2 :])) < 0.25


def test_a_budget_ends_in_time_and_the_same_again_trains_nothing(tmp_path, monkeypatch):
    settings = {"out": tmp_path, "workers": 0, "progress": False}
    first = compare(OWN, budget="20s", **settings)
    assert first.about["seconds"] < 25
    assert first.about["planned"]["steps"] >= budget.FEWEST
    assert first.about["prune"]
    monkeypatch.setattr("normkit.lab.worker.measure", lambda *_, **__: pytest.fail("it trains"))
    again = compare(OWN, budget="20s", **settings)
    assert (again.why, again.about) == (first.why, first.about)


def test_a_budget_that_was_stopped_goes_on_with_its_plan_and_adds_to_its_time(tmp_path, monkeypatch):
    settings = {"out": tmp_path, "workers": 0, "progress": False, "budget": "20s"}
    from normkit.lab import worker

    real, count = worker.measure, []

    def interrupted(*args, **kwargs):
        count.append(1)
        if len(count) > 6:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(worker, "measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compare(OWN, **settings)
    half = nk.lab.Comparison.load(tmp_path)
    assert half.state == "none"
    assert "missing" in half.why
    whole = compare(OWN, **settings)
    assert whole.about["planned"] == half.about["planned"]
    assert whole.about["seconds"] > half.about["seconds"] > 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"budget": "5m", "steps": 10}, "expected: one of them"),
        ({"budget": "1s", "workers": 0}, "fix: --budget"),
        ({"task": "stream", "budget": "5m"}, "whose data change with time"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(settings, text, tmp_path):
    with pytest.raises(NormkitError) as error:
        compare(**{"task": OWN, "out": tmp_path, "progress": False, **settings})
    assert text in str(error.value)


def test_time_that_is_short_leaves_two_arms_of_each_problem():
    """Losses of different problems are not compared: one of them would lose all its arms."""
    runs = [
        Run(norm=norm, lr=1e-3, steps=400, depth=depth, seed=seed)
        for depth in (2, 4)
        for norm in ("layer", "rms", "none")
        for seed in range(3)
    ]
    results = [(run, outcome(0.1 if run.depth == 2 else 2.5)) for run in runs if run.seed == 0]
    kept = budget._affordable(runs, results, lambda arm: 0.0, 1.0, cost, lambda _: None, ["depth"])
    assert {run.depth for run in kept} == {2, 4}
    assert len({(run.depth, run.norm) for run in kept}) == 4


class Coded:
    """A run with code of its own."""

    def __init__(self, code):
        self.code = code

    def config(self):
        return {}


def test_a_sweep_whose_second_norm_was_edited_is_another_sweep():
    marks = {asked({}, [Coded("same"), Coded(second)], {}, False) for second in ("before", "after")}
    assert len(marks) == 2


@pytest.mark.parametrize("seeds", [3, 3.0, np.int64(3), "3", [0, 1, 2], range(3)])
def test_a_number_of_seeds_is_one_whatever_its_type(seeds):
    plan = make_plan({"task": OWN, "seeds": seeds, "lr": 1e-3, "norm": "rms"})
    assert [run.seed for run in plan.runs] == [0, 1, 2]


def advised(about, change, seeds=(0, 1, 2)):
    """The command of a comparison that has no answer."""
    results = [(Run(seed=seed, steps=40), outcome(2.0)) for seed in seeds]
    made = Comparison({"command": "normkit compare", "finished": "now", **about}, results, Path())
    vars(made)["summary"] = SimpleNamespace(answers=[Answer("none", "", change=change)])
    return made.command


def test_an_advice_that_is_no_matter_of_time_is_kept_in_a_budget():
    assert advised({"budget": 60}, {"norm": "layer,rms"}) == "normkit compare --norm layer,rms"


def test_seeds_that_were_named_are_kept_and_added_to():
    named = advised({"budget": None}, {"seeds": 5}, seeds=(11, 12, 13))
    assert named == "normkit compare --seeds 11,12,13,14,15"
    assert advised({"budget": None}, {"seeds": 5}) == "normkit compare --seeds 5"


def test_steps_that_no_budget_would_reach_are_asked_for_as_steps():
    about = {"budget": 60, "task": "digits", "planned": {"steps": 40}}
    assert advised(about, {"steps": 80}) == "normkit compare --budget 2m"
    most = budget.most_steps("digits")
    assert advised(about, {"steps": most + 1}) == f"normkit compare --steps {most + 1} --prune"
    assert advised(about, {"seeds": 40}) == "normkit compare --steps 40 --prune --seeds 40"


def test_one_seed_gives_no_answer_and_three_are_asked_for():
    assert advised({"budget": None}, {"steps": 80}, seeds=(0,)) == "normkit compare --steps 80 --seeds 3"
    assert advised({"budget": None}, {"seeds": 7}, seeds=(0,)) == "normkit compare --seeds 7"


def test_what_has_no_name_is_typed_as_dots():
    class Local:
        pass

    given = [Local, lambda dim: None, nk.Placement(pre=True), "rms", Local(), partial(Local, eps=1.0)]
    assert _typed(given) == "[Local, ..., Placement(pre=True), 'rms', ..., ...]"


def test_what_is_typed_stands_above_the_file(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from normkit.cli.compare import compare as command

    (tmp_path / "sweep.toml").write_text('task = "text"\nbudget = "10s"\n')
    seen = []
    monkeypatch.setattr(
        "normkit.lab.sweep.compare_settings", lambda given, *_, **__: seen.append(given) or sys.exit()
    )
    CliRunner().invoke(command, [str(tmp_path / "sweep.toml"), "--steps", "50"])
    assert seen == [{"task": "text", "steps": 50}]
