"""A norm that is in the model and is never called.

What it finds: a norm whose module ran on the batch without it, and whose weights nobody else read. Norms of
parts that the batch did not reach at all (an image tower on text alone) are not counted; one that the code
does call, under conditions that this batch did not meet, is information.

Why it matters: it was meant to be called. Its weights are trained by weight decay alone, it fails DDP's
check of unused parameters, and the model computes something else than its configuration says.

Example:
    self.norm2 = nn.LayerNorm(dim)                 # in __init__, and never in forward

Fix: call it, or delete it.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

from torch import nn

from normkit.doctor.case import Case
from normkit.doctor.rule import Found

BUILDS = re.compile("init|reset")  # functions that give it its first weights


def check(case: Case) -> Iterator[Found]:
    for unused in case.inspection.unused:
        if unused.owner_ran:
            owner, name = _held_by(case.model, unused.path)
            yield Found(
                where=unused.path,
                measured=0.0,
                expected="one call at least",
                message=f"{unused.name} was called 0 times on the batch, while the module that holds it ran.",
                fix="call it in forward, or delete it.",
                severity="info" if _mentions(owner, name, _key(case.model, unused.path)) else None,
            )


def _held_by(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that could call it, and its name there: that of the list or dict that it is in, if it is."""
    owner, _, name = path.rpartition(".")
    while owner and isinstance(model.get_submodule(owner), (nn.ModuleList, nn.ModuleDict)):
        owner, _, name = owner.rpartition(".")
    return model.get_submodule(owner), name


def _key(model: nn.Module, path: str) -> str | None:
    """Its name in a dict of modules, if it is in one."""
    holder, _, name = path.rpartition(".")
    return name if isinstance(model.get_submodule(holder), nn.ModuleDict) else None


def _mentions(owner: nn.Module, name: str, key: str | None) -> bool:
    """Does the code of the module's class speak of it, where it does not build it? Of one in a dict, with its
    key, or with none that is fixed."""
    overridden: set[str] = set()
    for kind in type(owner).__mro__:
        if kind is nn.Module:
            break
        for key, value in vars(kind).items():
            if key in overridden or BUILDS.search(key) or not inspect.isfunction(value):
                continue
            try:
                tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
            except (OSError, SyntaxError):
                continue
            words = [_words(node) for node in ast.walk(tree)]
            spoken = [found for found in words if found]
            wanted = [name] if key is None or not any(map(_is_fixed, ast.walk(tree))) else [name, key]
            if all(any(_is_meant(word, *found) for found in spoken) for word in wanted):
                return True
            if not any(found and found[0] == "super" for found in words):
                overridden.add(key)
    return False


def _is_fixed(node: ast.AST) -> bool:
    """layers["norm"], and not layers[name]."""
    index = node.slice if isinstance(node, ast.Subscript) else None
    return isinstance(index, ast.Constant) and isinstance(index.value, str)


def _words(node: ast.AST) -> tuple[str, bool] | None:
    """A name in the code, and whether it is only how one begins: f"norm{i}"."""
    if isinstance(node, ast.Attribute):
        return node.attr, False
    if isinstance(node, ast.Name):
        return node.id, False
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        return str(node.values[0].value), True
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value, False
    return None


def _is_meant(name: str, word: str, begins: bool) -> bool:
    return word == name or (begins and bool(word) and name.startswith(word))
