"""Where the norm goes: one formula, a table of named settings, and the module that applies them."""

from normkit.placement.drawing import draw
from normkit.placement.residual import FinalNorm, Residual, Stream
from normkit.placement.rule import By, Learned, Placement
from normkit.placement.table import PLACEMENTS, Named, placement_at, sides

__all__ = [
    "PLACEMENTS",
    "By",
    "FinalNorm",
    "Learned",
    "Named",
    "Placement",
    "Residual",
    "Stream",
    "draw",
    "placement_at",
    "sides",
]
