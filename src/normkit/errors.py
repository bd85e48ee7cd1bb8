"""The one error that normkit raises for a caller's mistake: got, expected, fix."""

__all__ = ["NormkitError", "user_error"]


class NormkitError(ValueError, RuntimeError):
    """A call that cannot be carried out, with what was got, what was expected, and how to repair it.

    It is both a ``ValueError`` and a ``RuntimeError``, because ``torch.nn`` raises now the one and now
    the other for the same mistakes: code that catches torch's error catches ours too.
    """


def user_error(got: str, *, expected: str | None = None, fix: str | None = None) -> NormkitError:
    """The error with its three lines. A function, because torch.compile cannot trace an __init__ of ours."""
    lines = [got]
    if expected is not None:
        lines.append(f"  expected: {expected}")
    if fix is not None:
        lines.append(f"  fix: {fix}")
    return NormkitError("\n".join(lines))
