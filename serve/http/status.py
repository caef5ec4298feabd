"""GET /v1/status: what the server serves and how busy it is, for the page and for people."""

from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import BaseModel, Field

from pipework import __version__
from pipework.run_folder.task import TaskKind
from pipework.scoring.predictions import THRESHOLD
from pipework.serve.models.registry import Answerer, Models
from pipework.serve.observability.recent_latency import Recent

STATUS_PATH = "/v1/status"


class LoadStatus(BaseModel):
    """What waits now, and what the engines did since the version was loaded."""

    waiting_requests: int
    waiting_tokens: int
    batches: int
    batch_tokens: int = Field(description="of all batches, without padding")
    batch_texts: int
    computed_tokens: int = Field(description="of all batches, with padding")
    engines: int = Field(description="that compute now")
    deaths: int = Field(description="of engines")
    refused: dict[str, int] = Field(description="requests that were not answered, by reason")


class TotalsStatus(BaseModel):
    """What was asked since the version was loaded."""

    answered: int
    failed: int
    texts: int = Field(description="of the answered requests")


class VersionStatus(BaseModel):
    """A version that serves."""

    version: str
    engine: str
    precision: str
    ready: bool
    inputs: list[str] = Field(description="names of the tensors that it takes")
    entities: bool = Field(description="whether a text has two marked entities")
    kind: TaskKind
    classes: int
    thresholds: dict[str, float] | None = Field(
        description="by label, where the model gives several"
    )
    load: LoadStatus
    totals: TotalsStatus


class ModelStatus(BaseModel):
    """A model and its versions, the newest last: it answers where no version is named."""

    name: str
    versions: list[VersionStatus]


class RecentStatus(BaseModel):
    """What was answered in the last seconds, through all doors."""

    window_s: float
    requests_per_s: float
    texts_per_s: float
    p50_ms: float | None = Field(description="latency that half met; null where none came")
    p99_ms: float | None = Field(description="latency that 99 of 100 met")


class ServerStatus(BaseModel):
    """A running server."""

    server: str = Field(description="its own version")
    stopping: bool
    models: list[ModelStatus]
    recent: RecentStatus


def build_status_router(models: Models, recent: Recent) -> APIRouter:
    """Make the route."""
    router = APIRouter()

    @router.get(STATUS_PATH, summary="Models, load and the last seconds")
    async def status() -> ServerStatus:
        return ServerStatus(
            server=__version__,
            stopping=models.stopping.is_set(),
            models=_by_name(models.serving()),
            recent=_recent(recent),
        )

    return router


def _by_name(serving: Sequence[Answerer]) -> list[ModelStatus]:
    versions: dict[str, list[VersionStatus]] = {}
    for one in serving:
        versions.setdefault(one.name, []).append(_version(one))
    return [ModelStatus(name=name, versions=found) for name, found in versions.items()]


def _recent(recent: Recent) -> RecentStatus:
    lately = recent.lately()
    return RecentStatus(
        window_s=lately.window_s,
        requests_per_s=lately.requests_per_s,
        texts_per_s=lately.texts_per_s,
        p50_ms=_ms(lately.p50_s),
        p99_ms=_ms(lately.p99_s),
    )


def _version(one: Answerer) -> VersionStatus:
    card, load, totals = one.card, one.load, one.totals
    several = card.kind is TaskKind.MULTI_LABEL
    thresholds = card.thresholds or (THRESHOLD,) * len(card.labels)
    return VersionStatus(
        version=one.version,
        engine=one.engine,
        precision=card.precision,
        ready=one.ready,
        inputs=list(one.inputs),
        entities=card.entities,
        kind=card.kind,
        classes=one.classes,
        thresholds=dict(zip(card.labels, thresholds, strict=True)) if several else None,
        load=LoadStatus(
            waiting_requests=load.waiting_requests,
            waiting_tokens=load.waiting_tokens,
            batches=load.batches,
            batch_tokens=load.batch_tokens,
            batch_texts=load.batch_texts,
            computed_tokens=load.computed_tokens,
            engines=load.engines,
            deaths=load.deaths,
            refused=dict(load.refused),
        ),
        totals=TotalsStatus(answered=totals.answered, failed=totals.failed, texts=totals.texts),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
