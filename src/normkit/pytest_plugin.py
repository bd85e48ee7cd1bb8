"""For pytest: the fixture ``assert_healthy``. pytest finds it by itself where normkit is installed.

    def test_norms(assert_healthy):
        assert_healthy(MyModel(), batch)

It is not in ``normkit.doctor``: pytest imports it whenever it starts, and torch must not come with it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

__all__ = ["assert_healthy"]


@pytest.fixture(scope="session")
def assert_healthy() -> Callable[..., None]:
    """``nk.assert_healthy(model, batch, **options)``: fails with the report on an error or a warning."""
    from normkit.doctor import assert_healthy as check

    return check
