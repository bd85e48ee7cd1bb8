"""What a rule says on rows: intervals, counts, equivalence, learning rates, what diverged, held-out parts."""

import json
import math
from dataclasses import replace

import pytest
from scipy import stats

from normkit.errors import NormkitError
from normkit.lab.design import all_studies
from normkit.lab.page.strip import strip
from normkit.lab.rules import Effect, Rows, Rule, by_chance, estimate, number, slope


def value(rows):
    return rows[0]["value"]


def made_up(*values):
    return [{"seed": seed, "value": found} for seed, found in enumerate(values)]


def verdict(rule, *values):
    return replace(rule, effect=value).judge(made_up(*values)).verdict


def good_and_bad(rule):
    """A number within the bounds of a rule, and one outside."""
    if rule.count:
        return 1.0, 0.0
    if rule.is_equivalence:
        return (rule.above + rule.below) / 2, rule.below + 10 * (rule.below - rule.above)
    bound = rule.above if rule.below is None else rule.below
    more, less = (bound * 2, bound / 2) if rule.log else (bound + 1, bound - 1)
    return (more, less) if rule.below is None else (less, more)


@pytest.mark.parametrize("name", all_studies())
def test_the_rules_of_a_study_decide_as_they_say_on_made_up_rows(name):
    for rule in all_studies()[name].rules:
        good, bad = good_and_bad(rule)
        assert rule.bound, rule.name
        assert verdict(rule, *[good] * 8) == "supported", rule.name
        assert verdict(rule, *[bad] * 8) == "not supported", rule.name
        assert verdict(rule, *[good, bad, good]) == "inconclusive", rule.name
        assert verdict(rule, good, good) == "inconclusive", "two seeds are too few"
        if not rule.count:
            assert verdict(rule, good, good, math.nan) == "inconclusive", rule.name


# Counts that their few seeds can support and not refute; frozen so, beside the hypotheses, and in the log.
ONE_SIDED = ("bias-before-norm.learnt", "why-batch-norm.sooner-", "warm-up.largest-")


@pytest.mark.parametrize("name", all_studies())
def test_the_seeds_of_a_study_are_enough_for_its_rules(name):
    found = all_studies()[name]
    for rule in found.rules:
        good, bad = good_and_bad(rule)
        assert verdict(rule, *[good] * found.seeds) == "supported", rule.name
        refuted = verdict(rule, *[bad] * found.seeds) == "not supported"
        assert refuted != f"{name}.{rule.name}".startswith(ONE_SIDED), rule.name
        assert refuted or rule.aside, rule.name


def test_more_seeds_decide_what_few_do_not():
    rule, noisy = Rule("some", "Above 0", value, above=0.0), [3.0, -1.0, 2.0]
    assert verdict(rule, *noisy) == "inconclusive"
    assert verdict(rule, *noisy * 10) == "supported"


def test_an_interval_of_ratios_is_that_of_their_logarithms():
    """Against scipy."""
    values = [3.0, 10.0, 10.0, 30.0]
    logs = [math.log(v) for v in values]
    low, high = stats.t.interval(0.95, 3, loc=sum(logs) / 4, scale=stats.sem(logs))
    found = estimate(values, log=True)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert found.mean == pytest.approx(stats.gmean(values))
    with pytest.raises(NormkitError, match="above 0"):
        estimate([1.0, 0.0], log=True)


def test_ratios_beyond_all_floats_decide_nothing_and_those_below_zero_are_named():
    rule = Rule("more", "", value, above=1.0, log=True)
    assert verdict(rule, 1e-200, 1.0, 1e200) == "inconclusive"
    rows = [{**row, "parts": [1.0, 2.0]} for row in made_up(-1.0, 1.0, 1.0)]
    ruling = rule.judge(rows)
    assert ruling.verdict == "inconclusive"
    assert ruling.said == "cannot be computed: a ratio got -1."
    assert 'class="mean"' not in strip(rule, ruling)
    json.dumps(ruling.as_dict(), allow_nan=False)


def test_a_rule_that_divides_by_zero_decides_nothing_and_says_so():
    ruling = Rule("more", "", lambda rows: 1 / rows.get("value"), above=1.0).judge(made_up(0.0, 1.0, 2.0))
    assert (ruling.verdict, ruling.finding) == ("inconclusive", "")
    assert ruling.said == "cannot be computed: float division by zero"


