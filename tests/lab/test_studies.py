"""The studies: each runs in its smallest form, its rules decide as they say, the ledger holds together."""

import ast
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import normkit as nk
from normkit.errors import NormkitError
from normkit.lab.claims import VERDICTS, claims, ledger
from normkit.lab.design import (
    FIRST_SEED,
    Cell,
    Effect,
    Rows,
    Rule,
    Ruling,
    all_studies,
    estimate,
    find_study,
)
from normkit.lab.studying import RESULTS, StudyResult, committed, study, verify
from normkit_studies.timing import take_turns

ROOT = Path(__file__).parent.parent.parent
NAMES = list(all_studies())
RULES = [(name, rule.name) for name, found in all_studies().items() for rule in found.rules]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """All studies in their smallest form, one seed, in this process."""
    results = study(
        *NAMES, seeds=1, quick=True, out=tmp_path_factory.mktemp("quick"), workers=0, progress=False
    )
    return {result.name: result for result in results}


@pytest.mark.parametrize("name", NAMES)
def test_every_study_runs_in_its_smallest_form_and_gives_no_verdict(name, quick):
    result = quick[name]
    assert result.rows
    assert result.verdict == "no verdict (smoke run)"
    assert set(result.rulings) == {rule.name for rule in result.study.rules}
    assert len(result.figures) == len(result.study.plots) >= 1
    for figure in result.figures:
        assert any(len(trace.y) for trace in figure.data), "it draws something"
    json.dumps(result.as_dict(), allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_study_says_what_it_asks_expects_does_and_what_would_refute_it(name):
    words = find_study(name).words
    assert all(len(words[part]) > 20 for part in ("Question", "Hypothesis", "Method", "Refuted if"))
    assert words["Title"].endswith("?") or len(words["Title"]) > 10


def good_and_bad(rule):
    """A number within the bounds of a rule, and one outside."""
    if rule.above is not None and rule.below is not None:
        return (rule.above + rule.below) / 2, rule.below + 10 * (rule.below - rule.above)
    bound = rule.above if rule.below is None else rule.below
    more, less = (bound * 2, bound / 2) if rule.log else (bound + 1, bound - 1)
    return (more, less) if rule.below is None else (less, more)


@pytest.mark.parametrize(("name", "rule_name"), RULES)
def test_a_rule_decides_as_it_says_on_made_up_rows(name, rule_name):
    rule = next(r for r in find_study(name).rules if r.name == rule_name)
    rule = replace(rule, effect=lambda rows: rows[0]["value"])
    good, bad = good_and_bad(rule)

    def verdict(*values):
        rows = {seed: Rows([{"value": value}]) for seed, value in enumerate(values)}
        return rule.judge(rows).verdict

    assert verdict(good, good, good) == "supported"
    assert verdict(bad, bad, bad) == "not supported"
    assert verdict(good, bad, good) == "inconclusive"
    assert verdict(good, good) == "inconclusive", "two seeds are too few"
    assert verdict(good, good, math.nan) == "inconclusive"
    assert rule.bound


def test_more_seeds_decide_what_few_do_not():
    rule = Rule("some", "Above 0", lambda rows: rows[0]["value"], above=0.0)

    def verdict(values):
        return rule.judge({seed: Rows([{"value": value}]) for seed, value in enumerate(values)}).verdict

    noisy = [3.0, -1.0, 2.0]
    assert verdict(noisy) == "inconclusive"
    assert verdict(noisy * 10) == "supported"


def test_an_interval_of_ratios_is_that_of_their_logarithms():
    """Against scipy."""
    from scipy import stats

    values = [3.0, 10.0, 10.0, 30.0]
    logs = [math.log(v) for v in values]
    low, high = stats.t.interval(0.95, 3, loc=sum(logs) / 4, scale=stats.sem(logs))
    found = estimate(values, log=True)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert found.mean == pytest.approx(stats.gmean(values))
    with pytest.raises(NormkitError, match="above 0"):
        estimate([1.0, 0.0], log=True)


def test_seeds_that_decide_are_not_those_for_trying_out():
    for found in all_studies().values():
        assert found.seeds >= 3
        assert min(work.seed for work in found.work()) == FIRST_SEED


@pytest.mark.parametrize(
    ("verdicts", "wanted"),
    [
        (["supported", "supported"], "supported"),
        (["supported", "inconclusive"], "inconclusive"),
        (["inconclusive", "not supported"], "not supported"),
    ],
)
def test_a_hypothesis_stands_if_all_its_rules_do(verdicts, wanted):
    rules = tuple(Rule(str(k), "", lambda rows: 0.0, above=0.0) for k in range(2))
    beside = Rule("beside", "", lambda rows: 0.0, above=0.0, aside=True)
    rulings = {str(k): Ruling(v, Effect(0.0), []) for k, v in enumerate(verdicts)}
    rulings["beside"] = Ruling("not supported", Effect(0.0), [])
    found = replace(find_study("cost"), rules=(*rules, beside))
    assert found.verdict(rulings) == wanted


def test_rows_answer_precisely_or_not_at_all():
    rows = Rows([{"a": 1, "x": 2.0}, {"a": 2, "x": 5.0}])
    assert rows.get("x", a=2) == 5
    assert rows.lowest("x") == 2
    with pytest.raises(NormkitError, match="has 2 values"):
        rows.get("x")
    with pytest.raises(NormkitError, match="has 0 values"):
        rows.get("x", a=3)


def test_a_best_learning_rate_at_the_edge_is_named():
    def rows(norm, *losses):
        rates = (1e-3, 3e-3, 1e-2)
        return [
            {"norm": norm, "depth": 6, "lr": lr, "loss": loss, "plateau": 3.0, "seed": 0}
            for lr, loss in zip(rates, losses, strict=True)
        ]

    some = [*rows("layer", 2.5, 2.0, 2.2), *rows("rms", 2.5, 2.3, 2.1), *rows("dyt", 3.0, 3.0, 3.0)]
    assert StudyResult(find_study("cost"), some, {}).edges == ["norm rms at 0.01"]


def test_calls_take_turns():
    order = []
    found = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, turns=3)
    assert "".join(order) == "ab" * 5, "two turns to warm up"
    assert set(found) == {"a", "b"}
    assert min(found.values()) > 0


