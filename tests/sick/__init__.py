"""Broken models and their repaired twins: real bugs, in a few lines each."""

from sick import axes, batches, calls, ends, numbers, parity, skips, training
from sick.case import Sick

__all__ = ["CASES", "Sick"]

PARTS = (skips, ends, axes, calls, numbers, batches, training, parity)
CASES = [case for part in PARTS for case in part.CASES]
