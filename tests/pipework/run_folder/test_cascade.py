"""The record of a cascade."""

import pytest

from pipework.run_folder.cascade import CascadeRecord
from pipework.run_folder.proof_subject import ProofSubject

RECORD = CascadeRecord(
    first="linear",
    first_digest="a",
    engine="onnx-fp32",
    engine_digest="b",
    min_score=0.9,
    max_difference=0.01,
    source="dev",
    rows=1000,
    answered=600,
    differing=5,
    encode_us=10,
    first_us=20,
    engine_us=1000,
    score=0.9,
    gain=(0.01, 0.0, 0.02),
)


def test_the_record_describes_the_proof():
    assert RECORD.speedup == pytest.approx(1010 / (30 + 0.4 * 1000))
    assert str(RECORD) == (
        "linear answers 60.0% of the texts; 5 of 1,000 dev rows get another label than from "
        "onnx-fp32, at most 1.00% with 95 % confidence; expected speedup 2.3; score 0.9000 +0.0100 "
        "(95 % interval +0.0000 to +0.0200)"
    )


def test_the_seal_depends_on_the_record_and_the_model():
    sealed = RECORD.sealed(ProofSubject())
    assert sealed.sealed(ProofSubject()) == sealed
    assert sealed.seal != RECORD.sealed(ProofSubject(task="other")).seal
    assert sealed.seal != RECORD.model_copy(update={"min_score": 0.8}).sealed(ProofSubject()).seal
