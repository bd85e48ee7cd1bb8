"""The one error that normkit raises for a caller's mistake: got, expected, fix."""

__all__ = ["NormkitError"]


class NormkitError(ValueError, RuntimeError):
    """A call that cannot be carried out, with what was got, what was expected, and how to repair it.

    It is both a ``ValueError`` and a ``RuntimeError``, because ``torch.nn`` raises now the one and now
    the other for the same mistakes: code that catches torch's error catches ours too.
    """

    def __init__(self, got: str, *, expected: str | None = None, fix: str | None = None) -> None:
        lines = [got]
        if expected is not None:
            lines.append(f"  expected: {expected}")
        if fix is not None:
            lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.args[0],))


def _rebuild(message: str) -> NormkitError:
    return NormkitError(message)
