"""The page in a real browser: drawn, offline, sortable, light and dark, wide and narrow."""

import shutil

import pytest

from normkit.lab.sweep import compare_settings

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FIGURES = 5

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # playwright's own
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    settings = {"task": "lab.own_task:Small", "placement": "pre,post,peri", "lr": "1e-3,1e-2"}
    command = "normkit compare <script>alert(1)</script>"
    where = folder / "<b>runs & more"
    result = compare_settings(settings, command, out=where, workers=0, progress=False)
    return result.folder / "report.html"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, path):
    """Opens the page, and fails if it says anything on the console or asks anyone for anything."""
    said, asked, contexts = [], [], []

    def opened(width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function(f"document.querySelectorAll('.plot .main-svg').length >= {FIGURES}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if url != path.as_uri() and not url.startswith("data:")] == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_drawn_and_fits(open_page, width, scheme):
    page = open_page(width, scheme)
    for plot in page.query_selector_all(".plot"):
        box = plot.bounding_box()
        assert box["width"] <= width
        assert box["height"] > 150
        assert plot.query_selector_all(".trace, .hm, .points, .bars"), plot.get_attribute("data-figure")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)"
    )


def test_the_answer_is_on_top(open_page):
    page = open_page()
    answer = page.query_selector("#answer")
    assert answer.inner_text().startswith("THE ANSWER\n")
    assert "Use norm=" in answer.inner_text()
    assert answer.bounding_box()["y"] < 400
    assert "They do not show final quality" in answer.inner_text()


def test_every_figure_has_a_sentence_and_a_name(open_page):
    figures = open_page().query_selector_all("figure")
    assert len(figures) == FIGURES
    for figure in figures:
        assert len(figure.query_selector("figcaption").inner_text()) > 40
        assert figure.query_selector(".plot").get_attribute("aria-label")


def test_tables_sort_by_numbers_up_and_down(open_page):
    page = open_page()
    column = page.evaluate(
        "[...document.querySelectorAll('#runs th')].findIndex(th => th.textContent === 'final loss')"
    )

    def read():
        return [float(text) for text in page.locator(f"#runs td:nth-child({column + 1})").all_inner_texts()]

    before = read()
    head = page.locator("#runs th button").nth(column)
    head.click()
    assert read() == sorted(before)
    head.click()
    assert read() == sorted(before, reverse=True)
    assert page.locator("#runs th").nth(column).get_attribute("aria-sort") == "descending"


def test_the_theme_can_be_switched_and_figures_follow(open_page):
    page = open_page()
    ink = "document.querySelector('.plot .xtick text').style.fill"
    light = page.evaluate(ink)
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
    assert page.evaluate(ink) != light
    page.click("#theme")
    assert page.evaluate(ink) == light


def test_what_users_wrote_is_text_not_html(open_page):
    page = open_page()
    assert "<script>alert(1)</script>" in page.inner_text(".command")


def test_it_says_how_it_was_done(open_page):
    text = open_page().inner_text("main")
    for wanted in ("SHA-256", "torch", "AdamW", "the same in all runs", "one torch thread each"):
        assert wanted in text


def test_it_prints_on_paper(open_page):
    page = open_page()
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.getElementById('theme')).display") == "none"
    assert len(page.pdf(format="A4")) > 50_000
