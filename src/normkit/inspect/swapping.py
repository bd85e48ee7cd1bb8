"""Put normkit's layers into a model that exists."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from normkit import norms
from normkit.errors import user_error
from normkit.inspect.edit import Edit, Edits
from normkit.inspect.equal import MismatchError, as_rms_norm
from normkit.inspect.spec import NormSpec

__all__ = ["SwapReport", "Swapped", "float32_statistics", "swap"]

Rule = type[nn.Module] | Callable[[nn.Module], nn.Module]

# torch's class -> ours, under the same name.
OURS: dict[type[nn.Module], type[nn.Module]] = {
    getattr(nn, name): getattr(norms, name) for name in norms.__all__ if hasattr(nn, name)
}


@dataclass(frozen=True)
class Swapped:
    """One norm of a model: what it was, and what it is now or why it was left."""

    name: str
    old: str
    new: str | None
    why: str = ""


@dataclass(frozen=True)
class SwapReport:
    """What :func:`swap` did; ``print`` it."""

    replaced: tuple[Swapped, ...]
    left: tuple[Swapped, ...]
    unused: tuple[str, ...] = ()  # rules for classes that the model does not have
    edits: Edits = field(default_factory=lambda: Edits([]), repr=False, compare=False)

    def undo(self) -> None:
        """The model as it was before."""
        self.edits.undo()

    def __str__(self) -> str:
        lines = [f"replaced {len(self.replaced)} of {len(self.replaced) + len(self.left)} norms"]
        rows = [(s.name, f"{s.old} -> {s.new}") for s in self.replaced]
        rows += [(s.name, f"{s.old} left as it is: {s.why}") for s in self.left]
        # Layers that differ only in their numbers make one row.
        alike: dict[tuple[str, str], list[str]] = {}
        for name, text in rows:
            alike.setdefault((re.sub(r"\b\d+\b", "*", name), text), []).append(name)
        shown = [
            (len(names), folded if len(names) > 1 else names[0] or "(the model itself)", text)
            for (folded, text), names in alike.items()
        ]
        width = max((len(name) for _, name, _ in shown), default=0)
        lines += [f"  {count:4} x {name:{width}}  {text}" for count, name, text in shown]
        lines += [f"  no {name} in the model: its rule was not used" for name in self.unused]
        return "\n".join(lines)


def swap(model: nn.Module, rules: Mapping[str | type[nn.Module], Rule] | None = None) -> SwapReport:
    """Replace the norms of a model by normkit's, in place, and report what was replaced.

    Without rules, every norm of ``torch.nn`` becomes ours, and so does every RMSNorm class of another
    library that a probe of its behaviour proves equal to ours (Hugging Face's, for example). The modules
    stay the same objects and only change their class: hooks, training flags, frozen and shared parameters
    are untouched, and an optimizer that was built before goes on working. An ``nn.TransformerEncoderLayer``
    leaves its inference fast path, which would not call the norms.

    Args:
        rules: a class in the model, or its name -> what to put in its place; only these are replaced. A
            function gets the old module and returns the new one. A class is built from the arguments that
            the old module has as attributes, and takes over its parameters of the same name and shape.
            Hooks, the training flag, device and dtype are carried over.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> print(swap(model))
        replaced 1 of 1 norms
             1 x 1  BatchNorm2d -> normkit.BatchNorm2d
        >>> print(swap(model, {"BatchNorm2d": lambda old: norms.GroupNorm(2, old.num_features)}))
        replaced 1 of 1 norms
             1 x 1  BatchNorm2d -> normkit.GroupNorm
    """
    if not isinstance(model, nn.Module):
        raise user_error(f"swap got {type(model).__name__}.", expected="a torch.nn.Module")
    named, unused = (None, []) if rules is None else _checked(model, rules)
    replaced: list[Swapped] = []
    left: list[Swapped] = []
    verdicts: Verdicts = {}
    changes: list[Edit] = []  # all are planned before the first is made
    for name, module in model.named_modules():
        old = type(module).__name__
        try:
            change = _by_default(module, verdicts) if named is None else _by_rule(model, name, module, named)
        except MismatchError as mismatch:
            left.append(Swapped(name, old, None, str(mismatch)))
            continue
        if change is not None:
            new, make = change
            changes.append(Edit(name, f"{old} becomes {new}", make))
            replaced.append(Swapped(name, old, new))
    edits = Edits(
        [
            *changes,
            Edit("", "torch's fast path is left, which would not call the norms", _leave_fast_path(model)),
        ]
    )
    edits.apply()
    return SwapReport(tuple(replaced), tuple(left), tuple(unused), edits)


def float32_statistics(path: str, module: nn.Module, spec: NormSpec) -> Edit:
    """The same module as a layer of ours, which takes statistics in float32, or ``MismatchError``.

    It keeps its parameters. Where nothing overflows and eps is not lost, it computes the same.
    """
    weight = module._parameters.get("weight")
    others = [n for n, p in module.named_parameters() if n not in ("weight", "bias")]
    plain = spec.axes == (-1,) and spec.groups is None and spec.factor == 1 and spec.gate is None
    if not plain or others or weight is None or weight.ndim != 1 or not spec.eps_in_root:
        raise MismatchError("it is no LayerNorm or RMSNorm of the last axis with one gain")
    if spec.centered and (spec.gain != "w" or not spec.bias):
        raise MismatchError("its gain has another convention")
    target: type[nn.Module] = norms.LayerNorm if spec.centered else norms.RMSNorm
    settings: dict[str, object] = {"normalized_shape": tuple(weight.shape), "eps": spec.eps}
    settings |= {"elementwise_affine": True}
    if not spec.centered:
        settings["zero_centered_weight"] = spec.gain == "1 + w"
    label = f"{type(module).__name__} becomes {_label(target)}: statistics in float32"
    return Edit(path, label, lambda: _become(module, target, **settings))


Undo = Callable[[], None]
Change = tuple[str, Callable[[], Undo]]
Verdicts = dict[tuple[type, str, str], dict[str, object] | MismatchError]


def _by_default(module: nn.Module, verdicts: Verdicts) -> Change | None:
    kind = type(module)
    if kind.__module__.startswith("normkit."):
        return None
    foreign = (
        "norm" in kind.__name__.lower() and not kind.__module__.startswith("torch.") and _is_leaf(module)
    )
    if not (foreign or isinstance(module, (*OURS, _NormBase))):
        return None
    if "forward" in module.__dict__:
        raise MismatchError("its forward was replaced on the object itself")
    if kind in OURS:
        return _label(OURS[kind]), lambda: _become(module, OURS[kind])
    if isinstance(module, (*OURS, _NormBase)):
        raise MismatchError("its class derives from torch.nn's and may compute something else")
    settings = _rms_settings(module, verdicts)
    return _label(norms.RMSNorm), lambda: _become(module, norms.RMSNorm, **settings)


def _rms_settings(module: nn.Module, verdicts: Verdicts) -> dict[str, object]:
    """The attributes of the RMSNorm that computes the same. Layers of one kind share a probe."""
    shapes = [tuple(p.shape) for p in module.parameters()]
    public = sorted((k, repr(v)) for k, v in vars(module).items() if not k.startswith("_"))
    key = (type(module), repr(shapes), repr(public))
    if key not in verdicts:
        try:
            found = vars(as_rms_norm(module))
            verdicts[key] = {k: v for k, v in found.items() if not k.startswith("_") and k != "training"}
        except MismatchError as mismatch:
            verdicts[key] = mismatch
    verdict = verdicts[key]
    if isinstance(verdict, MismatchError):
        raise verdict
    return verdict


def _leave_fast_path(model: nn.Module) -> Callable[[], Undo]:
    """Of layers whose norms are no longer torch's own: it reads their weights and does not call them."""

    def make() -> Undo:
        layers = [
            m for m in model.modules() if isinstance(m, nn.TransformerEncoderLayer) and not _is_plain(m)
        ]
        before = [layer.activation_relu_or_gelu for layer in layers]
        for layer in layers:
            layer.activation_relu_or_gelu = 0

        def undo() -> None:
            for layer, value in zip(layers, before, strict=True):
                layer.activation_relu_or_gelu = value

        return undo

    return make


def _is_plain(layer: nn.TransformerEncoderLayer) -> bool:
    return type(layer.norm1) is type(layer.norm2) is nn.LayerNorm


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _become(module: nn.Module, target: type[nn.Module], **settings: object) -> Undo:
    kind, state = type(module), dict(vars(module))
    module.__class__ = target
    for name, value in settings.items():
        setattr(module, name, value)

    def undo() -> None:
        module.__class__ = kind
        for name in settings:
            vars(module).pop(name, None)
        vars(module).update({name: state[name] for name in settings if name in state})

    return undo


def _by_rule(model: nn.Module, name: str, module: nn.Module, rules: Mapping[str, Rule]) -> Change | None:
    rule = rules.get(type(module).__name__)
    if rule is None:
        return None
    if isinstance(rule, type) and _same_state(rule, type(module)):
        return _label(rule), lambda: _become(module, rule)
    new = _build(rule, module) if isinstance(rule, type) else rule(module)
    if not isinstance(new, nn.Module):
        raise user_error(
            f"the rule for {type(module).__name__!r} returned {type(new).__name__} for {name!r}.",
            expected="a torch.nn.Module",
        )
    if new is module:
        return None
    if module is model:
        raise user_error(
            "the model is itself the norm to be replaced, and an object cannot replace itself.",
            fix="call the rule: model = rule(model).",
        )
    places = [(p, n) for p in model.modules() for n, child in p._modules.items() if child is module]

    def replace() -> Undo:
        hooks = {name: dict(table) for name, table in vars(module).items() if _is_hooks(name, table)}
        _carry_over(module, new)
        for parent, place in places:
            parent._modules[place] = new

        def undo() -> None:
            for parent, place in places:
                parent._modules[place] = module
            for name, table in hooks.items():
                vars(module)[name].clear()
                vars(module)[name].update(table)

        return undo

    return _label(type(new)), replace


def _same_state(target: type[nn.Module], source: type[nn.Module]) -> bool:
    """Whether a class of ours can simply be given to a module that was built as another."""
    ours = target.__module__.startswith("normkit.")
    return ours and (
        issubclass(target, source) or (issubclass(target, _BatchNorm) and issubclass(source, _BatchNorm))
    )


def _build(target: type[nn.Module], module: nn.Module) -> nn.Module:
    """Call the class with the arguments that ``module`` has as attributes; share tensors of equal shape."""
    arguments = _arguments(target)
    known = {
        n: getattr(module, n)
        for n in arguments
        if n not in ("bias", "device", "dtype") and hasattr(module, n)
    }
    missing = [n for n, p in arguments.items() if p.default is p.empty and n not in known]
    if missing:
        old = type(module).__name__
        raise user_error(
            f"{target.__name__} cannot be built from a {old}, which has no {', '.join(missing)}.",
            fix=f"give a function: {{{old!r}: lambda old: {_label(target)}(...)}}.",
        )
    if "bias" in arguments and getattr(module, "bias", None) is None:
        known["bias"] = False
    new = target(**known)
    for name, value in {**module._parameters, **module._buffers}.items():
        mine = getattr(new, name, None)
        if value is not None and mine is not None and mine.shape == value.shape:
            setattr(new, name, value)
    return new


def _arguments(target: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """What a constructor takes by name; one that hands **kwargs on takes what its base takes."""
    found: dict[str, inspect.Parameter] = {}
    for kind in target.__mro__:
        parameters = dict(list(inspect.signature(kind.__init__).parameters.items())[1:])  # type: ignore[misc]
        hands_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        found = {**named, **found}
        if not hands_on:
            break
    return found


def _carry_over(old: nn.Module, new: nn.Module) -> None:
    """Device, dtype, training flag, and the very dictionaries of hooks, so that their handles still work."""
    if any(part is old for part in new.modules()):
        return  # the old module goes on inside the new one, with all that it has
    old_ones = (*old.parameters(), *old.buffers())
    like = next((t for t in old_ones if t.is_floating_point()), None)
    taken_over = {id(t) for t in old_ones}

    def move(t: Tensor) -> Tensor:
        if like is None or id(t) in taken_over:
            return t
        return t.to(like.device, like.dtype) if t.is_floating_point() else t.to(like.device)

    new._apply(move)
    new.train(old.training)
    for name, hooks in vars(old).items():
        if _is_hooks(name, hooks):
            hooks.update(vars(new)[name])
            vars(new)[name] = hooks
    if old._is_full_backward_hook is not None:
        new._is_full_backward_hook = old._is_full_backward_hook


def _is_hooks(name: str, value: object) -> bool:
    return "hooks" in name and isinstance(value, dict)


def _checked(
    model: nn.Module, rules: Mapping[str | type[nn.Module], Rule]
) -> tuple[dict[str, Rule], list[str]]:
    if not isinstance(rules, Mapping):
        raise user_error(
            f"swap got rules of {type(rules).__name__}.", expected="a dict: class -> what to put there"
        )
    present = sorted({type(m).__name__ for m in model.modules()})
    named = {key if isinstance(key, str) else key.__name__: rule for key, rule in rules.items()}
    for name, rule in named.items():
        if isinstance(rule, nn.Module) or not callable(rule):
            raise user_error(
                f"swap got {rule!r} as the rule for {name!r}.",
                expected="a class, or a function from the old module to the new one",
                fix=f"{{{name!r}: lambda old: ...}}",
            )
    unused = [name for name in named if name not in present]
    if len(unused) == len(named):
        close = difflib.get_close_matches(unused[0], present, n=1) if unused else []
        raise user_error(
            f"swap got rules for {', '.join(map(repr, unused)) or 'nothing'}: the model has no such module.",
            expected=f"one of {', '.join(present)}",
            fix=f"did you mean {close[0]!r}?" if close else None,
        )
    return named, unused


def _label(kind: type) -> str:
    return f"normkit.{kind.__name__}" if kind.__module__.startswith("normkit.") else kind.__name__
