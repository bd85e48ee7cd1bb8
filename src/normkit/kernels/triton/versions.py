"""What is known of Triton without importing it."""

from __future__ import annotations

import os

import torch

__all__ = ["DTYPES", "INTERPRETED", "OLDEST"]

OLDEST = (3, 6)
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # read once, as Triton does
