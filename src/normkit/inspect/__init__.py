"""What is in a model: its norms as data.

spec     what a norm computes, found by calling a copy of it
equal    the layer of ours that computes the same, with the proof
"""

from normkit.inspect.spec import NormSpec, NotANormError, probe

__all__ = ["NormSpec", "NotANormError", "probe"]
