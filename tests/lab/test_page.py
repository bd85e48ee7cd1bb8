"""The page in a real browser: drawn, offline, sortable, light and dark, wide and narrow."""

import shutil

import pytest

from normkit.lab.answer import STATES
from normkit.lab.measuring import ENDINGS
from normkit.lab.page.content import HEADINGS, LEAKS
from normkit.lab.sweep import compare_settings

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FIGURES = 5
DRAWN = "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.main-svg'))"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # playwright's own
]


SETTINGS = {
    # two learning rates; what users wrote is hostile
    "plain": {"task": "lab.own_task:Small", "placement": "pre,post,peri", "lr": "1e-3,1e-2"},
    # many arms at one learning rate; one seed fails
    "many": {
        **{"task": "lab.own_task:Trouble", "norm": "layer,rms,batch,power,dyt,none"},
        **{
            "placement": "pre,post,peri,deepnorm",
            "lr": 1e-2,
            "steps": 10,
            "set": {"what": "exit with a word"},
        },
    },
    # long names, and a learning rate at which everything diverges
    "long": {
        **{"task": "lab.own_task:Named", "lr": "1e-3,1e-2,1e3", "norm": "layer,rms,dyt"},
        "set": {"name": ["a name that goes on and on, as names do", "an_unbroken_name_" + "x" * 60]},
    },
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A comparison of each kind."""
    command, folder = "normkit compare <script>alert(1)</script>", tmp_path_factory.mktemp("page")
    return {
        name: compare_settings(settings, command, out=folder / f"<b>{name} & more", workers=0, progress=False)
        for name, settings in SETTINGS.items()
    }


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, results):
    """Opens the page, and fails if it says anything on the console or asks anyone for anything."""
    said, asked, allowed, contexts = [], [], set(), []

    def opened(width=1280, scheme="light", name="plain"):
        path = results[name].folder / "report.html"
        allowed.add(path.as_uri())
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function(DRAWN)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if url not in allowed and not url.startswith("data:")] == []


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")]
)
def test_it_is_drawn_and_fits(open_page, width, scheme, name):
    page = open_page(width, scheme, name)
    for plot in page.query_selector_all(".plot"):
        box = plot.bounding_box()
        assert box["width"] <= width
        assert box["height"] > 150
        assert plot.query_selector_all(".trace, .hm, .points"), plot.get_attribute("data-figure")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)"
    )


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("width", [390, 1280])
def test_no_table_is_cut_off(open_page, width, name):
    page = open_page(width, name=name)
    tables = page.evaluate(
        "[...document.querySelectorAll('table')].map(t => [t.id, t.scrollWidth, t.parentElement.clientWidth])"
    )
    assert [table for table, *_ in tables] == ["arms", "costs", "runs"]
    for table, wide, room in tables:
        assert wide <= room, table
    furthest = (
        "Math.max(...[...document.querySelectorAll('td, th')].map(c => c.getBoundingClientRect().right))"
    )
    assert page.evaluate(furthest) <= width


def test_on_a_wide_screen_tables_are_tables_and_on_a_phone_cells_say_what_they_are(open_page):
    assert open_page(1280).locator("table.stacked").count() == 0
    page = open_page(390)
    assert page.locator("#runs.stacked").count() == 1
    label = "getComputedStyle(document.querySelector('#runs td:nth-child(2)'), '::before').content"
    assert "placement" in page.evaluate(label)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function("document.querySelectorAll('table.stacked').length === 0")


def test_the_answer_is_on_top_under_the_name_of_its_state(open_page, results):
    page, result = open_page(), results["plain"]
    answer = page.locator("#answer")
    assert answer.locator("h2").inner_text() == HEADINGS[result.state]
    assert result.state in answer.get_attribute("class").split()
    assert answer.bounding_box()["y"] < 400
    assert "They do not show final quality" in answer.inner_text()
    assert answer.locator(".command code").all_inner_texts() == [result.command] * bool(result.command)


@pytest.mark.parametrize("state", STATES)
def test_states_of_an_answer_look_different(open_page, state):
    page = open_page()
    colour = f"document.getElementById('answer').className = 'answer {state}',"
    found = page.evaluate(f"({colour} getComputedStyle(document.querySelector('#answer h2')).color)")
    others = [s for s in STATES if s != state]
    for other in others:
        again = colour.replace(state, other)
        assert (
            page.evaluate(f"({again} getComputedStyle(document.querySelector('#answer h2')).color)") != found
        )


def test_a_command_is_copied_by_a_button(open_page):
    page = open_page()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.locator("button.copy").last
    button.click()
    page.wait_for_function("document.querySelector('main section:last-child .copy').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == "normkit compare <script>alert(1)</script>"


def test_errors_are_shown_once_each_in_full_and_as_text(open_page, results):
    page = open_page(name="many")
    errors = {o.error.strip() for _, o in results["many"].results if o.error}
    failed = sum(o.status == "failed" for _, o in results["many"].results)
    assert failed > len(errors) == 1
    details = page.locator("#errors details")
    assert details.count() == 1
    assert details.locator("summary").inner_text().startswith(f"{failed} runs: ")
    assert not details.locator("pre").is_visible()
    details.locator("summary").press("Enter")
    assert details.locator("pre").inner_text().strip() in errors
    assert open_page(name="plain").locator("#errors").count() == 0


def test_how_a_run_ended_is_one_of_few_words_and_explained(open_page):
    page = open_page(name="long")
    heads = page.locator("#runs th").all_inner_texts()
    column = heads.index("ended") + 1
    words = set(page.locator(f"#runs td:nth-child({column})").all_inner_texts())
    assert {"ok", "diverged"} <= words <= set(ENDINGS)
    terms = page.locator("#endings dt").all_inner_texts()
    assert words <= set(terms)
    for word, meaning in zip(terms, page.locator("#endings dd").all_inner_texts(), strict=True):
        assert meaning == {**ENDINGS, "leaks": LEAKS}[word]


def test_the_legend_hides_an_arm_and_shows_more_bands_by_keyboard(open_page):
    page = open_page(name="long")
    visible = "[...document.querySelectorAll('[data-figure=\"learning rate\"] .scatterlayer .trace')].length"
    legend = page.locator("[data-figure='learning rate'] + .legend")
    before = page.evaluate(visible)
    more = legend.locator("button.extra")
    assert more.get_attribute("aria-pressed") == "false"
    more.press("Enter")
    assert more.get_attribute("aria-pressed") == "true"
    page.wait_for_function(f"{visible} > {before}")
    more.press("Enter")
    page.wait_for_function(f"{visible} === {before}")
    legend.locator("button").first.press("Space")
    page.wait_for_function(f"{visible} < {before}")
    assert "clipped" in legend.locator("span").last.inner_text()


def test_it_draws_typed_arrays(open_page):
    import numpy as np
    import plotly.graph_objects as go

    figure = go.Figure(go.Scatter(x=np.arange(3.0), y=np.array([1.0, 5.0, 2.0]))).to_json()
    assert '"bdata"' in figure
    page = open_page()
    page.evaluate(f"Plotly.newPlot(document.querySelector('.plot'), {figure})")
    assert page.evaluate("[...document.querySelector('.plot')._fullData[0].y]") == [1, 5, 2]


def test_it_is_one_small_file(results):
    for result in results.values():
        assert (result.folder / "report.html").stat().st_size < 2_000_000


def test_every_figure_has_a_sentence_and_a_name(open_page):
    figures = open_page().query_selector_all("figure")
    assert len(figures) == FIGURES
    for figure in figures:
        assert len(figure.query_selector("figcaption").inner_text()) > 40
        assert figure.query_selector(".plot").get_attribute("aria-label")


@pytest.mark.parametrize("width", [390, 1280])
def test_tables_sort_by_numbers_up_and_down_and_what_has_none_comes_last(open_page, width):
    page = open_page(width, name="long")
    column = page.evaluate(
        "[...document.querySelectorAll('#runs th')].findIndex(th => th.textContent === 'final loss')"
    )

    def read():
        texts = page.locator(f"#runs td:nth-child({column + 1})").all_inner_texts()
        return [float(text) for text in texts if text != "–"], texts.count("–"), texts

    before, missing, _ = read()
    head = page.locator("#runs th button").nth(column)
    head.click()
    up, _, texts = read()
    assert up == sorted(before)
    assert texts[len(before) :] == ["–"] * missing
    head.click()
    down, _, texts = read()
    assert down == sorted(before, reverse=True)
    assert texts[len(before) :] == ["–"] * missing
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
    assert "<script>alert(1)</script>" in page.locator(".command").last.inner_text()


def test_it_says_how_it_was_done(open_page):
    text = open_page().inner_text("main")
    for wanted in ("SHA-256", "torch", "AdamW", "the same in all runs", "one torch thread each"):
        assert wanted in text


def test_it_prints_all_figures_black_on_white_at_the_width_of_a_sheet(open_page):
    page = open_page(scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(DRAWN)
    widths = page.evaluate("[...document.querySelectorAll('.plot .main-svg')].map(svg => svg.clientWidth)")
    assert max(widths) <= 680
    assert page.evaluate("document.querySelector('.plot .xtick text').style.fill") == "rgb(0, 0, 0)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.getElementById('theme')).display") == "none"
    assert len(page.pdf(format="A4")) > 50_000
