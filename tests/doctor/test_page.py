"""The report as a page: in a real browser, offline, light and dark, wide and narrow; and in a notebook."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from examples import clinic
from torch import nn

import normkit as nk
from normkit.doctor import Finding, Report
from normkit.doctor.page import body, render, style

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "<img src=x onerror=alert(1)>\"'&\x1b\u202e"

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def sick():
    return nk.doctor(clinic.sick(), clinic.batch())


@pytest.fixture(scope="module")
def healthy():
    return nk.doctor(clinic.healthy(), clinic.batch())


class Hostile(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(EVIL.replace(".", ""), nn.LayerNorm(4, True))
        self.add_module(f"unused {EVIL}".replace(".", ""), nn.LayerNorm(4))

    def forward(self, x):
        return next(self.children())(x)


Hostile.__name__ = "</title><script>alert(2)</script>"


@pytest.fixture(scope="module")
def hostile():
    found = nk.doctor(Hostile(), torch.randn(4, 4))
    words = {name: f"{name} {EVIL}" for name in ("where", "expected", "message", "fix", "name", "line")}
    more = Finding(code=f"NK {EVIL}", severity="warning", measured=float("nan"), **words)
    return Report(found.inspection, [*found.findings, more], [f"a note {EVIL}"])


class Reader(HTMLParser):
    """Tags, attributes and text of a page; it must be balanced."""

    VOID = ("meta", "link", "wbr", "br")

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_verdict_is_first_and_findings_are_grouped_worst_first(sick, healthy):
    text = " ".join(" ".join(Reader(body(sick)).text).split())
    assert text.startswith(
        "Not healthy 6 errors 4 warnings 8 norms on 6 residual sums. Findings error NK101 "
    )
    cards = re.findall(r'<article class="finding (\w+)"', body(sick))
    assert cards == ["error", "error", "warning", "warning"]
    text = " ".join(" ".join(Reader(body(healthy)).text).split())
    assert text.startswith("Healthy 8 norms on 6 residual sums. The norms")


def test_a_card_has_all_that_a_finding_has(sick):
    card = re.findall(r"<article.*?</article>", body(sick), re.DOTALL)[1]
    text = " ".join("".join(Reader(card).text).split())
    finding = next(f for f in sick.findings if f.code == "NK204")
    for words in (
        "NK204",
        "absurd-eps",
        finding.message,
        "measured1",
        finding.expected,
        finding.fix,
        finding.line,
    ):
        assert words in text
    assert "layers.*.norm2 (3 of them)" in text
    assert "return x + self.feed_forward(self.norm2(x))" in text, "the line of code itself"
    assert "layers.2.norm2: 1" in text
    assert "What it finds:" in text, "the page of the rule"


def test_the_drawing_and_the_table_mark_what_was_found(sick):
    page = render(sick)
    svg = page[page.index("<svg") : page.index("</svg>")]
    assert "NK101" in svg
    assert "NK305" in svg
    rows = re.findall(r"<tr><td.*?</tr>", page[page.index('<table class="norms"') :])
    by_path = {"".join(Reader(re.search(r"<code>.*?</code>", row)[0]).text): row for row in rows}
    assert "NK106" in by_path["layers.*.norm3"]
    assert "not called" in by_path["layers.*.norm3"]
    assert "badge" not in by_path["norm"]


def test_information_marks_nothing():
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    report = nk.doctor(conv, torch.randn(8, 3, 8, 8))
    assert [f.severity for f in report.findings] == ["info"]
    page = body(report)
    assert report.findings[0].code not in page[page.index("<svg") :]


def test_findings_that_differ_in_the_number_of_a_layer_are_one_card(healthy):
    about = {"code": "NK601", "name": "redundant-bias", "severity": "info", "expected": "0", "message": "so"}
    findings = [
        Finding(where=f"layers.{k}.norm", measured=k / 4, fix=f"build layers.{k}.conv again.", **about)
        for k in range(3)
    ]
    report = Report(healthy.inspection, [*findings, replace(findings[0], fix="something else.")])
    assert body(report).count("<article") == 2
    assert "info NK601 redundant-bias: layers.*.norm (3 of them)\n" in str(report)
    assert "measured   0 to 0.5\n" in str(report)


def test_what_comes_from_the_model_is_text(hostile):
    page = render(hostile)
    found = Reader(page)
    assert "img" not in found.tags
    assert found.tags.count("script") == 1
    assert not any(name.startswith("on") for name, _ in found.attributes)
    assert "\x1b" not in page
    assert "\u202e" not in page
    text = "".join(found.text)
    shown = EVIL.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")
    for name in ("where", "expected", "message", "fix", "line", "a note", "unused", "NK"):
        assert f"{name} {shown}" in text


def test_a_number_that_is_none_is_null_in_json(hostile):
    assert json.loads(hostile.to_json())["findings"][-1]["measured"] is None


def test_everything_is_in_the_page_and_nothing_is_fetched(sick):
    page = render(sick)
    links = re.findall(r"""(?:src|href)=["']([^"']*)|url\(([^)]*)|@import|https?://[^\s"<]*""", page)
    assert all(link in (("data:,", ""), ("", "")) for link in links)
    assert set(re.findall(r"https?://[^\s\"<]*", page)) <= {"http://www.w3.org/2000/svg"}


def test_the_style_of_a_notebook_is_confined(sick):
    rules = re.sub(r"@media[^{]*\{", "", style(".normkit-doctor"))
    for selectors in re.findall(r"(?:^|\})\s*([^{}]+)\{", rules):
        assert all(s.strip().startswith(".normkit-doctor") for s in selectors.split(",")), selectors
    part = sick._repr_html_()
    assert part.startswith("<style>")
    assert part.count("<div class='normkit-doctor'>") == 1
    assert "<html" not in part
    Reader(part)


def test_saving_replaces_the_file_whole_with_the_usual_permissions(sick, tmp_path):
    path = sick.save(tmp_path / "new" / "doctor.html")
    assert path.read_text(encoding="utf-8") == render(sick)
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert [p.name for p in path.parent.iterdir()] == ["doctor.html"]
    assert json.loads(sick.save(tmp_path / "doctor.json").read_text())["ok"] is False
    with pytest.raises(nk.NormkitError, match="could not be written: "):
        sick.save(path / "below" / "a" / "file.html")


# in a browser


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens a page, and fails if it says anything on the console or asks anyone for anything."""
    said, asked, contexts = [], [], []

    def opened(html, width=1280, scheme="light"):
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("data:", tmp_path.as_uri()))] == []


@in_a_browser
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # playwright's own
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_wide_and_narrow_in_light_and_dark(open_page, sick, hostile, width, scheme):
    for report in (sick, hostile):
        page = open_page(render(report), width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for element in page.query_selector_all("article, svg, table, .verdict"):
            box = element.bounding_box()
            assert box["x"] + box["width"] <= width
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)"
        )
        assert page.query_selector(".verdict").bounding_box()["y"] < 200
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == (
        "dark" if scheme == "light" else "light"
    )


@in_a_browser
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_keeps_its_own_look_and_the_report_takes_its_colours(open_page, sick):
    html = f"<body style='background: #111; color: rgb(200, 210, 220)'><h2>mine</h2>{sick._repr_html_()}"
    page = open_page(html)
    assert page.evaluate("getComputedStyle(document.querySelector('h2')).fontSize") == "24px"
    ink = "getComputedStyle(document.querySelector('{}')).{}"
    assert page.evaluate(ink.format(".finding p", "color")) == "rgb(200, 210, 220)"
    assert page.evaluate(ink.format("svg", "fill")) == "rgb(200, 210, 220)"
