from pipework.cpu import processor

CPUINFO = """processor\t: 0
model name\t: Some CPU 9000
flags\t\t: fpu avx2 avx512f sse avx512_bf16

processor\t: 1
model name\t: Some CPU 9000
flags\t\t: fpu
"""


def test_a_processor_is_its_model_and_instruction_sets(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO)
    assert processor(path) == "Some CPU 9000 avx2 avx512f avx512_bf16"


def test_a_machine_without_cpuinfo_is_unknown(tmp_path):
    assert processor(tmp_path / "none") == "unknown processor"
