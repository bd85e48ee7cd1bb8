"""What the compiler made of a kernel, and the tables of docs/gpu.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Compiled", "write_page", "write_table"]

PAGE = Path(__file__).parent.parent / "docs/gpu.md"


@dataclass(frozen=True)
class Compiled:
    kernel: str
    arch: str
    dtype: str
    d: int
    registers: int
    spills: int
    shared: int
    load_bits: int
    loads_per_element: float
    stores_per_element: float
    fp64: int


# What the model is of: the memory's rate in GB/s, as the makers state it.
MACHINES = {"H100 SXM": 3350, "A100 80 GB": 2039, "RTX 4090": 1008, "MI300X": 5300}
LAUNCH_US, SHARE = 6.5, 0.89  # fitted to what quack publishes for an H100; assumed for the others
TRAFFIC = {
    "forward": 2,
    "backward": 3,
    "forward with add": 4,
    "backward with add": 4,
}  # in sizes of the input


def write_page(rows: list[Compiled]) -> None:
    write_table("compiled", _compiled_table(rows))
    write_table("model", _model_table())


def write_table(name: str, table: str) -> None:
    """Between its marks on the page."""
    marks = rf"(<!-- {name}:[^>]*-->).*?(<!-- end -->)"
    PAGE.write_text(re.sub(marks, rf"\1\n{table}\n\2", PAGE.read_text(), flags=re.DOTALL))


def _model_table() -> str:
    size = 4096 * 4096 * 2
    lines = [f"| | GB/s | {' | '.join(TRAFFIC)} |", "|---" * (2 + len(TRAFFIC)) + "|"]
    for name, rate in MACHINES.items():
        times = (LAUNCH_US + n * size / (rate * 1e9 * SHARE) * 1e6 for n in TRAFFIC.values())
        lines.append(f"| {name} | {rate:,} | {' | '.join(f'{t:.0f}' for t in times)} |")
    return "\n".join(lines)


def _compiled_table(rows: list[Compiled]) -> str:
    """A line for each kernel: registers by architecture, the most at any D and dtype."""
    archs = list(dict.fromkeys(row.arch for row in rows))
    lines = [
        f"| kernel | {' | '.join(archs)} | shared memory | widest load | reads · writes |",
        "|---" * (len(archs) + 4) + "|",
    ]
    for kernel in dict.fromkeys(row.kernel for row in rows):
        own = [row for row in rows if row.kernel == kernel]
        most = (max((r.registers for r in own if r.arch == arch), default=0) for arch in archs)
        traffic = {f"{r.loads_per_element:g} · {r.stores_per_element:g}" for r in own}
        lines.append(
            f"| {kernel} | {' | '.join(map(str, most))} | {max(r.shared for r in own):,} | "
            f"{max(r.load_bits for r in own)} | {', '.join(sorted(traffic))} |"
        )
    spills, wide = (sum(getattr(row, name) > 0 for row in rows) for name in ("spills", "fp64"))
    dims = ", ".join(map(str, dict.fromkeys(row.d for row in rows)))
    said = (
        f"{len(rows):,} compilations, D = {dims}, float32 and bfloat16: {spills} with spills, {wide} with "
        "float64. Registers a thread (gfx942: VGPRs), the most of any D and dtype; shared memory in bytes; "
        "loads in bits; reads and writes of tensors of the input's size, an element."
    )
    return f"\n## Compiled\n\n{said}\n\n" + "\n".join(lines) + "\n"
