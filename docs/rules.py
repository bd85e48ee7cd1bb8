"""Write the table of the doctor's rules into docs/doctor.md: python docs/rules.py."""

from __future__ import annotations

import re
from pathlib import Path

from normkit.doctor import RULES

PAGE = Path(__file__).parent / "doctor.md"


def table() -> str:
    lines = ["| Code | Name | Level | What it finds |", "|---|---|---|---|"]
    for rule in RULES:
        first = (rule.module.__doc__ or "").strip().splitlines()[0]
        lines.append(f"| {rule.code} | {rule.name} | {rule.severity} | {first} |")
    return "\n".join(lines)


def page(text: str) -> str:
    marks = r"(<!-- rules:[^>]*-->).*?(<!-- end -->)"
    return re.sub(marks, lambda m: f"{m[1]}\n{table()}\n{m[2]}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
