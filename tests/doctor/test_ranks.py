"""The doctor in two real processes under torchrun: see ranks_worker.py for what each claim checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("ranks_worker.py")
CLAIMS = [
    "equal_ranks_give_nothing",
    "gains_that_differ_are_found_with_the_number",
    "running_statistics_that_drifted_apart_are_found_and_mended",
    "running_statistics_that_ddp_broadcasts_are_no_finding_and_others_are_by_their_mode",
    "norms_that_one_process_does_not_call_are_left_out",
    "a_model_under_ddp_is_inspected_and_unchanged",
    "a_model_under_fsdp2_is_inspected_and_unchanged",
    "gains_of_zero_in_shards_are_dead_only_if_their_gradient_is_zero",
    "the_doctor_of_a_loop_watches_ddp_and_fsdp2",
    "only_the_first_process_speaks",
]


@pytest.fixture(scope="module")
def output():
    assert torch.distributed.is_gloo_available()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run(
        [*launch, str(WORKER), *CLAIMS],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    return result.stdout + result.stderr


@pytest.mark.parametrize("claim", CLAIMS)
def test_with_two_processes(claim, output):
    for rank in (0, 1):
        assert f"rank {rank}: {claim} holds" in output, output[-8000:]


def test_every_claim_of_the_worker_is_run():
    functions = [
        line.removeprefix("def ").removesuffix("():")
        for line in WORKER.read_text().splitlines()
        if line.startswith("def ") and line.endswith("():")
    ]
    assert set(functions) - {"main", "network", "sharded"} == set(CLAIMS)
