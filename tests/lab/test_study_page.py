"""The page of the studies in a real browser, from the committed rows."""

import pytest
from lab.test_page import CHROMIUM, FLAGS

from normkit.lab.claims import changes, claims
from normkit.lab.design import all_studies, find_study
from normkit.lab.page.studies import write_studies
from normkit.lab.study_result import committed

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # playwright's own
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Opened once; what it said on the console, and whom it asked, are kept with it."""
    from playwright.sync_api import sync_playwright

    path = write_studies(committed(), tmp_path_factory.mktemp("page") / "report.html", whole=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.said, opened.asked = [], []
        opened.on("console", lambda message: opened.said.append(message.text))
        opened.on("pageerror", lambda error: opened.said.append(str(error)))
        opened.on("request", lambda request: opened.asked.append(request.url))
        opened.goto(path.as_uri())
        plots = sum(len(study.plots) for study in shown_studies().values())
        opened.wait_for_function(f"document.querySelectorAll('.plot .main-svg').length >= {plots}")
        opened.address = path.as_uri()
        yield opened
        browser.close()


def shown_results():
    """Those with a complete seed."""
    return {name: result for name, result in committed().items() if result.judged}


def shown_studies():
    return {name: result.study for name, result in shown_results().items()}


@needs_browser
def test_it_is_silent_and_offline(page):
    assert page.said == []
    assert [url for url in page.asked if url != page.address and not url.startswith("data:")] == []


@needs_browser
def test_the_overview_leads_to_every_study(page):
    links = page.locator("#overview a")
    assert links.count() == len(shown_studies())
    for name in shown_studies():
        assert page.locator(f"section.study#{name}").count() == 1
        assert page.locator(f"#overview a[href='#{name}']").count() == 1


@needs_browser
def test_what_is_not_measured_yet_is_named_with_its_command(page):
    missing = [find_study(name) for name in all_studies() if name not in shown_studies()]
    wanted = [f"{s.words['Title']} normkit study {s.name}{' --long' * s.is_long}" for s in missing]
    assert page.locator("#waiting li").all_inner_texts() == wanted


@needs_browser
def test_every_study_has_a_figure_with_a_sentence_a_rule_and_its_method(page):
    for name, study in shown_studies().items():
        section = page.locator(f"section.study#{name}")
        assert section.locator("figure .plot svg.main-svg").count() >= len(study.plots)
        assert section.locator("tbody tr").count() == len(study.rules)
        text = section.text_content()
        assert "Refuted if" in text
        assert study.words["Method"][:40] in text


@needs_browser
def test_the_ledger_is_searched_and_filtered(page):
    def shown():
        return page.locator("#claims tbody tr:visible").count()

    assert shown() == len(claims())
    page.fill("#search", "gain bias")
    few = shown()
    assert 3 <= few < 30
    assert page.inner_text("#count") == f"{few} claims"
    page.fill("#search", "")
    page.select_option("#by-note", "5")
    of_note = sum(claim.note == 5 for claim in claims())
    assert shown() == of_note
    page.select_option("#by-verdict", "false")
    assert 1 <= shown() < of_note
    page.select_option("#by-kind", "measured")
    assert shown() <= of_note
    page.select_option("#by-kind", "")
    page.select_option("#by-note", "")
    page.select_option("#by-verdict", "")
    assert shown() == len(claims())


@needs_browser
def test_a_link_to_a_claim_that_is_filtered_out_shows_it(page):
    page.select_option("#by-verdict", "false")
    assert not page.locator("#claim-1").is_visible()
    page.evaluate("location.hash = '#claim-1'")
    page.wait_for_function("!document.getElementById('claim-1').hidden")
    assert page.locator("#claims tbody tr:visible").count() == len(claims())


@needs_browser
def test_every_rule_is_drawn_where_it_holds_and_what_was_measured(page):
    for name, study in shown_studies().items():
        section = page.locator(f"section.study#{name}")
        assert section.locator("svg.strip .holds").count() == len(study.rules)
        assert section.locator("svg.strip .mean").count() == len(study.rules)


@needs_browser
def test_on_a_phone_the_verdict_of_a_rule_is_seen_without_scrolling(page):
    page.set_viewport_size({"width": 390, "height": 900})
    for mark in page.locator("section.study table.cards .mark").all():
        box = mark.bounding_box()
        assert box["x"] + box["width"] <= 390
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_rule_is_drawn_on_the_right_side_of_its_bound():
    import re

    from normkit.lab.page.strip import strip
    from normkit.lab.rules import Rule

    for values, inside in (([8.0, 9.0, 10.0], True), ([0.5, 0.6, 0.7], False)):
        rule = Rule("some", "Above 2", lambda rows: rows[0]["value"], above=2.0, log=True)
        svg = strip(rule, rule.judge([{"seed": k, "value": v} for k, v in enumerate(values)]))
        bound = float(re.search(r'class="bound" x1="([\d.]+)"', svg)[1])
        mean = float(re.search(r'class="mean" cx="([\d.]+)"', svg)[1])
        assert (mean > bound) == inside
        assert svg.count('class="seed"') == 3


@needs_browser
def test_a_study_answers_its_question_before_it_judges_a_hypothesis(page):
    for name, result in shown_results().items():
        section = page.locator(f"section.study#{name}")
        assert section.locator("p.answer").first.text_content() == result.answer
        text = section.text_content()
        assert text.index(result.answer) < text.index("The hypothesis:") < text.index("Refuted if")
        assert not section.locator("h2 .mark").count(), (
            "the title is a question, and no verdict stands beside it"
        )
        assert result.about["hash"] in text
        for sitting in result.about["sittings"]:
            assert sitting["commit"] in text
            assert sitting["rules_commit"] in text


@needs_browser
def test_the_log_of_changes_is_on_the_page(page):
    assert page.locator("#changes tbody tr").count() == len(changes())


@needs_browser
def test_it_teaches_with_drawings(page):
    assert page.locator("#axes svg rect").count() == 5 * 3 * 4 * 9
    assert page.locator("#placements svg").count() == 8


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1280, "height": 900})
