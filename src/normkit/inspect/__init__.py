"""What is in a model: its norms as data, for swap, the doctor and the surgeon alike.

``normkit.inspect(model, batch)`` gives the sites of all norms. The parts:

spec        NormSpec: what a norm computes, found by calling a copy; recognition: which modules are norms
trace       one run of a model, as a record of calls; operations, meta: what torch's functions do, and what
            they cannot say on the meta device
graph       what comes from what, and the residual sums
sites       Site: where each norm stands
inspection  all of it together: a table, a drawing
edit        Edit: a change that can be read, verified and undone
swapping    our layers in place of others; equal: the layer of ours that computes the same, with the proof
"""

import sys

from normkit.callable_part import make_callable
from normkit.inspect.edit import Edit, Edits
from normkit.inspect.graph import Residual
from normkit.inspect.inspection import Inspection, inspect
from normkit.inspect.sites import PLACES, Site
from normkit.inspect.spec import NormSpec, NotANormError, probe
from normkit.inspect.swapping import Swapped, SwapReport, swap

__all__ = [
    "PLACES",
    "Edit",
    "Edits",
    "Inspection",
    "NormSpec",
    "NotANormError",
    "Residual",
    "Site",
    "SwapReport",
    "Swapped",
    "inspect",
    "probe",
    "swap",
]

make_callable(sys.modules[__name__], inspect)
