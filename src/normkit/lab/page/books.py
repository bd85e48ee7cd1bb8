"""The stack of books: which numbers of (N, C, H, W) share one mean, as a drawing."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["stack_of_books"]

BOOKS, PAGES, LINES, LETTERS = 3, 4, 3, 3
CELL, GAP, SPACE = 9, 7, 26
SIZE = f'width="{CELL - 1}" height="{CELL - 1}"'
SHADES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F", "#8C6BB1", "#332288")
# The group that a number belongs to, from book, page, line and letter.
NORMS: dict[str, Callable[[int, int, int, int], int]] = {
    "BatchNorm [n] c [h w]": lambda n, c, h, w: c,
    "LayerNorm n [c h w]": lambda n, c, h, w: n,
    "LayerNorm n [c] h w": lambda n, c, h, w: (n * LINES + h) * LETTERS + w,
    "InstanceNorm n c [h w]": lambda n, c, h, w: n * PAGES + c,
    "GroupNorm n (g [c]) [h w]": lambda n, c, h, w: n * 2 + c // 2,
}


def stack_of_books() -> str:
    """As SVG: a panel a norm, a row a book, a block a page."""
    page, line = LETTERS * CELL + GAP, LINES * CELL + GAP
    width, height = PAGES * page + SPACE, BOOKS * line + 34
    panels = []
    for index, (name, group) in enumerate(NORMS.items()):
        title, _, pattern = name.partition(" ")
        left, top = index % 3 * width, index // 3 * (height + 10)
        parts = [
            f'<text x="0" y="12" font-weight="600">{title}</text>',
            f'<text x="0" y="26" opacity=".75" font-family="monospace">{pattern}</text>',
        ]
        for n in range(BOOKS):
            for c in range(PAGES):
                for h in range(LINES):
                    for w in range(LETTERS):
                        x, y = c * page + w * CELL, 34 + n * line + h * CELL
                        shade, pale = _colour(group(n, c, h, w))
                        parts.append(f'<rect x="{x}" y="{y}" {SIZE} fill="{shade}" opacity="{pale}"/>')
        panels.append(f'<g transform="translate({left},{top})">{"".join(parts)}</g>')
    size = f"0 0 {3 * width - SPACE} {2 * (height + 10)}"
    label = "Which numbers of a batch of images share one mean, for five norms"
    return (
        f'<svg viewBox="{size}" width="{3 * width - SPACE}" role="img" aria-label="{label}" '
        f'font-size="11" font-family="system-ui, sans-serif" fill="currentColor">{"".join(panels)}</svg>'
    )


def _colour(group: int) -> tuple[str, float]:
    """A shade for each group, paler where the shades begin again."""
    return SHADES[group % len(SHADES)], (1.0, 0.65, 0.35)[group // len(SHADES)]
