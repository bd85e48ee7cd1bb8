"""What the command line examines: ``package.module:attribute``, or a folder with a config."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from normkit.errors import NormkitError, user_error
from normkit.loading.folder import load_folder

__all__ = ["load", "load_batch", "load_model"]

NAMED = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")
FORMS = "package.module:attribute, or a folder with a config.json"


def load(target: str, batch: str | None = None, notes: list[str] | None = None) -> tuple[nn.Module, Any]:
    """The model and its batch; None where none was named. ``notes`` takes what its user should know.

    Args:
        target: ``my_pkg.models:build``, a module or a function without arguments that returns one; or the
            path of a folder of Hugging Face's. The current directory can be imported from.
        batch: ``my_pkg.data:one_batch``, a value or a function without arguments.
    """
    model = load_model(target, notes)
    return model, None if batch is None else load_batch(batch)


def load_model(target: str, notes: list[str] | None = None) -> nn.Module:
    notes = [] if notes is None else notes
    path = Path(target).expanduser()
    if os.path.lexists(path) or not _is_named(target):
        try:
            return load_folder(path, notes)
        except OSError as error:
            raise user_error(f"{path} cannot be read: {error.strerror or error}.") from error
    found = _find(target)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise user_error(
                f"{target} is of type {type(found).__name__}.",
                expected="a torch.nn.Module, or a function or class that returns one without arguments",
            )
        found = _call(target, found)
    if isinstance(found, nn.Module):
        return found
    if inspect.iscoroutine(found):
        found.close()
    hint = ", or the model alone: build()[0]" if isinstance(found, (tuple, list)) else ""
    raise user_error(f"{target}() returned {type(found).__name__}.", expected=f"a torch.nn.Module{hint}")


def load_batch(name: str) -> Any:
    """A value as it is; what can be called, and is no tensor, tuple or dict, is called."""
    if NAMED.fullmatch(name) is None:
        raise user_error(
            f"--batch got {name!r}.", expected="package.module:attribute, for example my_pkg.data:one_batch"
        )
    found = _find(name)
    is_value = isinstance(found, (Tensor, Mapping, tuple, list)) or not callable(found)
    found = found if is_value else _call(name, found)
    if found is None:
        raise user_error(f"{name} gave None.", expected="a tensor, a tuple of arguments, or a dict of them")
    return found


def _is_named(target: str) -> bool:
    """Whether it is written as a name. If not, whoever reads folders says that there is none of that path."""
    if NAMED.fullmatch(target):
        return True
    file, colon, attribute = target.rpartition(":")
    if colon and file.endswith(".py"):
        dotted = re.sub(r"[\\/]+", ".", os.path.normpath(file).removesuffix(".py")).strip(".")
        raise user_error(
            f"{target} names a file.", expected=FORMS, fix=f"normkit doctor {dotted}:{attribute}"
        )
    if colon and not re.search(r"[\\/]", target):
        raise user_error(f"{target!r} is neither a name nor a folder.", expected=FORMS)
    if re.fullmatch(r"[^\W\d]\w*(\.\w+)*", target) and _is_importable(target.partition(".")[0]):
        raise user_error(f"{target} is a module.", expected=FORMS, fix=f"normkit doctor {target}:build")
    return False


def _is_importable(name: str) -> bool:
    with contextlib.suppress(Exception):
        _see_here()
        return importlib.util.find_spec(name) is not None
    return False


def _see_here() -> None:
    """The current directory can be imported from, as with ``python -m``."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()


def _find(name: str) -> Any:
    """The attribute of the module; a dotted one, step by step."""
    where, _, path = name.partition(":")
    found: Any = _import(where)
    done = where
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            close = difflib.get_close_matches(part, _public(found), n=3)
            raise user_error(
                f"{done} has no attribute {part!r}.",
                expected=f"one of {', '.join(_public(found)[:12])}" if _public(found) else None,
                fix=f"did you mean {' or '.join(close)}?" if close else None,
            ) from error
        done = f"{done}.{part}"
    return found


def _public(thing: Any) -> list[str]:
    """Names of its own; of a module, first those that it does not import."""
    names = [n for n in dir(thing) if not n.startswith("_")]
    own = [
        n
        for n in names
        if getattr(getattr(thing, n, None), "__module__", None) == getattr(thing, "__name__", "")
    ]
    return own or names


def _import(name: str) -> Any:
    _see_here()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            parent, _, last = missing.rpartition(".")
            close = difflib.get_close_matches(last, _neighbours(parent), n=1)
            raise user_error(
                f"there is no module {missing!r}, neither installed nor in {os.getcwd()}.",
                expected=FORMS,
                fix=f"did you mean {name.replace(last, close[0], 1)}?" if close else None,
            ) from error
        raise _raised(f"importing {name}", error) from error
    except (Exception, SystemExit) as error:
        raise _raised(f"importing {name}", error) from error


def _neighbours(parent: str) -> list[str]:
    """Modules beside one that is not there: of its package, or of the current directory."""
    paths: Iterable[str] = [os.getcwd()]
    if parent:
        with contextlib.suppress(Exception):
            paths = importlib.import_module(parent).__path__
    return [found.name for found in pkgutil.iter_modules(paths)]


def _call(name: str, function: Any) -> Any:
    """Without arguments."""
    needed: list[str] = []
    with contextlib.suppress(ValueError, TypeError):  # some have no signature
        needed = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    if needed:
        module, _, attribute = name.partition(":")
        given = ", ".join(f"{n}=…" for n in needed)
        raise user_error(
            f"{name} needs arguments: {', '.join(needed)}.",
            expected="something that can be called without any",
            fix=f"def build(): return {attribute}({given})  in {module}, then name {module}:build",
        )
    try:
        return function()
    except NormkitError:
        raise
    except (Exception, SystemExit) as error:
        raise _raised(f"{name}()", error) from error


def _raised(what: str, error: BaseException) -> NormkitError:
    """One line about what a user's code raised, with the last line of theirs."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    frames = [f for f in frames if f.filename != __file__]
    if isinstance(error, SyntaxError) and error.filename:
        at = f" ({error.filename}:{error.lineno})"
    else:
        at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SystemExit):
        return user_error(f"{what} called sys.exit({error.code!r}){at}.")
    said = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())[:300]
    return user_error(f"{what} raised {type(error).__name__}: {said or 'no message'}{at}")
