from pipework.cpu import processor

CPUINFO = """processor\t: 0
model name\t: Some CPU 9000
flags\t\t: fpu avx2 avx512f sse avx512_bf16

processor\t: 1
model name\t: Some CPU 9000
flags\t\t: fpu
"""


def test_a_kind_is_the_model_and_what_decides_its_sums(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO)
    assert processor(path) == "Some CPU 9000 avx2 avx512f avx512_bf16"


def test_a_machine_that_does_not_say_is_unknown(tmp_path):
    assert processor(tmp_path / "none") == "unknown processor"
