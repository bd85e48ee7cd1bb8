"""Writes docs/which-norm.md: which norm, and where?

    python docs/guide.py

What is advised, and what papers say, is in situations.toml. What was measured here is a sentence of a rule,
chosen by its verdict on the committed rows. What has no rows yet says how to measure it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from normkit.errors import user_error
from normkit.lab.claims import VERDICTS, ledger
from normkit.lab.design import all_studies
from normkit.lab.rules import INCONCLUSIVE, SUPPORTED, Effect, Ruling
from normkit.lab.studying import StudyResult, committed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
ROWS = "../results/v1"
Results = Mapping[str, StudyResult]

# In the order of the page; every study is in one of them. What is no study yet is left out.
HEADINGS = {
    "Which norm": "rms-against-ln norm-free vision why-batch-norm batch-norm-in-text convergence "
    "regularisation expressivity",
    "Batches, padding and data that change": "small-batches batch-size running-statistics "
    "padding-and-causality stream curvature",
    "Where it stands": "warm-up post-ln-quality depth-rescue useful-depth gradient-by-depth amplification",
    "Attention": "qk-norm sensitivity",
    "How it is computed, and what it costs": "numerics bias-and-gain bias-before-norm invariances "
    "identities cost",
}


def guide(results: Results | None = None, data: Mapping[str, Any] | None = None) -> str:
    if data is None:
        data = tomllib.loads((HERE / "situations.toml").read_text(encoding="utf-8"))
    check(data)
    found = committed() if results is None else results
    known = {name: result for name, result in found.items() if result.is_complete}
    blocks = [
        "# Which norm should I use, and where?",
        *table(data["situation"], known),
        "*Measured here* is at a small scale, which stands with each finding; *scale* is the literature's. "
        "More: [quick answers](#quick-answers) · [each situation](#each-situation) · "
        "[the modern recipe](#the-modern-recipe) · [what was measured](#what-was-measured) · "
        "[what could not be decided](#what-could-not-be-decided). On your own data: "
        "`normkit compare --data …` ([how](lab.md)).",
        "## Quick answers",
        *(block for item in data["quick_answer"] for block in quick_answer(item, known)),
        "## Each situation",
        *(block for item in data["situation"] for block in situation(item, known)),
        "## The modern recipe",
        *recipe(data["recipe"]),
        "## What was measured",
        *findings(known),
        "## What could not be decided",
        *undecided(known),
        "Written by docs/guide.py from docs/situations.toml and the rows in `results/v1`.",
    ]
    return "\n\n".join(blocks) + "\n"


def check(data: Mapping[str, Any]) -> None:
    """Does everything that is named exist, and is every study under a heading?"""
    items = [*data["situation"], *data["quick_answer"]]
    named = [rule for item in items for rule in (*item.get("measured", ()), *item.get("rules", ()))]
    named += [shown["rule"] for item in data["situation"] for shown in item["cell"]]
    rules = {f"{study.name}.{rule.name}" for study in all_studies().values() for rule in study.rules}
    wrong = [f"no rule {rule}" for rule in sorted({*named} - rules)]
    places = Counter(study for names in HEADINGS.values() for study in names.split())
    wrong += [f"{study} is under {places[study]} headings" for study in all_studies() if places[study] != 1]
    titles = {item["name"] for item in data["situation"]}
    wrong += [
        f"no situation {item['situation']}"
        for item in items
        if item.get("situation", "") not in {"", *titles}
    ]
    if wrong:
        raise user_error(
            f"The guide does not fit the studies: {'; '.join(wrong)}.",
            expected="rules and studies that exist, and each study under one heading",
            fix="mend docs/situations.toml, or HEADINGS in docs/guide.py.",
        )


def table(situations: Iterable[Mapping[str, Any]], results: Results) -> list[str]:
    lines = [
        "| Situation | Default | Measured here | Literature | Scale | Evidence |",
        "|---|---|---|---|---|---|",
    ]
    for item in situations:
        cells = [
            link(sentence_case(item["name"])),
            item["default"],
            "; ".join(filter(None, (in_short(shown, results) for shown in item["cell"])))
            or ("not yet" if item["cell"] else "nothing"),
            *(item[name] for name in ("literature", "scale", "evidence")),
        ]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return ["\n".join(lines)]


def in_short(shown: Mapping[str, str], results: Results) -> str:
    """What a rule says, in a cell of the table; nothing without rows."""
    study, _, rule = shown["rule"].partition(".")
    about = link(shown["about"], all_studies()[study].words["Title"])
    if study not in results:
        return ""
    ruling = results[study].rulings[rule]
    if ruling.verdict == INCONCLUSIVE:
        return f"{about}: undecided"
    text = shown["yes"] if ruling.verdict == SUPPORTED else shown["no"]
    effect = Effect(ruling.effect.mean, of=ruling.effect.of).say(ruling.rule.unit, digits=2)
    return f"{about}: {text.format(effect=effect)}"


def quick_answer(item: Mapping[str, Any], results: Results) -> list[str]:
    blocks = [f"### {sentence_case(item['question'])}", item["answer"]]
    if "command" in item:
        blocks.append(f"```sh\n{item['command']}\n```")
    blocks.append(bullets(measured(item["rules"], results), Literature=item["literature"]))
    return blocks


def situation(item: Mapping[str, Any], results: Results) -> list[str]:
    return [
        f"### {sentence_case(item['name'])}",
        bullets({"Type": item["write"], "Instead": item["instead"]}),
        bullets(measured(item["measured"], results), Literature=item["papers"]),
    ]


def recipe(data: Mapping[str, Any]) -> list[str]:
    models = [
        "\n".join(
            [f"| {title} | What they have |", "|---|---|"]
            + [f"| {m['name']} | {m['what']} |" for m in data["model"] if m.get("differs", False) == differs]
        )
        for title, differs in (("Models that share it, or most of it", False), ("Others", True))
    ]
    lines = "\n".join(f"- {line}" for line in data["lines"])
    return [lines, f"```python\n{data['code']}\n```", data["note"], *models]


def measured(rules: Iterable[str], results: Results) -> dict[str, str]:
    """What some rules say, study by study; of those without rows, how to get them."""
    found, missing, open_ = [], [], []
    for name, group in groupby(rules, key=lambda rule: rule.partition(".")[0]):
        study = all_studies()[name]
        if name not in results:
            missing.append(f"`{command(name)}`")
            continue
        rulings = [results[name].rulings[rule.partition(".")[2]] for rule in group]
        said = [ruling.finding for ruling in rulings if ruling.finding]
        if said:
            found.append(f"{link(study.words['Title'])} {' '.join(said)}")
        open_ += [undecided_in_short(ruling) for ruling in rulings if is_open(ruling)]
    answer = {"Measured here": " ".join(found)} if found else {}
    if open_:
        answer["Undecided here"] = " ".join(open_)
    if missing:
        answer["Being measured"] = f"run {', '.join(dict.fromkeys(missing))}."
    return answer or {"Measured here": "nothing that decides it."}


def is_open(ruling: Ruling) -> bool:
    return ruling.verdict == INCONCLUSIVE and bool(ruling.rule.yes or ruling.rule.no)


def undecided_in_short(ruling: Ruling) -> str:
    said = ruling.problem or ruling.effect.say(ruling.rule.unit, digits=2)
    return f"“{ruling.rule.says}”: {said}."


def findings(results: Results) -> list[str]:
    counts = Counter(claim["verdict"] for claim in ledger(results))
    counted = ", ".join(f"{counts[verdict]} are {verdict}" for verdict in VERDICTS)
    blocks = [
        "A sentence is chosen by the verdict of a rule that was written down before the run. In brackets: "
        f"the 95 % interval. Of the {counts.total()} claims in `normkit study --ledger` {counted}.",
    ]
    for heading, names in HEADINGS.items():
        blocks.append(f"### {heading}")
        for name in filter(all_studies().__contains__, names.split()):
            study, result = all_studies()[name], results.get(name)
            blocks.append(f"#### {study.words['Title']}")
            if result is None:
                blocks.append(f"Being measured: run `{command(name)}`.")
                continue
            said = [ruling.finding for ruling in result.study.in_order(result.rulings) if ruling.finding]
            said = said or [f"Its hypothesis: {result.verdict}."]
            blocks.append("\n".join(f"- {text}" for text in said))
            scale = f"{sentence_case(result.study.scale)}; " if result.study.scale else ""
            blocks.append(f"*{scale}{len(result.seeds)} seeds.* [Rows]({ROWS}/{name}.json)")
    return blocks


def undecided(results: Results) -> list[str]:
    lines = []
    for name, result in results.items():
        for ruling in result.rulings.values():
            if is_open(ruling) or (ruling.verdict == INCONCLUSIVE and not ruling.rule.aside):
                said = undecided_in_short(ruling)
                lines.append(f"- {said} [{name}.{ruling.rule.name}]({ROWS}/{name}.json)")
    return ["\n".join(lines) or "Nothing of what was measured."]


def bullets(*texts: Mapping[str, str], **more: str) -> str:
    items = {name: text for group in (*texts, more) for name, text in group.items()}
    return "\n".join(f"- **{name}:** {text}" for name, text in items.items())


def command(study: str) -> str:
    return f"normkit study {study}{' --long' * all_studies()[study].is_long}"


def link(text: str, heading: str = "") -> str:
    """To a heading of this page, by the name that GitHub gives it."""
    anchor = re.sub(r"[^\w -]", "", (heading or text).lower()).replace(" ", "-")
    return f"[{text}](#{anchor})"


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    (HERE / "which-norm.md").write_text(guide(), encoding="utf-8")
