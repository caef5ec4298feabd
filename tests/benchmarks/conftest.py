"""A fake server with scripted behaviour, and realistic results."""

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import numpy as np
import pytest

from pipework import console
from pipework.benchmarks.load.slo import judge, parse_slo
from pipework.benchmarks.results_schema.comparison import (
    ComparedLevel,
    ComparedServer,
    ComparisonResult,
    Quantity,
    Ratio,
    RatioVerdict,
)
from pipework.benchmarks.results_schema.level import (
    Arrivals,
    Latency,
    Level,
    ServerUse,
    WorkloadSummary,
)
from pipework.benchmarks.results_schema.provenance import Machine, Provenance
from pipework.benchmarks.results_schema.results import BenchResult, OfflineLevel, SloResult
from pipework.benchmarks.stats.confidence import latency
from pipework.benchmarks.studies.records.cascade_results import CascadePoint, CascadesResult
from pipework.benchmarks.studies.records.engine_results import EngineResult, EnginesResult
from pipework.benchmarks.studies.records.grid_results import Cell, GridResult
from pipework.benchmarks.studies.records.training_results import TrainingResult

DROP = -1


class FakeServer:
    """Answers `POST /v1/predict` after `delay_s` with the status returned by `behave(number)`."""

    def __init__(self, delay_s: float, behave: Callable[[int], int]) -> None:
        self.bodies: list[dict] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self._numbers = count()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65536

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.bodies.append(body)
                status = behave(next(server._numbers))
                server._enter()
                time.sleep(delay_s)
                server._leave()
                if status == DROP:
                    self.close_connection = True
                    return
                texts = body.get("texts") or body["inputs"]
                content = {"model": "fake", "version": "1", "predictions": [{}] * len(texts)}
                if status != 200:
                    content = {"error": "not\nnow"}
                content = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        class LongBacklogServer(ThreadingHTTPServer):
            request_queue_size = 256  # with the default of 5, further clients connect 1 s later

        self._server = LongBacklogServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def _enter(self) -> None:
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)

    def _leave(self) -> None:
        with self._lock:
            self._now -= 1

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def serve():
    """Return a function that starts servers; they are stopped after the test."""
    started = []

    def start(delay_s=0.0, behave=lambda _number: 200):
        started.append(FakeServer(delay_s, behave))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def provenance() -> Provenance:
    machine = Machine(
        cpu="AMD EPYC", cores=2, memory_gib=7.8, python="3.11.2", system="Debian GNU/Linux 12"
    )
    return Provenance(
        created_at=datetime(2026, 11, 20, 9, 30, tzinfo=UTC),
        pipework="0.1.0",
        git_commit="0123456789abcdef0123456789abcdef01234567",
        machine=machine,
        versions={"fastapi": "0.165.0", "onnxruntime": "1.31.1"},
    )


def workload() -> WorkloadSummary:
    return WorkloadSummary(
        source="synthetic, log-normal, mean 20 words",
        texts=2000,
        texts_per_request=8,
        pair=False,
        mean_length=121.4,
        p95_length=262.0,
        seed=0,
    )


def level(concurrency: int, errors: dict[str, int] | None = None) -> Level:
    """Return a level of an imaginary server with a maximum of 640 texts/s."""
    rate = 640 * concurrency / (concurrency + 1.5)
    random = np.random.default_rng(concurrency)
    latencies_s = random.lognormal(np.log(concurrency * 8 / rate), 0.35, round(rate * 5 / 8))
    return Level(
        concurrency=concurrency,
        texts_per_request=8,
        duration_s=5.0,
        requests=len(latencies_s),
        texts=len(latencies_s) * 8,
        texts_per_s=round(rate, 2),
        requests_per_s=round(rate / 8, 2),
        latency_ms=latency(latencies_s),
        errors=errors or {},
    )


@pytest.fixture
def served() -> BenchResult:
    """Five levels against a server, the last with errors."""
    levels = (*map(level, (1, 2, 4, 8)), level(16, {"HTTP 429": 21, "connection dropped": 2}))
    return BenchResult(
        command=("pipe", "bench", "http://127.0.0.1:8000", "--batch", "8"),
        target="http://127.0.0.1:8000",
        model="headlines",
        provenance=provenance(),
        workload=workload(),
        levels=levels,
    )


