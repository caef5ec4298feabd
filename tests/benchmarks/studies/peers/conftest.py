"""A stored comparison of servers that looks like a real one."""

import pytest

from pipework.benchmarks.studies.records.peer_serving_results import (
    AnswerCheck,
    Candidate,
    ClientLoad,
    PeerMeasurement,
    PeerServingResult,
)
from tests.benchmarks.conftest import provenance

SEVERAL, SINGLE = (
    ClientLoad(texts_per_request=8, clients=16),
    ClientLoad(texts_per_request=1, clients=32),
)


def candidate(peer, settings, *, same=200, truncates=True, failed=None):
    answers = AnswerCheck(
        rows=200,
        same=same,
        max_difference=3e-7,
        accuracy=91.5,
        checkpoint_accuracy=92.0,
        truncates=truncates,
    )
    return Candidate(
        peer=peer,
        settings=settings,
        answers=None if failed else answers,
        failed=failed,
    )


def trial(peer, settings, load, number, rate, errors=None):
    return PeerMeasurement(
        peer=peer,
        settings=settings,
        load=load,
        round=number,
        texts_per_s=rate,
        p50_ms=1000 * load.clients * load.texts_per_request / rate,
        p99_ms=2000 * load.clients * load.texts_per_request / rate,
        errors=errors or {},
        memory_mib=400.0 + number,
        start_s=2.5,
    )


@pytest.fixture
def side_by_side() -> PeerServingResult:
    """pipework and a peer with two settings, each the better under one load."""
    search = [
        trial("pipework", "as it starts", SEVERAL, 0, 800),
        trial("pipework", "as it starts", SINGLE, 0, 500),
        trial("a peer", "2 threads", SEVERAL, 0, 200),
        trial("a peer", "2 threads", SINGLE, 0, 90),
        trial("a peer", "2 workers", SEVERAL, 0, 150),
        trial("a peer", "2 workers", SINGLE, 0, 120),
    ]
    rounds = [
        *(trial("pipework", "as it starts", SEVERAL, n, 600 + 100 * n) for n in (1, 2)),
        *(trial("a peer", "2 threads", SEVERAL, n, 200) for n in (1, 2)),
        *(trial("pipework", "as it starts", SINGLE, n, 600) for n in (1, 2)),
        *(trial("a peer", "2 workers", SINGLE, n, 60 * n) for n in (1, 2)),
    ]
    return PeerServingResult(
        model="SST-2",
        engine="onnx-int8-packed",
        texts="synthetic, log-normal, mean 20 words",
        seconds=5,
        search_seconds=2,
        rounds=2,
        candidates=(
            candidate("pipework", "as it starts", same=199),
            candidate("a peer", "2 threads"),
            candidate("a peer", "2 workers", truncates=False),
            candidate("another", "as it is", failed="it ended with 1"),
        ),
        absent={"triton": "tritonserver is neither on PATH nor there; make triton"},
        trials=(*search, *rounds),
        command=("python", "-m", "pipework.benchmarks.studies.peers.serving", "RUN", "SST-2"),
        provenance=provenance(),
    )
