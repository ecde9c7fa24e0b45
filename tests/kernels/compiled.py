"""Compile a kernel for sm_90 without a GPU, and read what the assembler made of it.

The machine code comes from the disassembler that Triton brings along.
"""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_DISASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
_HOPPER = GPUTarget("cuda", 90, 32)
_WRITES_NONE = (
    "ST", "BAR", "BRA", "SYNCS", "WARPSYNC", "R2UR", "WARPGROUP", "UT", "NOP", "EXIT", "BSYNC",
    "BSSY", "FENCE", "MEMBAR", "CALL", "RET",
)  # fmt: skip
_TENSOR_CORE = re.compile(r"\b(HGMMA|HMMA)")


@dataclass(frozen=True)
class Compiled:
    """One kernel as the GPU would run it; disassembled, which takes longest, where asked for."""

    registers: int  # per thread
    spilled: int  # bytes of stack and local memory per thread
    shared: int  # bytes of shared memory per program
    ptx: str
    binary: bytes

    @cached_property
    def instructions(self) -> tuple[tuple[int, str], ...]:
        """(address, text)"""
        lines = re.findall(
            r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", _read("-sass", self.binary), re.MULTILINE
        )
        return tuple((int(address, 16), text) for address, text in lines)

    @property
    def register_wgmma(self) -> bool:
        """Whether the tensor cores take their left operand from registers."""
        return bool(re.search(r"wgmma\.mma_async\.\S+\s*\{[^}]*\},\s*\{", self.ptx))

    @property
    def main_loop(self) -> tuple[str, ...]:
        """The shortest loop with the most tensor-core instructions."""
        loops = [body for body in map(self._loop_ending_at, self.instructions) if body]
        return max(loops, key=lambda body: (_products(body), -len(body)), default=())

    @property
    def hazards(self) -> list[str]:
        """Writes to a register that a product in flight still reads as its left operand.

        Every instruction is looked at twice in a row, so that a loop's end meets its beginning.
        """
        return hazards([text for _, text in self.instructions] * 2)

    def _loop_ending_at(self, instruction: tuple[int, str]) -> tuple[str, ...]:
        address, text = instruction
        target = re.search(r"\bBRA\b.*0x([0-9a-f]+)", text)
        if not target or int(target[1], 16) >= address:
            return ()
        return tuple(t for at, t in self.instructions if int(target[1], 16) <= at <= address)


def hazards(instructions: Sequence[str]) -> list[str]:
    """See ``Compiled.hazards``. A wait for the tensor cores makes every register free again."""
    busy: set[int] = set()
    found = []
    for text in instructions:
        plain = re.sub(r"^@!?U?P\w+\s+", "", text)
        operation = plain.split()[0]
        if product := re.match(r"HGMMA\S*\s+R\d+,\s*R(\d+),", plain):
            busy |= set(range(int(product[1]), int(product[1]) + 4))
        elif operation.startswith("WARPGROUP.DEPBAR"):
            busy.clear()
        elif not operation.startswith(_WRITES_NONE):
            written = re.match(r"\S+\s+(?:P\w+,\s*)?R(\d+)\b", plain)
            if written and int(written[1]) in busy:
                found.append(text)
    return found


def _products(body: tuple[str, ...]) -> int:
    return sum(bool(_TENSOR_CORE.search(text)) for text in body)


def compile_kernel(
    kernel: triton.JITFunction,
    signature: dict[str, str],
    constants: dict[str, object],
    *,
    warps: int = 4,
    stages: int = 3,
    aligned: tuple[str, ...] = (),
) -> Compiled:
    """Compile for sm_90.

    Args:
        signature: Triton types of the arguments that are not constants.
        aligned: arguments that are multiples of 16; pointers always are.
    """
    names = kernel.arg_names
    types = {name: signature.get(name, "constexpr") for name in names}
    pointers = [name for name, kind in types.items() if kind.startswith("*")]
    hints = {(names.index(n),): [["tt.divisibility", 16]] for n in (*pointers, *aligned)}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=types, constexprs=values, attrs=hints)
    return compile_source(source, {"num_warps": warps, "num_stages": stages})


def compile_source(source: ASTSource, options: dict[str, object]) -> Compiled:
    """Compile a kernel in Triton or Gluon for sm_90."""
    compiled = triton.compile(source, target=_HOPPER, options=options)
    binary = compiled.asm["cubin"]
    usage = _read("-res-usage", binary)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    assert found, usage
    return Compiled(
        registers=int(found[1]),
        spilled=int(found[2]) + int(found[3]),
        shared=compiled.metadata.shared,
        ptx=compiled.asm["ptx"],
        binary=binary,
    )


def _read(what: str, binary: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(_DISASSEMBLER), what, file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr
