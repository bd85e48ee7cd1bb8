"""The one way in which normkit speaks to a terminal: words are words, and not commands to it."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.text import Text

__all__ = ["plain_console", "visible"]


def plain_console(**options: Any) -> Console:
    """For text that may be anyone's: no markup, no emoji, no colours of numbers, no control characters."""
    return _Console(**{"markup": False, "highlight": False, "emoji": False, **options})


def visible(text: str) -> str:
    r"""Control characters, and those that turn the line around, as one would type them.

    Example:
        >>> print(visible("red: \x1b[31m"))
        red: \x1b[31m
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


# Control characters but tab and line feed, marks that change the direction, and surrogates, which no stream
# takes.
_UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)