def test_a_ruling_without_a_number_is_stored_as_json_that_others_read():
    ruling = Rule("more", "", value, above=1.0).judge(made_up(math.inf, 1.0, math.nan))
    assert json.dumps(ruling.as_dict(), allow_nan=False)


def test_no_difference_is_claimed_by_two_one_sided_tests_at_five_percent():
    """Against scipy's t-tests, on samples around the bound."""
    import torch

    rule = Rule("equal", "Less than 1 apart", value, -1.0, 1.0)
    outcomes = set()
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        sample = (0.4 + torch.randn(6, generator=generator)).tolist()
        both = max(
            stats.ttest_1samp(sample, -1.0, alternative="greater").pvalue,
            stats.ttest_1samp(sample, 1.0, alternative="less").pvalue,
        )
        said = verdict(rule, *sample)
        assert (said == "supported") == (both < 0.05)
        outcomes.add(said)
    assert {"supported", "inconclusive"} <= outcomes


def test_a_difference_that_is_there_is_not_called_none():
    rule = Rule("equal", "Less than 1 apart", value, -1.0, 1.0)
    assert verdict(rule, 2.0, 2.1, 1.9, 2.0) == "not supported"
    assert verdict(rule, 1.0, 1.1, 0.9, 1.0) == "inconclusive"
    said = replace(rule, effect=value).judge(made_up(0.1, 0.2, 0.3)).said
    assert said == "0.200 (-0.0484 to 0.448); 90 %: 0.0314 to 0.369"


def test_a_count_is_judged_by_its_own_interval():
    """Against scipy's exact interval."""
    rule = Rule("most", "Most seeds do", value, above=0.5, count=True)
    ruling = replace(rule, effect=value).judge(made_up(*[True] * 5, False))
    exact = stats.binomtest(5, 6).proportion_ci(0.95, method="exact")
    assert (ruling.effect.low, ruling.effect.high) == pytest.approx((exact.low, exact.high))
    assert ruling.said == "5 of 6 seeds"
    assert ruling.verdict == "inconclusive"
    assert verdict(rule, *[True] * 6) == "supported"
    assert verdict(rule, *[False] * 6) == "not supported"
    assert rule.bound == "> 50 % of seeds"


def runs(losses, *, name="a", validation=None, status="ok", parts=None):
    """Rows of an arm: by learning rate, one loss a seed."""
    return [
        {
            "seed": seed,
            "arm": name,
            "lr": lr,
            "status": status,
            "plateau": 9.0,
            "validation_loss": (validation or losses)[lr][seed],
            **({"loss": loss} if status == "ok" else {}),
            **({"parts": parts[seed]} if parts else {}),
        }
        for lr, found in losses.items()
        for seed, loss in enumerate(found)
    ]


def test_a_learning_rate_is_chosen_by_validation_and_once_for_all_seeds():
    held_out = {0.1: [1.0, 5.0, 1.0], 0.2: [3.0, 3.0, 3.0]}
    validation = {0.1: [3.0, 3.0, 3.0], 0.2: [2.0, 4.0, 2.0]}  # seed 1 alone would choose the other
    rows = runs(held_out, validation=validation)
    ruling = Rule("best", "", lambda r: r.best("loss", arm="a"), above=0.0).judge(rows)
    assert ruling.values == [3.0, 3.0, 3.0]


def test_a_run_that_diverged_counts_as_its_worst_baseline_and_the_ruling_says_so():
    rows = [*runs({0.1: [1.0, 1.0, 1.0]}), *runs({0.1: [1.0, 1.0, 1.0]}, name="b", status="diverged")]
    ruling = Rule("gap", "", lambda r: r.get("loss", arm="b") - r.get("loss", arm="a"), above=0.0).judge(rows)
    assert ruling.values == [8.0, 8.0, 8.0]
    assert len(ruling.replaced) == 3
    assert ruling.said.endswith("; 3 runs diverged and count as the worst baseline")
    assert Rule("own", "", lambda r: r.get("loss", arm="a"), above=0.0).judge(rows).replaced == ()


