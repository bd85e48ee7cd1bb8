"""``--set FIELD=VALUES``, for the verbs that take fields of a task."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["split_fields"]


def split_fields(given: Sequence[str]) -> dict[str, str]:
    """Names and values."""
    from normkit.errors import refusal
    from normkit.lab.plan import KEYS

    found = {}
    for field in given:
        name, equals, value = (part.strip() for part in field.partition("="))
        if not equals or not name or not value:
            raise refusal(f"--set got {field!r}.", expected="FIELD=VALUE, for example length=32")
        if name in KEYS:
            raise refusal(f"--set got {field!r}.", fix=f"--{name.replace('_', '-')} {value}")
        found[name] = value
    return found
