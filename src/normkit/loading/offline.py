"""transformers at work without a word, and without the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["offline"]


@contextmanager
def offline() -> Iterator[None]:
    """As under HF_HUB_OFFLINE=1; its warnings are about what the doctor reports itself."""
    from huggingface_hub import constants
    from transformers.utils import logging

    before, level = constants.HF_HUB_OFFLINE, logging.get_verbosity()
    had_bars = logging.is_progress_bar_enabled()
    constants.HF_HUB_OFFLINE = True
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()
