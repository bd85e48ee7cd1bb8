"""One self-contained HTML file: everything that it needs is in it, and nothing is fetched."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normkit.errors import user_error
from normkit.lab.extras import needs

if TYPE_CHECKING:
    from normkit.lab.comparison import Comparison

__all__ = ["fill", "put", "render", "write"]

HERE = Path(__file__).parent
SCRIPTS = ("legend.js", "figures.js", "tables.js", "ledger.js")
# Of plotly.js only what has two axes: a third of the whole. CONTRIBUTING says how to renew it.
BUNDLE = HERE / "plotly-cartesian.min.js"


def write(comparison: Comparison, path: Path) -> Path:
    """The page of a comparison, in a file."""
    return put(
        render(comparison), path, f"all runs are stored; make room, then  normkit report {comparison.folder}"
    )


def put(text: str, path: Path, otherwise: str) -> Path:
    """Text into a file; what was there is replaced when the new one is complete."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise user_error(f"{path} cannot be written: {error.strerror}.", fix=otherwise) from error
    return path


def render(comparison: Comparison) -> str:
    """The page of a comparison."""
    from normkit.lab.page.content import content

    return fill("comparison.html", content(comparison), comparison.figures)


def fill(template: str, values: dict[str, Any], figures: dict[str, Any]) -> str:
    """A template of this folder, with figures."""
    jinja2, markup = needs("jinja2"), needs("markupsafe").Markup
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    data = {name: json.loads(figure.to_json()) for name, figure in figures.items()}
    return environment.get_template(template).render(
        **values,
        drawn=set(figures),
        style=markup((HERE / "style.css").read_text(encoding="utf-8")),
        script=markup("\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)),
        plotly=markup(BUNDLE.read_text(encoding="utf-8")),
        figures=markup(json.dumps(data).replace("<", "\\u003c")),
    )
