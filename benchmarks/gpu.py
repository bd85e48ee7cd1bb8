"""``make gpu``: every Triton kernel, compiled for GPUs that are not here, and what the compiler made of it.

The host functions are called with tensors that hold nothing; what they would launch is written down and
compiled with the same constants. So what is compiled is what would run. The files go to build/gpu/: the code,
and kernels.json with a row for each.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.gpu_results import Compiled, write_page

__all__ = [
    "ARCHITECTURES",
    "CASES",
    "DIMS",
    "Compiled",
    "Launch",
    "compile_for",
    "launches",
    "matrix",
]

ROOT = Path(__file__).parent.parent
ARCHITECTURES = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "sm_120": ("cuda", 120, 32),
    "gfx942": ("hip", "gfx942", 64),
}
DIMS = (64, 768, 4096, 8192, 16384, 65536)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CENTER, RMS = 1, 0
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.bool: "i1"}


def _meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _rows(kind: int, add: bool) -> Callable[[int, torch.dtype], None]:
    def call(dim: int, dtype: torch.dtype) -> None:
        from normkit.kernels.triton import rows

        x, weight = _meta(4096, dim, dtype=dtype), _meta(dim, dtype=dtype)
        bias = weight if kind & CENTER else None
        if add:
            rows.rows_add_train(x, x, weight, bias, 1, 1e-5, kind)
        else:
            rows.rows_train(x, weight, bias, 1, 1e-5, kind)

    return call


def _rows_backward(kind: int, add: bool) -> Callable[[int, torch.dtype], None]:
    def call(dim: int, dtype: torch.dtype) -> None:
        from normkit.kernels.triton import rows

        x, weight = _meta(4096, dim, dtype=dtype), _meta(dim, dtype=dtype)
        bias = weight if kind & CENTER else None
        stats, dtotal = _meta(2, 4096, dtype=torch.float32), x if add else None
        rows.rows_backward(x, x, weight, bias, stats, dtotal, 1, 1e-5, kind, True, True, bias is not None)

    return call


def _groups(
    sizes: Callable[[int], tuple[int, ...]], masked: bool = False
) -> Callable[[int, torch.dtype], None]:
    def call(dim: int, dtype: torch.dtype) -> None:
        from normkit.kernels.triton import groups

        k0, r1, k2, r3, i = five = sizes(dim)
        x, weight = _meta(k0, r1, k2 * r3, i, dtype=dtype), _meta(k2 * r3, dtype=dtype)
        mask = _meta(k0, r1, i, dtype=torch.bool) if masked else None
        _, stats = groups.groups(x, *five, weight, weight, False, mask, None, None, 1e-5, True)
        groups.groups_backward(x, x, *five, weight, weight, False, mask, stats, False, 1e-5, True, True, True)

    return call


# D is a row's length; of groups, the channels of columns and the places of spans.
CASES: dict[str, Callable[[int, torch.dtype], None]] = {
    "layer_norm": _rows(CENTER, False),
    "rms_norm": _rows(RMS, False),
    "add_layer_norm": _rows(CENTER, True),
    "add_rms_norm": _rows(RMS, True),
    "layer_norm_backward": _rows_backward(CENTER, False),
    "rms_norm_backward": _rows_backward(RMS, False),
    "add_layer_norm_backward": _rows_backward(CENTER, True),
    "columns": _groups(lambda d: (1, 4096, d, 1, 1)),
    "spans": _groups(lambda d: (8, 1, 32, 2, d)),
    "columns_masked": _groups(lambda d: (1, 4096, d, 1, 1), masked=True),
}


@dataclass(frozen=True)
class Launch:
    """One kernel that a case launches, as plain data: it goes to other processes."""

    case: str
    module: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[str, ...]  # arguments that divide by 16
    warps: int

    @property
    def name(self) -> str:
        return f"{self.case}.{self.kernel}"


def launches(case: str, dim: int, dtype: torch.dtype) -> list[Launch]:
    """What a case launches: its host code is run on tensors that hold nothing."""
    from normkit.kernels.triton import groups, rows

    found: list[Launch] = []

    def record(call: Any, tensors: Any, device: Any) -> None:
        found.append(_describe(case, call.kernel, (*tensors, *call.numbers), call.constants, call.warps))

    before = rows.launch, groups.launch
    rows.launch = groups.launch = record  # type: ignore[assignment]  # in this process, for a moment
    try:
        CASES[case](dim, dtype)
    finally:
        rows.launch, groups.launch = before
    return found


def _describe(case: str, kernel: Any, arguments: Any, constants: Any, warps: int) -> Launch:
    names = kernel.arg_names
    signature, aligned, fixed = [], [], []
    for name, value in zip(names, (*arguments, *constants), strict=True):
        if name in names[len(arguments) :]:
            signature.append((name, "constexpr"))
            fixed.append((name, value))
        elif value is None:
            signature.append((name, "constexpr"))
            fixed.append((name, None))
        elif isinstance(value, torch.Tensor):
            signature.append((name, f"*{TYPES[value.dtype]}"))
            aligned.append(name)
        elif isinstance(value, float):
            signature.append((name, "fp32"))
        elif value == 1:
            signature.append((name, "constexpr"))
            fixed.append((name, 1))
        else:
            signature.append((name, "i64" if abs(value) >= 2**31 else "i32"))
            aligned += [name] if value % 16 == 0 else []
    return Launch(
        case, kernel.fn.__module__, kernel.fn.__name__, tuple(signature), tuple(fixed), tuple(aligned), warps
    )


def compile_for(launch: Launch, arch: str) -> Any:
    """The compiled kernel."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from normkit.kernels.triton.launch import OPTIONS

    kernel = getattr(importlib.import_module(launch.module), launch.kernel)
    at = {name: k for k, (name, _) in enumerate(launch.signature)}
    source = ASTSource(
        fn=kernel,
        signature=dict(launch.signature),
        constexprs={(at[name],): value for name, value in launch.constants},
        attrs={(at[name],): [["tt.divisibility", 16]] for name in launch.aligned},
    )
    options = {"num_warps": launch.warps, **OPTIONS}
    return triton.compile(source, target=GPUTarget(*ARCHITECTURES[arch]), options=options)


