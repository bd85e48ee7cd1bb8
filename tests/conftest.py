"""``--quick``: a minute of tests from every part, a few parameters of each; slow ones are left out.
``--triton``: the kernels' tests once more, on the Triton kernels, interpreted on the CPU.
"""

import os
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Files that train, compile, export, open a browser or start processes, and the tests of them that stay.
SLOW = {
    "tests/distributed/test_two_processes.py": (),
    "tests/doctor/test_command.py": (),
    "tests/doctor/test_page.py": (),
    "tests/doctor/test_pytest_plugin.py": (),
    "tests/doctor/test_ranks.py": (),
    "tests/integration/test_compile_and_func.py": (
        "test_torch_func_maps_and_differentiates_every_layer",
        "test_autocast_gives_the_dtype_that_torch_gives",
    ),
    "tests/integration/test_export.py": ("test_mixed_dtypes_export_as_they_run",),
    "tests/kernels/ptx/test_ptx.py": (),
    "tests/kernels/test_gpu_compile.py": (),
    "tests/kernels/test_instruction_sets.py": (),
    "tests/kernels/test_without_library.py": (),
    "tests/lab/test_engines.py": (),
    "tests/lab/test_figures.py": (),
    "tests/lab/test_own.py": ("test_placements_are_known_by_their_fields",),
    "tests/lab/test_measuring.py": (
        "test_no_number_is_a_result_and_stops_the_run",
        "test_the_probe_leaves_the_model_as_it_was",
        "test_a_thinned_curve_keeps_its_mean_and_its_end",
    ),
    "tests/lab/test_page.py": (),
    "tests/lab/test_study_page.py": ("test_the_guide_is_what_the_results_say",),
    "tests/lab/test_study_verb.py": (
        "test_without_a_name_it_lists_the_studies_and_their_verdicts",
        "test_the_ledger_is_shown_whole_or_for_a_study",
    ),
    "tests/lab/test_report_verb.py": (),
    "tests/lab/test_signals.py": (),
    "tests/lab/test_sweep.py": ("test_more_seeds_add_to_what_is_there",),
    "tests/lab/test_train.py": (),
    "tests/lab/test_verbs.py": (),
    "tests/norms/test_gradients.py": ("test_both_outputs_of_a_fused_sum_have_gradients",),
    "tests/placement/test_theory.py": (),
    "tests/test_tour.py": (),
    "tests/transformer/test_others.py": ("test_what_we_do_not_compute_is_refused",),
}
SLOW_TESTS = {  # in files that are not slow
    "tests/bench/test_bench.py::test_a_smoke_run_on_the_cpu_writes_the_file_and_the_figure",
    "tests/kernels/test_eager.py::test_an_environment_variable_switches_it_off",
    "tests/kernels/test_eager.py::test_under_another_torch_it_does_not_load_and_says_why",
    "tests/kernels/test_hostile_calls.py::test_every_memory_order_of_every_pattern",
    "tests/lab/test_allocator.py::test_a_command_and_a_worker_map_no_page_twice_and_an_import_changes_nothing",
    "tests/lab/test_odd_numbers.py::test_a_full_disk_is_read_with_the_log_on_it",
    "tests/lab/test_store.py::test_another_process_is_kept_out_and_may_read",
    "tests/lab/test_trouble.py::test_a_run_that_was_stopped_is_tried_again_with_another_limit",
    "tests/lab/test_trouble.py::test_a_sweep_with_sys_exit_in_it_ends_with_a_word",
    "tests/lab/test_words.py::test_a_terminal_of_few_letters_gets_them",
    "tests/lab/test_words.py::test_words_that_are_no_text_at_all_are_printed_too",
    "tests/lab/test_store.py::test_a_killed_process_does_not_keep_the_folder",
    "tests/lab/test_studies.py::test_a_study_is_resumed_and_gives_the_same",
    "tests/lab/test_studies.py::test_every_study_runs_in_its_smallest_form_and_gives_no_verdict",
    "tests/lab/test_tasks.py::test_every_task_learns_something_in_forty_steps",
    "tests/test_api.py::test_a_name_first_used_inside_a_compiled_function_is_found",
    "tests/test_api.py::test_importing_loads_nothing_heavy",
    "tests/test_api.py::test_names_are_found_when_they_are_first_used",
    "tests/transformer/test_odd_calls.py::test_any_whole_number_is_a_token",
    "tests/transformer/test_torch.py::test_a_model_compiles_in_one_graph",
}

# Files whose tests are of norms as such, whatever computes them. Interpreted they take an hour (--all); a few
# are run each time.
INTERPRETED = ("tests/kernels/triton", "tests/kernels/test_extremes.py")
OF_ANY_KERNEL = (
    *INTERPRETED,
    "tests/kernels/test_accuracy.py",
    "tests/kernels/test_cpu_kernels.py",
    "tests/kernels/test_derivatives.py",
    "tests/kernels/test_groups_isolation.py",
    "tests/kernels/test_groups_outliers.py",
    "tests/kernels/test_reproducible.py",
    "tests/kernels/test_rows_extremes.py",
    "tests/norms/test_masks.py",
)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="with --triton: an hour of them")
    parser.addoption("--quick", action="store_true", help="a minute of tests from every part")
    parser.addoption("--triton", action="store_true", help="the kernels' tests on the Triton kernels")


def pytest_configure(config):
    if config.getoption("--triton"):
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton


def pytest_ignore_collect(collection_path, config):
    """A slow file of which nothing stays is not even imported."""
    path = collection_path.relative_to(ROOT).as_posix() if collection_path.is_relative_to(ROOT) else None
    if config.getoption("--triton") and path is not None and collection_path.is_file():
        wanted = OF_ANY_KERNEL if config.getoption("--all") else INTERPRETED
        return True if not path.startswith(wanted) else None
    if path is not None and path.startswith("tests/kernels/triton/") and not config.getoption("--triton"):
        return True
    return True if config.getoption("--quick") and SLOW.get(path) == () else None


@pytest.fixture(autouse=True, scope="session")
def triton_first(request):
    if request.config.getoption("--triton"):
        from interpreting import triton_first  # imports Triton

        triton_first()


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--quick"):
        return
    for name in (*SLOW, *SLOW_TESTS):
        path, _, test = name.partition("::")
        text = (ROOT / path).read_text() if (ROOT / path).exists() else ""
        if not text or any(f"def {name}(" not in text for name in SLOW.get(path, (test,))):
            raise pytest.UsageError(f"{name}: tests/conftest.py lists what is not there")
    tests = defaultdict(list)
    for item in items:
        tests[item.nodeid.split("[")[0]].append(item)
    kept = set()
    for name, same in tests.items():
        path, _, test = name.partition("::")
        if name not in SLOW_TESTS and (path not in SLOW or test in SLOW[path]):
            kept.update(id(same[at]) for at in (0, -1))  # the first parameter and the last
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]
