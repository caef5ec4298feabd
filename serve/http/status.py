"""GET /v1/status: models, load and recent latency, for the page."""

from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import BaseModel, Field

from pipework import __version__
from pipework.run_folder.manifest import TrainingReadOptions
from pipework.serve.models.registry import Models, ServedModel
from pipework.serve.observability.recent_latency import RecentLatency
from pipework.tasks.kinds import TaskKind
from pipework.wire.schemas import STATUS_PATH


class LoadStatus(BaseModel):
    """Queue now, and counters since the version was loaded."""

    waiting_requests: int
    waiting_tokens: int
    batches: int
    batch_tokens: int = Field(description="tokens of all batches, without padding")
    batch_texts: int
    computed_tokens: int = Field(description="tokens of all batches, with padding")
    engines: int = Field(description="engines that are running")
    deaths: int = Field(description="engine crashes")
    refused: dict[str, int] = Field(description="rejected requests, by reason")


class TotalsStatus(BaseModel):
    """Requests since the version was loaded."""

    answered: int
    failed: int
    texts: int = Field(description="texts of the successful requests")


class VersionStatus(BaseModel):
    """A loaded model version."""

    version: str
    engine: str
    precision: str
    ready: bool
    inputs: list[str] = Field(description="names of the input tensors")
    entities: bool = Field(description="whether each text needs two marked entities")
    reading: TrainingReadOptions = Field(description="columns and format of the training data")
    kind: TaskKind
    classes: int
    thresholds: dict[str, float] | None = Field(
        description="thresholds by label, for multi-label models"
    )
    load: LoadStatus
    totals: TotalsStatus


class ModelStatus(BaseModel):
    """A model and its versions, newest last. The newest is the default."""

    name: str
    versions: list[VersionStatus]


class RecentStatus(BaseModel):
    """Successful requests of the last seconds, over all endpoints."""

    window_s: float
    requests_per_s: float
    texts_per_s: float
    p50_ms: float | None = Field(description="median latency; null if there were no requests")
    p99_ms: float | None = Field(
        description="99th percentile of the latency; null if there were no requests"
    )


class ServerStatus(BaseModel):
    """Status of the server."""

    server: str = Field(description="version of pipework")
    stopping: bool
    models: list[ModelStatus]
    recent: RecentStatus


def build_status_router(models: Models, recent: RecentLatency) -> APIRouter:
    """Create the route."""
    router = APIRouter()

    @router.get(STATUS_PATH, summary="Models, load and recent latency")
    async def status() -> ServerStatus:
        return ServerStatus(
            server=__version__,
            stopping=models.stopping.is_set(),
            models=_by_name(models.serving()),
            recent=_recent(recent),
        )

    return router


def _by_name(serving: Sequence[ServedModel]) -> list[ModelStatus]:
    versions: dict[str, list[VersionStatus]] = {}
    for model in serving:
        versions.setdefault(model.name, []).append(_version(model))
    return [ModelStatus(name=name, versions=statuses) for name, statuses in versions.items()]


def _recent(recent: RecentLatency) -> RecentStatus:
    summary = recent.summary()
    return RecentStatus(
        window_s=summary.window_s,
        requests_per_s=summary.requests_per_s,
        texts_per_s=summary.texts_per_s,
        p50_ms=_ms(summary.p50_s),
        p99_ms=_ms(summary.p99_s),
    )


def _version(model: ServedModel) -> VersionStatus:
    card, load, totals = model.card, model.load, model.totals
    return VersionStatus(
        version=model.version,
        engine=model.engine,
        precision=card.precision,
        ready=model.ready,
        inputs=list(model.inputs),
        entities=card.entities,
        reading=card.reading,
        kind=card.task.kind,
        classes=model.classes,
        thresholds=card.task.label_thresholds,
        load=LoadStatus(
            waiting_requests=load.waiting_requests,
            waiting_tokens=load.waiting_tokens,
            batches=load.batches,
            batch_tokens=load.batch_tokens,
            batch_texts=load.batch_texts,
            computed_tokens=load.computed_tokens,
            engines=load.engines,
            deaths=load.crashes,
            refused=dict(load.refused),
        ),
        totals=TotalsStatus(answered=totals.answered, failed=totals.failed, texts=totals.texts),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
