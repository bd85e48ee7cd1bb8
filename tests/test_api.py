"""The public surface, frozen: a change here is a change for users, and belongs into the CHANGELOG."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import normkit as nk

PACKAGE = Path(nk.__file__).parent

NAMES = [
    *("AdaNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Doctor", "DyT", "Encoder", "GroupNorm"),
    *("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LanguageModel", "LayerNorm", "Norm"),
    *("NormkitError", "Placement", "PowerNorm", "RMSNorm", "Residual", "ScaleNorm", "Seq2Seq"),
    *("SyncBatchNorm", "__version__", "assert_healthy", "backend", "describe", "doctor", "exact"),
    *("functional", "inspect", "kernels", "lab", "surgery", "swap"),
]

RUNNING = "input running_mean running_var weight bias"
BATCH = "num_features eps momentum affine track_running_stats device dtype *bias *axis"
SIGNATURES = {  # names of the arguments; * marks those that are passed by name only
    "AdaNorm": "norm dim cond_dim activation device dtype *axis",
    "BatchNorm1d": BATCH,
    "BatchNorm2d": BATCH,
    "BatchNorm3d": BATCH,
    "Doctor": "model optimizer *every *select *ignore *loss *out",
    "DyT": "normalized_shape alpha elementwise_affine bias device dtype *axis",
    "GroupNorm": "num_groups num_channels eps affine device dtype *bias *axis",
    "InstanceNorm1d": BATCH,
    "InstanceNorm2d": BATCH,
    "InstanceNorm3d": BATCH,
    "LayerNorm": "normalized_shape eps elementwise_affine bias device dtype *axis",
    "Encoder": "**options",
    "LanguageModel": "**options",
    "LanguageModel.generate": "self ids max_new_tokens *mask *stop *temperature *top_k *top_p *generator",
    "Placement": "pre out post skip gate scale gain final inner dual",
    "Residual": "fn dim placement norm *layer *depth *kind *dropout",
    "Seq2Seq": "*encoder_depth **options",
    "Norm": "pattern eps *center *affine *bias *device *dtype **sizes",
    "PowerNorm": "num_features eps alpha_forward alpha_backward affine device dtype *axis",
    "RMSNorm": "normalized_shape eps elementwise_affine device dtype *axis *zero_centered_weight *multiply",
    "ScaleNorm": "dim eps device dtype *axis",
    "SyncBatchNorm": BATCH.replace("device", "process_group device"),
    "lab.compare": "task *data *norm *placement *lr *seeds *depth *width *batch_size *warmup *steps "
    "*schedule *budget *device *out *engine *address *workers *limit *prune *progress **fields",
    "lab.study": "names *seeds *quick *out *save *engine *address *workers *progress",
    "lab.ledger": "results",
    "lab.train": "run out *resume *bf16 *compile *shard *every *progress",
    "lab.Run": "task options norm placement lr depth width batch_size warmup steps schedule seed until "
    "device",
    "lab.Task": "",
    "lab.Task.model": "self run",
    "lab.Task.batch": "self size generator",
    "lab.Task.loss": "self model batch",
    "lab.Task.held_out": "self",
    "lab.Task.plateau": "self",
    "lab.Task.metrics": "self model",
    "lab.Task.layers": "self model",
    "lab.Task.sample": "self model",
    "lab.Task.advance": "self step steps",
    "assert_healthy": "model batch **options",
    "describe": "pattern shape *center **sizes",
    "doctor": "model batch *optimizer *loss *reference *select *ignore",
    "doctor.HuggingFaceCallback": "*every *select *ignore *loss *out",
    "doctor.LightningCallback": "*every *select *ignore *loss *out",
    "exact": "",
    "inspect": "model batch",
    "surgery.add_qk_norm": "model batch *dry_run",
    "surgery.bn_to_group": "model batch *groups *dry_run",
    "surgery.bn_to_sync": "model batch *process_group *dry_run",
    "surgery.center_to_rms": "model batch *tied *convert *dry_run",
    "surgery.drop_bias": "model batch *remove *dry_run",
    "surgery.equalise_gains": "model batch *alpha *dry_run",
    "surgery.fold_affine": "model batch *tied *new_biases *dry_run",
    "surgery.fold_batchnorm": "model batch *dry_run",
    "surgery.freeze_bn": "model batch *affine *dry_run",
    "surgery.ln_to_rms": "model batch *dry_run",
    "surgery.progress": "say",
    "surgery.recalibrate_bn": "model loader *batches *dry_run",
    "surgery.sync_to_bn": "model batch *dry_run",
    "surgery.to_dyt": "model batch *dry_run",
    "swap": "model rules",
    "functional.add_layer_norm": "x residual normalized_shape weight bias eps *axis *out",
    "functional.add_rms_norm": "x residual normalized_shape weight eps *axis *zero_centered_weight *multiply "
    "*out",
    "functional.batch_norm": f"{RUNNING} training momentum eps *axis *mask *process_group "
    "*num_batches_tracked *out",
    "functional.group_norm": "input num_groups weight bias eps *axis *mask *out",
    "functional.instance_norm": f"{RUNNING} use_input_stats momentum eps *axis *mask *out",
    "functional.layer_norm": "input normalized_shape weight bias eps *axis *out",
    "functional.normalize": "x pattern weight bias eps *center *affine *mask *out **sizes",
    "functional.rms_norm": "input normalized_shape weight eps *axis *zero_centered_weight *multiply *out",
}


def signature(name):
    target = nk
    for part in name.split("."):
        target = getattr(target, part)
    marks = {inspect.Parameter.KEYWORD_ONLY: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return " ".join(marks.get(p.kind, "") + p.name for p in inspect.signature(target).parameters.values())


def test_the_public_names_are_these():
    assert sorted(nk.__all__) == sorted(NAMES)
    functions = {n.removeprefix("functional.") for n in SIGNATURES if n.startswith("functional.")}
    assert set(nk.functional.__all__) == functions
    assert nk.doctor.__all__ == [
        *("RULES", "Doctor", "Finding", "HuggingFaceCallback", "LightningCallback", "Report"),
        *("assert_healthy", "doctor", "rule_of"),
    ]
    assert set(nk.surgery.__all__) == {"Certificate", "SURGERIES"} | {
        name.removeprefix("surgery.") for name in SIGNATURES if name.startswith("surgery.")
    }
    assert nk.lab.__all__ == ["Comparison", "Run", "Task", "compare", "ledger", "study", "train"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_arguments_are_these(name):
    assert signature(name) == SIGNATURES[name]


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("__version__",)])
def test_every_public_name_says_what_it_is(name):
    thing = getattr(nk, name)
    assert thing.__doc__
    if isinstance(thing, type):
        assert thing.__dict__["__doc__"], "its own, not torch's"


@pytest.mark.parametrize("name", nk.norms.__all__)
def test_every_layer_documents_formula_or_kin_shape_and_example(name):
    text = inspect.getdoc(getattr(nk, name))
    assert "Shape: " in text
    assert "Example:" in text
    assert "Reference:" in text or "All else as in" in text or name == "Norm"


# What each part may import, besides itself: everything points down.
LAYERS = [
    *(
        "__main__",
        "cli",
        "verify",
        "bench",
        "lab",
        "transformer",
        "placement",
        "pytest_plugin",
        "doctor",
        "surgery",
        "loading",
        "inspect",
        "norms",
        "functional",
        "torch_semantics",
        "kernels",
        "pattern",
    ),
    *("callable_part", "checks", "errors", "_version"),
]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("normkit"):
            parts = node.module.split(".")[1:2]
            yield from parts or [alias.name for alias in node.names]


def test_imports_point_one_way():
    seen = set()
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        seen.add(part)
        for target in imports(path):
            assert part == target or LAYERS.index(part) < LAYERS.index(target), (
                f"{path.name} imports {target}"
            )
    assert seen == set(LAYERS), "a new part needs its place in LAYERS"


def modules_after(code):
    code += "; import sys; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_importing_loads_nothing_heavy():
    loaded = modules_after("import normkit")
    assert "normkit" in loaded
    assert not {"torch", "numpy", "click", "rich"} & loaded
    used = modules_after("import normkit as nk; nk.swap, nk.LayerNorm(4)")
    assert "torch" in used
    assert not {"triton", "transformers", "onnxscript", "plotly", "click", "rich"} & used


def test_names_are_found_when_they_are_first_used():
    code = (
        "import normkit as nk\n"
        "assert set(nk.__all__) <= set(dir(nk))\n"
        "assert nk.functional.layer_norm and nk.norms.LayerNorm and nk.pattern.Pattern and nk.kernels.run\n"
        "from normkit import *\n"
        "assert LayerNorm is nk.LayerNorm is nk.norms.LayerNorm and swap is nk.inspect.swapping.swap"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="module 'normkit' has no attribute 'LayerNrom'"):
        nk.LayerNrom  # noqa: B018


def test_a_name_first_used_inside_a_compiled_function_is_found():
    code = (
        "import normkit as nk, sys, torch\n"
        "assert 'normkit.functional' not in sys.modules\n"
        "f = torch.compile(lambda x: nk.functional.rms_norm(x, (4,)), fullgraph=True, backend='eager')\n"
        "torch.testing.assert_close(f(torch.ones(2, 4)), torch.ones(2, 4))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").exists()
