"""A small emulator of PTX: all threads of one block in lock step, one numpy array a register.

It is stricter than a GPU. Registers and shared memory begin as ones in every bit, which is NaN; an access
outside a tensor, one that is not aligned, a branch on which threads disagree, shared memory that one warp
writes and another one uses without a barrier between, and any instruction that is not known raise.

It is no GPU either: what the next compiler, ptxas, makes of the PTX is not seen. It is told to fuse nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arithmetic import UNSIGNED, Array, UnknownInstructionError, decode, encode, operation, width
from .memory import GlobalMemory, PTXError, SharedMemory, Tensor

__all__ = ["Kernel", "PTXError", "UnknownInstructionError"]

MAX_STEPS = 1_000_000  # of one block: far more than any loop here takes
Step = Callable[["Block"], None]
Value = Callable[["Block"], Array]


class Block:
    """What the threads of one block have: registers by name, parameters and memories."""

    def __init__(
        self, registers: dict[str, Array], parameters: dict[str, Any], memories: dict[str, Any]
    ) -> None:
        self.registers, self.parameters, self.memories = registers, parameters, memories
        self.at = 0


class Kernel:
    """One entry of a PTX file, read once; ``run`` takes its arguments."""

    def __init__(self, text: str, shared: int) -> None:
        self.shared = shared
        text = re.sub(r"//[^\n]*", "", text)
        self.parameters = [str(name) for name in re.findall(r"\.param[^,)]*?(\w+)\s*[,)]", text)]
        threads = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)", text)
        body = re.search(r"\.entry.*?\n\{(.*?)\n\}", text, re.DOTALL)
        if threads is None or body is None:
            raise PTXError("no entry with a number of threads")
        self.threads = int(threads[1])
        self.symbols = set(re.findall(r"\.extern \.shared[^;]*?(\w+)\[\]", text))
        self.kinds = {"%" + name: kind for kind, name in re.findall(r"\.reg\s+\.(\w+)\s+%(\w+)<", body[1])}
        self.undefined: dict[str, Array] = {}
        self.labels: dict[str, int] = {}
        self.steps: list[Step] = []
        self.lines: dict[Step, str] = {}
        for line in re.split(r"[;\n]", body[1]):
            self._read(line.strip())

    def run(self, grid: Sequence[int], arguments: Sequence[Any]) -> None:
        """All blocks, one after the other. A ``Tensor`` is an address; other arguments are numbers."""
        memory = GlobalMemory([a for a in arguments if isinstance(a, Tensor)])
        given = iter(range(len(memory.tensors)))
        values = [memory.address(next(given)) if isinstance(a, Tensor) else a for a in arguments]
        spare = [0] * (len(self.parameters) - len(values))  # Triton's own scratch, which no kernel here has
        parameters = dict(zip(self.parameters, values + spare, strict=True))
        for z, y, x in np.ndindex(*reversed(grid)):
            special = {"%tid.x": np.arange(self.threads, dtype=np.uint32)}
            for axis, at in zip("xyz", (x, y, z), strict=True):
                special[f"%ctaid.{axis}"] = np.full(self.threads, at, np.uint32)
            memories = {"global": memory, "shared": SharedMemory(self.shared)}
            self._run(Block(special, parameters, memories))

    def _run(self, block: Block) -> None:
        with np.errstate(all="ignore"):
            for _ in range(MAX_STEPS):
                if block.at >= len(self.steps):
                    return
                step = self.steps[block.at]
                block.at += 1
                try:
                    step(block)
                except PTXError as error:
                    error.add_note(self.lines[step])
                    raise
        raise PTXError(f"no end after {MAX_STEPS:,} steps")

    def _read(self, line: str) -> None:
        label = re.fullmatch(r"([$\w]+):", line)
        if label:
            self.labels[label[1]] = len(self.steps)
        elif line and not line.startswith("."):
            found = re.fullmatch(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", line)
            if found is None:
                raise UnknownInstructionError(line)
            negated, guard, opcode, rest = found.groups()
            operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)
            step = self._step(opcode, operands, self._guard(guard, bool(negated)))
            self.steps.append(step)
            self.lines[step] = line

    def _guard(self, name: str | None, negated: bool) -> Value | None:
        if name is None:
            return None
        value = self._value(name, "pred")
        return (lambda block: ~value(block)) if negated else value

    def _step(self, opcode: str, operands: list[str], guard: Value | None) -> Step:
        for pattern, make in SPECIAL.items():
            found = re.fullmatch(pattern, opcode)
            if found:
                return make(self, operands, guard, *found.groups())
        what = operation(opcode, len(operands) - 1)
        values = [self._value(o, k) for o, k in zip(operands[1:], what.operands, strict=True)]
        assign = self._assign(operands[0], guard)

        def step(block: Block) -> None:
            numbers = [decode(v(block), k) for v, k in zip(values, what.operands, strict=True)]
            assign(block, encode(what.function(*numbers), what.result))

        return step

    def _value(self, text: str, kind: str) -> Value:
        """A register, a number, the address of shared memory, or several registers side by side."""
        bits = width(kind)
        if text.startswith("{"):
            parts = re.findall(r"[^{},\s]+", text)
            each = [self._value(part, f"b{bits // len(parts)}") for part in parts]
            return lambda block: np.stack([v(block) for v in each], axis=1).reshape(-1).view(UNSIGNED[bits])
        if text.startswith("%"):
            undefined = self._undefined(text)
            if undefined.size and 8 * undefined.itemsize > bits > 1:  # a register may be wider: its low bits
                return lambda block: block.registers.get(text, undefined).astype(UNSIGNED[bits])
            return lambda block: block.registers.get(text, undefined)
        number = 0 if text in self.symbols else int(text[2:], 16) if text[:2] == "0f" else int(text, 0)
        if bits == 1:
            constant = np.full(self.threads, number != 0)
        else:
            constant = np.full(self.threads, number % (1 << bits), UNSIGNED[bits])
        return lambda block: constant

    def _undefined(self, name: str) -> Array:
        if name in ("%tid.x", "%ctaid.x", "%ctaid.y", "%ctaid.z"):
            return np.empty(0)
        kind = self.kinds.get(name.rstrip("0123456789"))
        if kind is None:
            raise UnknownInstructionError(f"register {name}")
        if kind not in self.undefined:
            of = bool if kind == "pred" else UNSIGNED[width(kind)]
            self.undefined[kind] = ~np.zeros(self.threads, of)
        return self.undefined[kind]

    def _assign(self, text: str, guard: Value | None) -> Callable[[Block, Array], None]:
        """Write a register, or several that lie side by side; _ is none. With a guard, of some threads."""
        if text.startswith("{"):
            each = [self._assign(part, guard) for part in re.findall(r"[^{},\s]+", text)]

            def spread(block: Block, value: Array) -> None:
                bits = 8 * value.itemsize // len(each)
                parts = np.ascontiguousarray(value).view(UNSIGNED[bits]).reshape(-1, len(each))
                for k, assign in enumerate(each):
                    assign(block, parts[:, k].copy())

            return spread
        if text == "_":
            return lambda block, value: None
        old = self._undefined(text)

        def assign(block: Block, value: Array) -> None:
            if value.dtype != old.dtype or value.shape != old.shape:
                raise PTXError(f"{value.dtype} {value.shape} for {text}, which is {old.dtype} {old.shape}")
            if guard is not None:
                value = np.where(guard(block), value, block.registers.get(text, old))
            block.registers[text] = value

        return assign

    def _address(self, text: str) -> Value:
        """[register], [register + offset], [symbol] or [symbol + offset]."""
        found = re.fullmatch(r"\[\s*([%\w]+)\s*(?:\+\s*(-?\d+))?\s*\]", text)
        if found is None:
            raise UnknownInstructionError(f"address {text}")
        base, offset = self._value(found[1], "b32" if found[1] in self.symbols else "b64"), int(found[2] or 0)
        return lambda block: (base(block).astype(np.int64) + offset).astype(np.uint64)

    def _active(self, block: Block, guard: Value | None) -> Array:
        return np.arange(self.threads) if guard is None else np.flatnonzero(guard(block))

    # What has effects beside its result. Each: the kernel, operands, guard, and the parts of the opcode.

    def _mov(self, operands: list[str], guard: Value | None, kind: str) -> Step:
        value, assign = self._value(operands[1], kind), self._assign(operands[0], guard)
        return lambda block: assign(block, value(block))

    def _load_parameter(self, operands: list[str], guard: Value | None, kind: str) -> Step:
        name = operands[1].strip("[] ")
        to = self._undefined(operands[0]).dtype
        assign = self._assign(operands[0], guard)

        def step(block: Block) -> None:
            number = block.parameters[name]
            if isinstance(number, float):
                number = int(np.float32(number).view(np.uint32))
            bits = np.full(self.threads, number % (1 << width(kind)), UNSIGNED[width(kind)])
            assign(block, decode(bits, kind).astype(to))

        return step

    def _load(self, operands: list[str], guard: Value | None, space: str, count: str, bits: str) -> Step:
        names = re.findall(r"[^{},\s]+", operands[0])
        size, address, to = int(bits) // 8, self._address(operands[1]), UNSIGNED[int(bits)]
        each = [self._assign(name, guard) for name in names]
        if len(each) != int(count or 1):
            raise UnknownInstructionError(f"{count} loads to {operands[0]}")

        def step(block: Block) -> None:
            active = self._active(block, guard)
            found = block.memories[space].load(address(block)[active], size * len(each), active).view(to)
            values = np.zeros((self.threads, len(each)), to)
            values[active] = found
            for k, assign in enumerate(each):
                assign(block, values[:, k].astype(np.uint16 if bits == "8" else to))

        return step

    def _store(self, operands: list[str], guard: Value | None, space: str, count: str, bits: str) -> Step:
        address = self._address(operands[0])
        each = [self._value(name, f"b{bits}") for name in re.findall(r"[^{},\s]+", operands[1])]
        if len(each) != int(count or 1):
            raise UnknownInstructionError(f"{count} stores of {operands[1]}")

        def step(block: Block) -> None:
            active = self._active(block, guard)
            low = [v(block).astype(UNSIGNED[int(bits)]) for v in each]  # a register may be wider
            values = np.stack(low, axis=1).view(np.uint8)
            block.memories[space].store(address(block)[active], values[active], active)

        return step

    def _matrix(self, operands: list[str], guard: Value | None, name: str, count: str) -> Step:
        """8 x 8 halves: eight lanes have the address of a row, and a lane two numbers of row lane // 4."""
        source, place = (operands[1], operands[0]) if name == "st" else (operands[0], operands[1])
        names, address = re.findall(r"[^{},\s]+", source), self._address(place)
        lane = np.arange(self.threads) % 32
        threads, first = np.arange(self.threads), np.arange(self.threads) - lane
        assigns = [self._assign(n, None) for n in names] if name == "ld" else []
        values = [self._value(n, "b32") for n in names] if name == "st" else []
        if guard is not None or len(names) != int(count):
            raise UnknownInstructionError(f"{name}matrix with a guard or of {source}")

        def step(block: Block) -> None:
            for k in range(len(names)):
                at = address(block)[first + 8 * k + lane // 4] + (4 * (lane % 4)).astype(np.uint64)
                if name == "ld":
                    found = block.memories["shared"].load(at, 4, threads)
                    assigns[k](block, found.view(np.uint32).reshape(-1))
                else:
                    block.memories["shared"].store(at, values[k](block)[:, None].view(np.uint8), threads)

        return step

    def _shuffle(self, operands: list[str], guard: Value | None) -> Step:
        """Every lane takes the register of the lane whose number differs in the given bits."""
        value, assign = self._value(operands[1], "b32"), self._assign(operands[0], guard)
        if operands[3:] != ["31", "-1"] or not 0 < int(operands[2], 0) < 32:
            raise UnknownInstructionError(f"shfl.sync.bfly.b32 of {operands[2:]}: a part of a warp")
        other = np.arange(self.threads) ^ int(operands[2], 0)
        return lambda block: assign(block, value(block)[other])

    def _reduce(self, operands: list[str], guard: Value | None, name: str, kind: str) -> Step:
        """The largest or smallest register of a warp, for all of its lanes."""
        value, mask = self._value(operands[1], kind), self._value(operands[2], "b32")
        assign, function = self._assign(operands[0], guard), operation(f"{name}.{kind}").function

        def step(block: Block) -> None:
            if np.any(mask(block) != 0xFFFFFFFF):
                raise UnknownInstructionError("redux.sync of a part of a warp")
            warps = decode(value(block), kind).reshape(-1, 32)
            assign(block, encode(np.repeat(function.reduce(warps, axis=1), 32), kind))

        return step

    def _barrier(self, operands: list[str], guard: Value | None) -> Step:
        if guard is not None or operands != ["0"]:
            raise UnknownInstructionError(f"bar.sync {operands}, of some threads")
        return lambda block: block.memories["shared"].barrier()

    def _warp_barrier(self, operands: list[str], guard: Value | None) -> Step:
        """Of one warp, whose threads are in step here."""
        if guard is not None or operands != ["-1"]:
            raise UnknownInstructionError(f"bar.warp.sync {operands}, of some threads")
        return lambda block: None

    def _branch(self, operands: list[str], guard: Value | None) -> Step:
        def step(block: Block) -> None:
            taken = np.ones(1, bool) if guard is None else guard(block)
            if taken.any() != taken.all():
                raise PTXError(f"threads disagree on a branch to {operands[0]}")
            if taken.all():
                block.at = self.labels[operands[0]]

        return step

    def _return(self, operands: list[str], guard: Value | None) -> Step:
        if guard is not None:
            raise UnknownInstructionError("ret with a guard")
        return lambda block: setattr(block, "at", len(self.steps))


SPECIAL: dict[str, Callable[..., Step]] = {
    r"mov\.([bu](?:16|32|64)|pred)": Kernel._mov,
    r"ld\.param\.([bus](?:32|64))": Kernel._load_parameter,
    r"ld\.(global|shared)(?:\.v(\d))?\.b(8|16|32|64)": Kernel._load,
    r"st\.(global|shared)(?:\.v(\d))?\.b(8|16|32|64)": Kernel._store,
    r"(ld|st)matrix\.sync\.aligned\.m8n8\.x(\d)\.shared\.b16": Kernel._matrix,
    r"shfl\.sync\.bfly\.b32": Kernel._shuffle,
    r"redux\.sync\.(max|min)\.(f32|[us]32)": Kernel._reduce,
    r"bar\.sync": Kernel._barrier,
    r"bar\.warp\.sync": Kernel._warp_barrier,
    r"bra(?:\.uni)?": Kernel._branch,
    r"ret": Kernel._return,
}
