"""Which processor this is: int8 and bf16 answers differ between kinds."""

from functools import cache
from pathlib import Path

# Instructions that decide how int8 and bf16 products are summed.
DECIDING = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


@cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model and which of the deciding instructions it has."""
    fields: dict[str, str] = {}
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", "").split()
    found = [flag for flag in DECIDING if flag in flags]
    return " ".join((fields.get("model name", "unknown processor"), *found))


def computes_bf16() -> bool:
    """Return whether the processor multiplies bfloat16 itself."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor().split())


def sums_int8() -> bool:
    """Return whether the processor adds products of 8-bit integers in 32 bits at once."""
    return not {"avx512_vnni", "avx_vnni", "amx_int8"}.isdisjoint(processor().split())
