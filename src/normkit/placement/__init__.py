"""Where the norm goes: one formula, a table of named settings, and the module that applies them."""

from normkit.placement.drawing import draw
from normkit.placement.residual import FinalNorm, Residual, Stream
from normkit.placement.rule import DepthFormula, Learned, Placement
from normkit.placement.table import PLACEMENTS, PlacementEntry, encoder_decoder_placements, placement_at

__all__ = [
    "PLACEMENTS",
    "DepthFormula",
    "FinalNorm",
    "Learned",
    "Placement",
    "PlacementEntry",
    "Residual",
    "Stream",
    "draw",
    "encoder_decoder_placements",
    "placement_at",
]
