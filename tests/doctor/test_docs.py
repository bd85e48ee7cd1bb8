"""docs/doctor.md is what the rules say."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_rules_is_written_anew():
    spec = importlib.util.spec_from_file_location("rules_table", DOCS / "rules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text(encoding="utf-8")
    assert module.page(text) == text, "run python docs/rules.py"
    assert text.count("| NK") == 29
