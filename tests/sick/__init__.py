"""Broken models and their repaired twins: real bugs, in a few lines each."""

from sick import axes, batches, calls, numbers, parity, places, training
from sick.case import Sick

__all__ = ["CASES", "Sick"]

CASES = [*places.CASES, *axes.CASES, *calls.CASES, *numbers.CASES, *batches.CASES, *training.CASES, *parity.CASES]
