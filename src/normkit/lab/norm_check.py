"""Is it the norm? Asked when something went wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from normkit.errors import user_error
from normkit.lab import own
from normkit.lab.limit import OutOfTime
from normkit.lab.run import Run
from normkit.lab.task import BUILT_IN

__all__ = ["blames_the_norm"]

ROWS = (2, 3)


@contextlib.contextmanager
def blames_the_norm(run: Run) -> Iterator[None]:
    """An error that a norm of one's own is the reason of names the norm. In a task that comes with normkit:
    in another a norm may give what it likes."""
    try:
        yield
    except OutOfTime:
        raise
    except Exception as error:
        said = _fault(run)
        if said is None:
            raise
        raise user_error(
            f"The norm {own.short_name(run.norm)} {said}.",
            expected="for each vector of features one of the same size, in numbers",
        ) from error


def _fault(run: Run) -> str | None:
    """What is wrong with what it makes of random vectors; None if nothing is, or if it raises an error, which
    says where."""
    is_own = own.is_object(run.norm) or ":" in run.norm
    if not is_own or run.task not in BUILT_IN or dict(run.options).get("network") == "conv":
        return None
    x = torch.randn(*ROWS, run.width, generator=torch.Generator().manual_seed(0))
    try:
        y = run.make_norm(run.width)(x)
    except Exception:
        return None
    shape = tuple(x.shape)
    if not isinstance(y, Tensor):
        return f"gave a {type(y).__name__} for a tensor of shape {shape}"
    if y.shape != x.shape:
        return f"gave the shape {tuple(y.shape)} for {shape}"
    return None if y.isfinite().all() else f"gave NaN or inf for random numbers of shape {shape}"
