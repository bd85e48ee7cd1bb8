"""``--set FIELD=VALUES``, for the verbs that take fields of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["refuse_empty", "split_fields"]


def split_fields(given: Sequence[str]) -> dict[str, str]:
    """Names and values."""
    from normkit.errors import user_error
    from normkit.lab.plan import KEYS

    found: dict[str, str] = {}
    for field in given:
        name, equals, value = (part.strip() for part in field.partition("="))
        if not equals or not name or not value:
            raise user_error(f"--set got {field!r}.", expected="FIELD=VALUE, for example length=32")
        if name in KEYS:
            raise user_error(f"--set got {field!r}.", fix=f"--{name.replace('_', '-')} {value}")
        found[name] = f"{found[name]},{value}" if name in found else value  # twice the same: both
    return found


def refuse_empty(options: Mapping[str, object]) -> None:
    """A flag with nothing in it, most often an unset variable of a script, is a mistake."""
    from normkit.errors import user_error

    for name, value in options.items():
        if value == "":
            raise user_error(
                f"--{name.replace('_', '-')} got an empty value.", fix="leave it out, or fill it in."
            )
