"""The committed results and the ledger: claims, and what decides them."""

import ast
import contextlib
import json
import re
from pathlib import Path

import pytest

from normkit.lab.claims import KINDS, NOTES, VERDICTS, claims, ledger
from normkit.lab.design import FIRST_SEED, all_studies, find_study
from normkit.lab.study_result import StudyResult, committed, results_folder
from normkit.lab.studying import verify

ROOT = Path(__file__).parent.parent.parent
NAMES = list(all_studies())
CLAIMS = claims()


# The committed results


@pytest.mark.parametrize("path", sorted(results_folder().glob("*.json")), ids=lambda path: path.stem)
def test_the_stored_verdict_is_what_the_rules_give_on_the_stored_rows(path):
    stored = json.loads(path.read_text())
    again = StudyResult.load(path)
    assert path.stem == again.name in NAMES
    assert stored["verdict"] == again.verdict
    assert set(stored["rulings"]) == set(again.rulings)
    for rule, ruling in again.rulings.items():
        assert not ruling.problem
        assert stored["rulings"][rule]["verdict"] == ruling.verdict
        assert stored["rulings"][rule]["mean"] == pytest.approx(ruling.effect.mean)
    for sitting in again.about["sittings"]:
        assert sitting["rows"] > 0
        assert sitting["commit"]
        assert sitting["rules_commit"]
        assert "with changes" not in sitting["commit"], "the rules were frozen in a commit"


@pytest.mark.parametrize("name", NAMES)
def test_every_study_that_is_not_long_has_a_complete_result(name):
    found = find_study(name)
    assert found.is_long or committed()[name].is_complete


def test_the_quick_studies_together_take_no_more_than_forty_minutes_of_two_cores():
    quick = [result for name, result in committed().items() if not find_study(name).is_long]
    assert sum(result.about["seconds"] for result in quick) < 2 * 40 * 60


def test_a_changed_verdict_is_noticed():
    found = committed()["invariances"]
    assert verify([found]) == []
    rows = [{**row, "matches": 0.0} for row in found.rows]
    (line, *_) = verify([StudyResult(found.study, rows, found.about)])
    assert "not supported now" in line


# The claims


def test_all_claims_are_there_in_order():
    assert [claim.number for claim in CLAIMS] == list(range(1, 98))
    assert {claim.note for claim in CLAIMS} == set(NOTES)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: str(claim.number))
def test_every_claim_has_one_piece_of_evidence_that_exists(claim):
    assert sum(map(bool, (claim.rule, claim.test, claim.paper))) == 1
    assert claim.text.endswith(".")
    assert claim.quote
    assert "\ufffd" not in claim.quote
    assert claim.text not in claim.mended
    if claim.rule:
        name, _, rule = claim.rule.partition(".")
        assert rule in {r.name for r in find_study(name).rules}
        assert {claim.supported, claim.not_supported} <= set(VERDICTS)
        assert not claim.verdict, "the rule gives it"
    else:
        assert claim.verdict in VERDICTS
    if claim.test:
        path, _, function = claim.test.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if claim.paper:
        assert "arXiv:" in claim.paper


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: str(claim.number))
def test_the_kind_of_the_evidence_is_that_of_what_decides(claim):
    assert claim.kind in KINDS
    if claim.rule:
        assert claim.kind == find_study(claim.study).kind or (claim.kind == "proved" and claim.identity)
    elif claim.paper:
        assert claim.kind in ("cited", "proved")
    else:
        assert claim.kind in ("checked", "proved")
    assert bool(claim.identity) == (claim.kind == "proved")
    assert not claim.tautology or claim.kind == "proved", "what is true by definition needs no measurement"
    assert claim.kind != "cited" or claim.scale
    assert claim.kind != "measured" or (claim.at and claim.literature)


def test_rules_that_a_correction_names_exist():
    studies = {name: {rule.name for rule in find_study(name).rules} for name in NAMES}
    rules = set().union(*studies.values())
    word = r"[a-z]+(?:-[a-z]+)*"
    for claim in CLAIMS:
        for text in (claim.correction, claim.why, claim.literature):
            for named in re.findall(rf"\brules? ({word}(?:(?:, | and ){word})*)(?=[);:,]|\.(?!\w))", text):
                assert set(re.split(r", | and ", named)) <= rules, (claim.number, named)
            for study, rule in re.findall(rf"({word})\.({word})", text):
                assert study not in studies or rule in studies[study], (claim.number, study, rule)


@pytest.fixture(scope="module")
def rows():
    return {row["number"]: row for row in ledger()}


def test_each_row_of_the_ledger_says_what_a_reader_needs(rows):
    wanted = {"number", "note", "quote", "claim", "kind", "scale", "verdict", "literature", "evidence"}
    for row in rows.values():
        assert wanted <= set(row)
        assert row["evidence"]
        assert row["verdict"] in VERDICTS
        assert row["verdict"] == "true" or len(row["correction"]) > 20, row["number"]


def test_a_verdict_that_nobody_expected_is_explained(rows):
    for row in rows.values():
        assert row["expected"] in VERDICTS
        if row["correction"].startswith(("Not measured yet", "What was measured leaves it open")):
            continue  # it is not decided
        assert row["verdict"] == row["expected"] or len(row["why"]) > 20, row["number"]
        assert row["verdict"] != row["expected"] or not row["why"], f"{row['number']}: nothing to explain"


def test_what_says_the_same_has_the_same_verdict(rows):
    assert rows[53]["verdict"] == rows[70]["verdict"]


@pytest.mark.parametrize("name", NAMES)
def test_a_study_names_the_claims_that_it_decides(name):
    assert list(find_study(name).claims) == [claim.number for claim in CLAIMS if claim.study == name]


def test_an_inconclusive_rule_leaves_a_claim_open():
    result = committed()["invariances"]
    rows = [{**row, "matches": float(row["seed"] > FIRST_SEED)} for row in result.rows]
    changed = {**committed(), "invariances": StudyResult(result.study, rows, result.about)}
    before, after = (
        {row["number"]: row["verdict"] for row in ledger(results)} for results in (committed(), changed)
    )
    assert (before[61], after[61]) == ("true", "open")
    row = next(row for row in ledger(changed) if row["number"] == 61)
    assert row["correction"].startswith("What was measured leaves it open: ")


def test_what_is_not_measured_yet_is_open():
    few = {name: result for name, result in committed().items() if name != "invariances"}
    row = next(row for row in ledger(few) if row["number"] == 61)
    assert (row["verdict"], row["measured"]) == ("open", "not measured yet")
    assert row["correction"] == "Not measured yet: normkit study invariances does it."


# Claims that a count decides


def test_most_model_families_have_an_eps_of_1e_5_or_1e_6():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    families = {}
    for family in CONFIG_MAPPING:
        with contextlib.suppress(Exception):  # some need an argument, or a package
            values = CONFIG_MAPPING[family]().to_dict().items()
            names = re.compile("(norm|rms).*eps")
            found = {float(v) for name, v in values if names.search(name) and isinstance(v, float)}
            families |= {family: found} if found else {}
    usual = sum(found <= {1e-5, 1e-6} for found in families.values())
    assert len(families) > 400
    assert 0.75 < usual / len(families) < 0.9
    assert families["bert"] == {1e-12}