def measure(launch: Launch, arch: str, dtype: str, dim: int, folder: Path | None) -> Compiled:
    """Compile, keep the code, and read off it what a user pays for."""
    compiled = compile_for(launch, arch)
    is_amd = arch.startswith("gfx")
    code = compiled.asm["amdgcn" if is_amd else "ptx"]
    if folder is not None:
        name = f"{launch.name}-{arch}-{dtype}-{dim}"
        (folder / f"{name}.{'amdgcn' if is_amd else 'ptx'}").write_text(code)
    registers, spills = _of_amd(code) if is_amd else _of_nvidia(compiled.asm["cubin"])
    widths = _AMD_LOAD.findall(code) if is_amd else _PTX_LOAD.findall(code)
    bits = [32 * int(w or 1) for w in widths] if is_amd else [int(v or 1) * int(b) for v, b in widths]
    loads, stores = _per_element(compiled.asm["ttgir"])
    fp64 = len((_AMD_FP64 if is_amd else _PTX_FP64).findall(code))
    shared = compiled.metadata.shared
    return Compiled(
        launch.name, arch, dtype, dim, registers, spills, shared, max(bits, default=0), loads, stores, fp64
    )


_PTX_LOAD = re.compile(r"ld\.global[.\w:]*?(?:\.v(\d))?\.b(\d+)")
_PTX_FP64 = re.compile(r"\.f64\b")
_AMD_LOAD = re.compile(r"(?:global|buffer)_load_dword(?:x(\d))?\b")
_AMD_FP64 = re.compile(r"\bv_\w+_f64\b")
# Tensors of the size of the input, by the names that all kernels give them.
_LARGE = ("x_ptr", "residual_ptr", "dy_ptr", "dtotal_ptr", "y_ptr", "total_ptr", "dx_ptr")


def _of_amd(code: str) -> tuple[int, int]:
    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", code)
        return int(found[1]) if found else 0

    return number("vgpr_count"), number("vgpr_spill_count") + number("sgpr_spill_count")