def test_the_sampling_error_of_the_held_out_data_is_in_the_interval():
    """The jackknife of a mean is its standard error, and cancels where two arms share the parts. The seeds
    hold out other data each, so that of all of them is a third of that of one in its square."""
    part = [1.0, 2.0, 3.0, 4.0]
    same = runs({0.1: [2.5, 2.5, 2.5]}, parts=[part] * 3)
    lone = Rule("loss", "", lambda r: r.get("loss", arm="a"), above=0.0).judge(same)
    half = stats.t.ppf(0.975, 2) * stats.sem(part) / 3**0.5
    assert (lone.effect.low, lone.effect.high) == pytest.approx((2.5 - half, 2.5 + half))
    shared = lone.rule.judge(same, divided=False).effect
    assert shared.high == pytest.approx(2.5 + half * 3**0.5), "of the same data no seed makes it smaller"
    other = runs({0.1: [3.5, 3.5, 3.5]}, name="b", parts=[[p + 1 for p in part]] * 3)
    gap = Rule("gap", "", lambda r: r.get("loss", arm="b") - r.get("loss", arm="a"), above=0.0)
    found = gap.judge([*same, *other]).effect
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))


def test_no_part_is_left_out_of_one_side_alone():
    """A baseline is one number, of the same data: parts of the other side alone would not cancel."""
    rows = runs({0.1: [2.5, 2.5, 2.5]}, parts=[[1.0, 2.0, 3.0, 4.0]] * 3)
    rows = [{**row, "baseline_mean": 3.0} for row in rows]
    ahead = Rule("ahead", "", lambda r: r[0]["baseline_mean"] - r.get("loss", arm="a"), above=0.0)
    found = ahead.judge(rows).effect
    assert (found.low, found.high) == (0.5, 0.5)


def test_rows_answer_precisely_or_not_at_all():
    rows = Rows([{"a": 1, "x": 2.0}, {"a": 2, "x": 5.0}])
    assert rows.get("x", a=2) == 5
    assert rows.column("x") == [2.0, 5.0]
    with pytest.raises(NormkitError, match="has 2 values"):
        rows.get("x")
    with pytest.raises(NormkitError, match="has 0 values"):
        rows.get("x", a=3)
    with pytest.raises(NormkitError, match="has no row"):
        rows.best("x", a=3)


def test_numbers_are_said_with_the_digits_that_were_asked_for():
    assert [number(0.12345, 2), number(123.0, 2), number(0.0, 2), number(-45.67)] == [
        "0.12",
        "120",
        "0",
        "-45.7",
    ]
    assert Effect(0.1234, 0.1, 0.15).say("nats", 2) == "0.12 nats (0.10 to 0.15)"
    assert Effect(1.0, 1.0, 1.0).say() == "1 (every seed)"


def test_a_slope_is_that_of_least_squares():
    x, y = [1.0, 2.0, 4.0, 7.0], [2.0, 1.0, 5.0, 6.0]
    assert slope(x, y) == pytest.approx(stats.linregress(x, y).slope)
    assert slope([1, 2, 4], [3, 6, 12], log=True) == pytest.approx(1.0)


def test_how_many_rules_would_pass_by_chance_is_what_a_simulation_gives():
    import torch

    one = Rule("one", "", value, above=0.0)
    torch.manual_seed(0)
    passed = sum(verdict(one, *torch.randn(5).tolist()) == "supported" for _ in range(2000))
    assert passed / 2000 == pytest.approx(by_chance([one]), abs=0.012)
    assert by_chance([one, Rule("two", "", value, -1, 1)]) == pytest.approx(0.075)


def test_a_finding_is_chosen_by_the_verdict():
    rule = Rule("x", "", value, above=0.0, unit="nats", yes="Higher by {effect}.", no="Lower by {less}.")
    assert rule.judge(made_up(0.123, 0.123, 0.123)).finding == "Higher by 0.12 nats (every seed)."
    assert rule.judge(made_up(-0.123, -0.123, -0.123)).finding == "Lower by 0.12 nats (every seed)."
    assert rule.judge(made_up(1.0, -1.0, 0.0)).finding == ""


@pytest.mark.parametrize("name", all_studies())
def test_what_a_rule_says_to_a_reader_can_be_filled_in(name):
    for rule in all_studies()[name].rules:
        for text in (rule.yes, rule.no):
            filled = text.format(effect="1", less="2")
            assert "{" not in filled
            assert not text or text.endswith("."), (name, rule.name)
