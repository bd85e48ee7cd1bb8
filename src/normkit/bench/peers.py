"""Other people's kernels for GPUs, where they are installed: Liger and quack.

Neither is a dependency. What is not installed or fails takes no part, and the reason is written down.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor

from normkit.bench.cells import Cell

__all__ = ["channel_peers", "missing", "row_peers"]

Norm = Callable[..., Any]
HOMES = {
    "liger": ("liger_kernel.transformers.functional", "liger-kernel"),
    "quack": ("quack", "quack-kernels"),
}


def missing(peer: str, device: str) -> str | None:
    """Why a peer takes no part at all; None if it may."""
    if device == "cpu":
        return "its kernels are for GPUs"
    found = _import(peer)
    return found if isinstance(found, str) else None


def row_peers(cell: Cell, eps: float) -> dict[str, Norm]:
    """By name, functions of the same inputs as torch's; those that there are for this cell."""
    if cell.device == "cpu" or len(cell.shape) != 2:
        return {}
    kind = "add" if cell.way == "add" else "plain"
    found = {peer: norm for (peer, op, way), norm in _ROWS.items() if (op, way) == (cell.op, kind)}
    if cell.way == "backward" and cell.op == "LayerNorm":
        found.pop("quack", None)  # it has the forward only
    return {p: functools.partial(f, eps) for p, f in found.items() if missing(p, cell.device) is None}


def channel_peers(cell: Cell, groups: int) -> dict[str, Norm]:
    """As ``row_peers``."""
    if cell.op != "GroupNorm" or cell.layout != "contiguous" or missing("liger", cell.device) is not None:
        return {}
    return {"liger": lambda x, w, b: _of("liger").liger_group_norm(x, w, b, x.shape[1], groups, 1e-5)}


@functools.cache
def _import(peer: str) -> Any:
    """The module, or why there is none."""
    module, package = HOMES[peer]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        return f"pip install {package}: {error}"
    except Exception as error:  # it is there, and does not load on this machine
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _of(peer: str) -> Any:
    return _import(peer)


# in_place=False: otherwise a backward writes over the gradient that the next turn starts from.


def _liger_layer(eps: float, x: Tensor, w: Tensor, b: Tensor) -> Any:
    return _of("liger").liger_layer_norm(x, w, b, eps)


def _liger_rms(eps: float, x: Tensor, w: Tensor) -> Any:
    return _of("liger").liger_rms_norm(x, w, eps, in_place=False)


def _liger_add_rms(eps: float, x: Tensor, r: Tensor, w: Tensor) -> Any:
    return _of("liger").liger_fused_add_rms_norm(x, r, w, eps, in_place=False)


def _quack_layer(eps: float, x: Tensor, w: Tensor, b: Tensor) -> Any:
    """Its parameters are float32, converted before the clock starts."""
    return importlib.import_module("quack.rmsnorm").layernorm_fwd(x, _wide(w), _wide(b), eps)


@functools.lru_cache(maxsize=4)
def _wide(parameter: Tensor) -> Tensor:
    return parameter.float()


def _quack_rms(eps: float, x: Tensor, w: Tensor) -> Any:
    return _of("quack").rmsnorm(x, w, eps=eps)


def _quack_add_rms(eps: float, x: Tensor, r: Tensor, w: Tensor) -> Any:
    return _of("quack").rmsnorm(x, w, residual=r, eps=eps, prenorm=True)


_ROWS: dict[tuple[str, str, str], Norm] = {
    ("liger", "LayerNorm", "plain"): _liger_layer,
    ("liger", "RMSNorm", "plain"): _liger_rms,
    ("liger", "RMSNorm", "add"): _liger_add_rms,
    ("quack", "LayerNorm", "plain"): _quack_layer,
    ("quack", "RMSNorm", "plain"): _quack_rms,
    ("quack", "RMSNorm", "add"): _quack_add_rms,
}
