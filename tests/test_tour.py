"""The tour runs, says what it must, and fits a terminal."""

import subprocess
import sys
from pathlib import Path

TOUR = Path(__file__).parent.parent / "examples" / "tour.py"


def test_the_tour_shows_the_worked_example_and_the_book_stack_in_80_columns():
    text = subprocess.run([sys.executable, str(TOUR)], capture_output=True, text=True, check=True).stdout
    assert "mean 1.25, std 2.165" in text
    assert "1.73   1.73  -0.58" in text
    for pattern in ("[n] c [h w]", "n [c h w]", "n [c] h w", "n c [h w]", "n (g [c]) [h w]"):
        assert pattern in text
    assert "replaced 12 of 12 norms" in text
    assert max(map(len, text.splitlines())) <= 80
