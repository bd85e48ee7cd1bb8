"""The log of what was changed after which result."""

import re
from datetime import date

import pytest

from normkit.lab.claims import CHANGES, WITHDRAWN, changes, claims
from normkit.lab.design import studies_package
from normkit.lab.study_result import results_folder

CLAIMS = {claim.number: claim for claim in claims()}
ORDER = studies_package().ORDER
LOG = changes()


def test_a_withdrawn_study_has_rows_that_nobody_judges_any_more():
    old = {path.stem for path in (results_folder().parent / "v0").glob("*.json")}
    assert set(WITHDRAWN) == old - set(ORDER)


def test_a_change_is_about_something_that_exists_or_existed():
    assert all(change.about for change in LOG)
    for about in (about for change in LOG for about in change.about):
        what, _, which = about.partition(" ")
        if what == "claim":
            assert int(which) in CLAIMS, about
        elif what == "results":
            assert not which, about
        else:
            study, _, rule = which.partition(".")
            assert what == ("rule" if rule else "study"), about
            assert study in (*ORDER, *WITHDRAWN), about


def test_a_change_says_what_was_before_what_is_now_and_why():
    dates = [date.fromisoformat(change.date) for change in LOG]
    assert dates == sorted(dates, reverse=True)
    assert dates[0] <= date.today()
    for change in LOG:
        assert change.kind in CHANGES
        assert change.before != change.after
        for text in (change.before, change.after, change.why):
            assert text.endswith("."), text
            assert not re.search(r"(?<![\w.])/(?!v0)\w+/", text), f"a path of a machine: {text}"


def test_every_kind_of_change_is_there():
    assert {change.kind for change in LOG} == set(CHANGES)


@pytest.mark.parametrize("number", [n for n, claim in CLAIMS.items() if claim.mended])
def test_a_claim_whose_rendering_was_mended_is_in_the_log_with_its_verdict_of_then(number):
    claim = CLAIMS[number]
    assert f"claim {number}" in {about for change in LOG for about in change.about}
    (was,) = re.findall(r"Its verdict was: (\w+)\.$", claim.mended)
    if claim.verdict not in ("", was):
        kinds = {change.kind for change in LOG if f"claim {number}" in change.about}
        assert kinds & {"we got wrong", "verdict changed", "withdrawn"}


def test_a_claim_that_was_not_in_the_first_ledger_is_said_to_be_new():
    new = {about for change in LOG if change.kind == "claim added" for about in change.about}
    assert new == {f"claim {number}" for number in CLAIMS if number > 89}