@pytest.fixture
def offline() -> BenchResult:
    """Tokenizing and one engine at three batch sizes."""
    rates = {("tokenizing", 1): 9200, ("tokenizing", 8): 21000, ("tokenizing", 32): 26400}
    rates |= {("onnx-fp32", 1): 410, ("onnx-fp32", 8): 520, ("onnx-fp32", 32): 480}
    levels = tuple(
        OfflineLevel(
            stage=stage,
            batch=batch,
            duration_s=5.0,
            calls=5 * rate // batch,
            texts=5 * rate,
            texts_per_s=rate,
            latency_ms=latency(np.linspace(0.9, 1.3, 50) * batch / rate),
        )
        for (stage, batch), rate in rates.items()
    )
    return BenchResult(
        command=("pipe", "bench", "demo"),
        target="demo",
        model="headlines",
        provenance=provenance(),
        workload=workload(),
        offline=levels,
    )


@pytest.fixture
def trained() -> TrainingResult:
    """An accuracy with two baselines."""
    return TrainingResult(
        dataset="THUCNews headlines",
        metric="accuracy",
        values=(91.27,),
        seeds=(1,),
        rows=10_000,
        minutes=27.4,
        settings={"preset": "small", "epochs": 4, "learning_rate": 3e-4},
        floors={"naive Bayes": 88.87, "TF-IDF + SVM": 90.36},
        commands=("pipe train thucnews --out runs/thucnews", "pipe eval runs/thucnews"),
        provenance=provenance(),
    )


@pytest.fixture
def proven_engines() -> EnginesResult:
    """Two engines and a manual baseline."""
    engines = tuple(
        EngineResult(
            name=name,
            mib=mib,
            max_abs=max_abs,
            spread=0.01,
            agreement=0.995,
            change=change,
            low=change - 0.001,
            high=change + 0.001,
            kept=kept,
            packed=True,
            texts_per_s=rate,
            p50_ms=7.5,
        )
        for name, mib, max_abs, change, kept, rate in (
            ("onnx-int8-static-packed", 23.4, 0.31, -0.0025, 2, 300.0),
            ("openvino-bf16-packed", 87.0, 0.033, 0.0, 0, 250.0),
        )
    )
    return EnginesResult(
        dataset="MRPC",
        metric="accuracy",
        rows=408,
        batch=8,
        threads=2,
        processor="a CPU",
        by_hand_texts_per_s=100.0,
        by_hand_p50_ms=12.0,
        engines=engines,
        commands=("pipe export runs/mrpc --to auto",),
        provenance=provenance(),
    )


@pytest.fixture
def filled() -> GridResult:
    """Two families with three engines: proven, built without proof, and failed for two reasons."""
    cells = tuple(
        Cell(row=(family, "gru"), column=column, packed=packed, **outcome)
        for family, column, packed, outcome in (
            ("bert", "onnx fp32", False, {"value": 1.4e-7}),
            ("bert", "onnx fp32", True, {"value": 2e-7}),
            ("bert", "tensorrt fp16", False, {"text": "built"}),
            ("xlnet", "onnx fp32", False, {"value": 1.6e-7}),
            ("xlnet", "onnx fp32", True, {"reason": "cannot"}),
            ("xlnet", "tensorrt fp16", False, {"reason": "too new"}),
        )
    )
    names = ("family", "head")
    return GridResult(
        experiment="matrix", names=names, weights="tiny", cells=cells, provenance=provenance()
    )


