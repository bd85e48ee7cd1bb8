"""The optional extension: ordinary calls in one step, with nodes of autograd's graph in C++."""

from __future__ import annotations

from typing import Any

__all__ = ["MISSING", "MODULE"]

MODULE: Any = None
MISSING: str | None = "not built"
