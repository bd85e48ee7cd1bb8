"""What `make demo` runs: the loss falls, something is written, and it fits a terminal."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = Path(__file__).parent.parent / "examples" / "train.py"


@pytest.mark.parametrize("placement", ["pre", "deepnorm"])
def test_a_few_seconds_of_training_lower_the_loss(placement):
    command = [sys.executable, str(TRAIN), "--seconds", "4", "--placement", placement]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, after = map(float, re.search(r"nats a byte: ([\d.]+) -> ([\d.]+)", text).groups())
    assert after < before - 1.5
    assert "def read(self, path):" in text
    assert max(map(len, text.split("It goes on")[0].splitlines())) <= 80


def test_an_unknown_placement_is_named():
    result = subprocess.run(
        [sys.executable, str(TRAIN), "--placement", "prre"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "invalid choice: 'prre'" in result.stderr
    assert "Traceback" not in result.stderr