@pytest.fixture
def open_level():
    """Return a function that creates open-loop levels; `share` is answered within the level."""

    def make(rate=100.0, p99=40.0, *, seconds=10.0, share=1.0, late=0, errors=None):
        sent, failed = round(rate * seconds), sum((errors or {}).values())
        times = {"p50": p99 / 4, "p90": p99 / 2, "p95": p99 / 1.5, "p99": p99, "p999": 2 * p99}
        per_s = (sent - failed) * share / seconds
        return Level(
            rate=rate,
            arrivals=Arrivals.POISSON,
            texts_per_request=8,
            duration_s=seconds,
            sent=sent,
            late=late,
            requests=sent - failed,
            texts=8 * (sent - failed),
            texts_per_s=8 * per_s,
            requests_per_s=per_s,
            latency_ms=Latency(**times, mean=8, max=3 * p99) if sent > failed else None,
            errors=errors or {},
        )

    return make


@pytest.fixture
def loaded(served, open_level) -> BenchResult:
    """Closed-loop and open-loop levels with all optional fields, and an objective that was met."""
    known = {"cost_per_million": 0.42}
    closed = [
        level.model_copy(update=known | {"server": ServerUse(cores=1.8, peak_mib=410 + number)})
        for number, level in enumerate(served.levels)
        if level.concurrency in (1, 4, 16)
    ]
    opened = []
    for rate, p99, late in ((20, 14, 0), (60, 33, 0), (90, 480, 27)):
        level = open_level(rate, p99, share=min(1, 75 / rate), late=late)
        opened.append(level.model_copy(update=known))
    limits = parse_slo(["p99=50ms"])
    slo = SloResult(
        limits=limits,
        rate=60,
        texts_per_request=8,
        trials=tuple(judge(level, limits) for level in opened),
        reason="missed at 90 requests/s",
    )
    levels = (*closed, *opened)
    return served.model_copy(update={"levels": levels, "slo": slo})


@pytest.fixture
def comparison(served) -> ComparisonResult:
    """A server compared with itself: each ratio is 1."""
    side = ComparedServer(target=served.target, model=served.model)
    levels = tuple(
        ComparedLevel(
            name=f"{level.concurrency} client{'s' * (level.concurrency > 1)}",
            ratios=tuple(_equal_ratio(level, quantity) for quantity in Quantity),
            failed=(0.0, 0.0),
        )
        for level in served.levels
    )
    return ComparisonResult(
        command=served.command,
        before=side,
        after=side,
        provenance=served.provenance,
        workload=served.workload,
        rounds=5,
        tolerance=0.02,
        levels=levels,
    )


@pytest.fixture
def cascades(comparison) -> CascadesResult:
    """A cascade at two limits, twice as fast as its engine, and a refused limit."""
    (level,) = (each for each in comparison.levels if each.name == "8 clients")
    faster = tuple(
        ratio.model_copy(update={"after": 2 * ratio.before, "ratio": 2, "low": 1.6, "high": 2.5})
        for ratio in level.ratios
    )
    points = tuple(
        CascadePoint(
            max_difference=limit,
            answered=100 * limit,
            differing=limit / 2,
            gain=(0.4, -0.1, 0.9),
            levels=(level.model_copy(update={"ratios": faster}),),
        )
        for limit in (0.005, 0.01)
    )
    return CascadesResult(
        dataset="THUCNews",
        first="the linear model",
        engine="onnx-fp32",
        split="test",
        rows=10_000,
        metric="accuracy",
        score=88.5,
        source="dev",
        proof_rows=9_000,
        encode_us=11.2,
        first_us=7,
        engine_us=400.4,
        texts_per_request=8,
        points=points,
        refused={"0.2%": "too few rows"},
        commands=("pipe train thucnews --out runs/thucnews",),
        provenance=comparison.provenance,
    )


def _equal_ratio(level: Level, quantity: Quantity) -> Ratio:
    rate = quantity is Quantity.TEXTS_PER_S
    value = level.texts_per_s if rate else getattr(level.latency_ms, quantity)
    verdict = RatioVerdict.NO_DIFFERENCE
    bounds = {"low": 0.99, "high": 1.01, "verdict": verdict}
    return Ratio(quantity=quantity, before=value, after=value, ratio=1, **bounds)


@pytest.fixture
def printed(capsys, monkeypatch):
    """A function that returns the output of a function for a result, in 80 columns."""
    monkeypatch.setattr(console.output, "_width", 80)

    def run(function, result):
        function(result)
        return capsys.readouterr().out

    return run