def test_fewer_than_three_seeds_give_no_verdict(tmp_path):
    result = study("invariances", seeds=2, out=tmp_path, workers=0, progress=False)
    assert "fewer than 3 seeds" in result.verdict


def test_a_study_is_resumed_and_gives_the_same(tmp_path, monkeypatch):
    first = study("curvature", out=tmp_path, workers=0, progress=False)
    monkeypatch.setattr(Cell, "perform", lambda self: pytest.fail("it measures again"))
    assert study("curvature", out=tmp_path, workers=0, progress=False).rows == first.rows


def test_a_cell_is_known_by_the_code_of_its_study_and_of_what_that_takes_from_others(monkeypatch):
    from normkit_studies import base

    cell, other = Cell("amplification", (("placement", "pre"),)), Cell("numerics", (("placement", "pre"),))
    before = cell.key(""), other.key("")
    honest = base.pkgutil.get_data

    def edited(package, name):
        return honest(package, name) + (b"# edited" if name == "gradient_by_depth.py" else b"")

    monkeypatch.setattr(base.pkgutil, "get_data", edited)
    base._source.cache_clear()
    after = cell.key(""), other.key("")
    base._source.cache_clear()
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)


def test_studies_and_comparisons_share_their_runs(tmp_path):
    """A run is known by what it is, not by who asked for it."""
    from normkit.lab.plan import make_plan

    asked = make_plan(
        {"task": "text", "norm": "layer", "placement": "pre", "lr": 1e-3, "steps": 100, "seeds": [FIRST_SEED]}
    )
    (run,) = asked.runs
    assert run in find_study("max-learning-rate").work()
    assert run in find_study("rms-against-ln").work()


def test_an_unknown_study_gets_the_closest_name():
    with pytest.raises(NormkitError, match="did you mean 'batch-size'"):
        nk.lab.study("batchsize")
    with pytest.raises(NormkitError, match="got no name"):
        nk.lab.study()
    with pytest.raises(NormkitError, match="seeds got 0"):
        nk.lab.study("cost", seeds=0)


# The committed results


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_verdict_is_what_the_rules_give_on_the_stored_rows(name):
    path = RESULTS / f"{name}.json"
    assert path.exists(), "every study has committed results"
    stored = json.loads(path.read_text())
    again = StudyResult.load(path)
    assert len({row["seed"] for row in again.rows}) >= 3
    assert stored["verdict"] == again.verdict
    for rule, ruling in again.rulings.items():
        assert stored["rulings"][rule]["verdict"] == ruling.verdict
        assert stored["rulings"][rule]["mean"] == pytest.approx(ruling.effect.mean)
    assert {"code", "machine", "date"} <= set(stored["about"])


def test_a_changed_verdict_is_noticed():
    found = committed()["invariances"]
    assert verify([found]) == []
    rows = [{**row, "matches": 0.0} for row in found.rows]
    (line,) = verify([StudyResult(found.study, rows, found.about)])
    assert "not supported now" in line


# The ledger


def test_all_89_claims_are_there_in_order():
    assert [claim.number for claim in claims()] == list(range(1, 90))
    assert {claim.note for claim in claims()} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: str(claim.number))
def test_every_claim_has_one_piece_of_evidence_that_exists(claim):
    assert sum(map(bool, (claim.rule, claim.test, claim.paper))) == 1
    assert claim.text.endswith(".")
    assert claim.quote
    assert "\ufffd" not in claim.quote
    assert not claim.mended or claim.text not in claim.mended
    if claim.rule:
        name, _, rule = claim.rule.partition(".")
        assert rule in {r.name for r in find_study(name).rules}
        assert {claim.supported, claim.not_supported} <= set(VERDICTS)
    else:
        assert claim.verdict in VERDICTS
    if claim.test:
        path, _, function = claim.test.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if claim.paper:
        assert "arXiv:" in claim.paper


@pytest.fixture(scope="module")
def rows():
    return {row["number"]: row for row in ledger()}


@pytest.mark.parametrize("number", range(1, 90))
def test_a_claim_that_is_not_true_has_a_correction(number, rows):
    row = rows[number]
    assert row["verdict"] in VERDICTS
    assert row["verdict"] == "true" or len(row["correction"]) > 20


@pytest.mark.parametrize("number", range(1, 90))
def test_a_verdict_that_nobody_expected_is_explained(number, rows):
    row = rows[number]
    assert row["expected"] in VERDICTS
    assert row["verdict"] == row["expected"] or len(row["why"]) > 20
    assert row["verdict"] != row["expected"] or not row["why"], "there is nothing to explain"


@pytest.mark.parametrize("name", NAMES)
def test_a_study_names_the_claims_that_it_decides(name):
    assert list(find_study(name).claims) == [claim.number for claim in claims() if claim.study == name]


def test_an_inconclusive_rule_leaves_a_claim_open():
    result = committed()["invariances"]
    rows = [{**row, "matches": float(row["seed"] > FIRST_SEED)} for row in result.rows]
    changed = {**committed(), "invariances": StudyResult(result.study, rows, result.about)}
    before, after = (
        {row["number"]: row["verdict"] for row in ledger(results)} for results in (committed(), changed)
    )
    assert (before[61], after[61]) == ("true", "open")
