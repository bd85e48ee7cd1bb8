"""Every twelfth architecture of docs/surgeries.md, done again."""

import re
import warnings

import hugging_face
import pytest
from surgery_sweep import EXACT, OTHERS, PAGE, row

SURGERIES = EXACT[:3]
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = {
    cells[1].strip(): dict(zip(EXACT + OTHERS, (cell.strip() for cell in cells[3:-1]), strict=True))
    for cells in (line.split("|") for line in TEXT.splitlines())
    if len(cells) == len(EXACT + OTHERS) + 4 and cells[2].strip().isdigit()
}


def test_the_page_has_all_of_them_and_keeps_the_promise():
    assert ROWS.keys() == set(hugging_face.NAMES), "run make surgeries"
    certified = {s: sum(cells[s].startswith("certified") for cells in ROWS.values()) for s in EXACT}
    assert certified["fold_affine"] >= 60
    assert certified["center_to_rms"] >= 25


@pytest.mark.parametrize("name", hugging_face.NAMES[::12])
def test_an_architecture_is_as_the_page_says(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = row(name, SURGERIES)
    for surgery in SURGERIES:
        made = found[surgery]
        assert "failed" not in made
        assert made.get("right", True), f"{surgery} differs on a second batch by {made.get('second')}"
        assert made.get("undone", True)
        said = ROWS[name][surgery]
        kind = "refused" if "refused" in made else "certified" if made else ""
        assert re.match(r"\w*", said)[0] == kind, f"{surgery} of {name}: run make surgeries"
        assert sum(map(int, re.findall(r"−(\d+)", said))) == sum(made.get("left", {}).values())
