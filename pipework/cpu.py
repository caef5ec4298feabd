"""Identify the processor: int8 and bf16 results differ between processor models."""

from functools import cache
from pathlib import Path

# Instruction sets that determine how int8 and bf16 products are summed.
INSTRUCTION_SETS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
)


@cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model name of the processor and its instruction sets for int8 and bf16."""
    fields: dict[str, str] = {}
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", "").split()
    instruction_sets = [name for name in INSTRUCTION_SETS if name in flags]
    return " ".join((fields.get("model name", "unknown processor"), *instruction_sets))


def computes_bf16() -> bool:
    """Return whether the processor has instructions for bfloat16 products."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor().split())


def sums_int8() -> bool:
    """Return whether the processor accumulates int8 products in 32 bits (VNNI or AMX)."""
    return not {"avx512_vnni", "avx_vnni", "amx_int8"}.isdisjoint(processor().split())