def _of_nvidia(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack that are spilled to."""
    import tempfile

    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    registers, stack = (re.search(rf"{word}:(\d+)", said.stdout) for word in ("REG", "STACK"))
    if registers is None or stack is None:
        raise RuntimeError(f"cuobjdump said something else: {said.stdout[-200:]}{said.stderr[-200:]}")
    return int(registers[1]), int(stack[1])


def _per_element(ttgir: str) -> tuple[float, float]:
    """How often an element of the input is read and written: by following pointers from the arguments.

    A loop over a row or over tiles holds one piece at a time: what stands in it counts once an element. A
    branch is rare, and does not count.
    """
    of: dict[str, str] = {}
    ttgir = _without_branches(ttgir)
    for argument in re.findall(r"%(\w+): !tt\.ptr", ttgir):
        of[f"%{argument}"] = argument
    loads = stores = 0
    for line in ttgir.splitlines():
        names = re.findall(r"%[\w#]+", line)
        result = names[0] if re.match(r"\s*%\w+\S* = ", line) else None
        used = names[1:] if result else names
        source = next((of[n] for n in used if n in of), None)
        if source is None:
            continue
        if re.search(r"\b(tt\.load|buffer_load)\b", line):
            loads += source in _LARGE
        elif re.search(r"\b(tt\.store|buffer_store)\b", line):
            stores += source in _LARGE
        elif result and re.search(r"tt\.(splat|addptr|broadcast|expand_dims|bitcast)", line):
            of[result] = source
    return float(loads), float(stores)


def _without_branches(ttgir: str) -> str:
    """What stands in ``scf.if`` is left out, by its indentation."""
    kept, inside = [], None
    for line in ttgir.splitlines():
        depth = len(line) - len(line.lstrip())
        if inside is not None:
            if depth <= inside and line.strip().startswith("}") and "else" not in line:
                inside = None
            continue
        if "scf.if" in line:
            inside = depth
            continue
        kept.append(line)
    return "\n".join(kept)


def _work(job: tuple[str, int, str, str, Path]) -> list[Compiled]:
    case, dim, dtype, arch, folder = job
    return [measure(one, arch, dtype, dim, folder) for one in _unique(launches(case, dim, DTYPES[dtype]))]


def _unique(found: list[Launch]) -> list[Launch]:
    return list(dict.fromkeys(found))


def matrix(
    cases: tuple[str, ...], dims: tuple[int, ...], archs: tuple[str, ...], folder: Path, workers: int = 2
) -> Iterator[list[Compiled]]:
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(c, d, t, a, folder) for c in cases for d in dims for t in DTYPES for a in archs]
    with ProcessPoolExecutor(workers) as pool:
        yield from track(
            pool.map(_work, jobs), "compiling", total=len(jobs), console=Console(stderr=True), transient=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="one kind of call; all if left out")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES)
    parser.add_argument("--dim", action="append", type=int)
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu")
    args = parser.parse_args()
    cases, archs = tuple(args.case or CASES), tuple(args.arch or ARCHITECTURES)
    found = [row for rows in matrix(cases, tuple(args.dim or DIMS), archs, args.out) for row in rows]
    (args.out / "kernels.json").write_text(
        "[\n" + ",\n".join(json.dumps(asdict(row)) for row in found) + "\n]\n"
    )
    if not (args.case or args.arch or args.dim):
        write_page(found)
    show(found, Console())
    bad = [row for row in found if row.spills or row.fp64]
    print(f"{len(found)} kernels compiled, {len(bad)} with spills or float64; {args.out / 'kernels.json'}")
    sys.exit(1 if bad else 0)


def show(rows: list[Compiled], console: Console) -> None:
    """Registers by architecture; what spills, or computes in float64, is marked."""
    archs = list(dict.fromkeys(row.arch for row in rows))
    table = Table("kernel", "dtype", "D", *archs, "load bits", "loads", "stores", box=None)
    by: dict[Any, dict[str, Compiled]] = {}
    for row in rows:
        by.setdefault((row.kernel, row.dtype, row.d), {})[row.arch] = row
    for (kernel, dtype, d), of in by.items():
        one = next(iter(of.values()))
        shown = [
            f"{r.registers}{f' SPILLS {r.spills}' if r.spills else ''}{' FP64' if r.fp64 else ''}"
            for r in of.values()
        ]
        bits = "/".join(map(str, sorted({r.load_bits for r in of.values()})))
        table.add_row(
            kernel, dtype, str(d), *shown, bits, f"{one.loads_per_element:g}", f"{one.stores_per_element:g}"
        )
    console.print(table)


if __name__ == "__main__":
    main()
