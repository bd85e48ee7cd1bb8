"""Two real processes under torchrun: see worker.py for what each claim checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("worker.py")
CLAIMS = [
    "sync_batch_norm_equals_one_process",
    "sync_batch_norm_equals_torch_on_the_whole_batch",
    "sync_batch_norm_takes_one_sample_a_rank",
    "sync_batch_norm_is_exact_in_float32_for_large_means_and_magnitudes",
    "sync_batch_norm_computes_in_the_dtype_of_its_input",
    "sync_batch_norm_does_not_count_a_batch_of_padding",
    "sync_batch_norm_does_not_synchronise_in_evaluation",
    "a_converted_model_keeps_its_process_group",
    "surgery_synchronises_a_derived_class_and_keeps_what_it_does",
    "sync_batch_norm_takes_a_mask_on_each_rank",
    "sync_batch_norm_takes_a_rank_of_padding_alone",
    "sync_batch_norm_is_twice_differentiable",
    "sync_batch_norm_of_a_subgroup_ignores_the_others",
    "ddp_trains_like_one_process",
    "fsdp2_trains_like_one_process",
    "a_language_model_trains_with_ddp",
    "a_language_model_trains_with_fsdp2",
    "dtensor_shards_batch_and_sequence",
    "dtensor_shards_the_batch_of_images",
    "sequence_parallel_style_takes_our_layers",
    "sync_batch_norm_compiles",
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
    assert set(functions) - {"main", "halves"} == set(CLAIMS)
