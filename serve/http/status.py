"""GET /v1/status: models, load and recent latency, for the page."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from pipework import __version__
from pipework.run_folder.manifest import TrainingReadOptions
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Observers
from pipework.serve.observability.recent_latency import RecentLatency, RecentStatus
from pipework.serve.scheduling.predictor import Predictor
from pipework.tasks.registry import Kind
from pipework.wire.schemas import STATUS_PATH


class LoadStatus(BaseModel):
    """Queue now, and counters since the version was loaded."""

    model_config = ConfigDict(from_attributes=True)

    waiting_requests: int
    waiting_tokens: int
    batches: int
    batch_tokens: int = Field(description="tokens of all batches, without padding")
    batch_texts: int
    computed_tokens: int = Field(description="tokens of all batches, with padding")
    engines: int = Field(description="engines that are running")
    deaths: int = Field(
        validation_alias=AliasChoices("crashes", "deaths"), description="engine crashes"
    )
    refused: dict[str, int] = Field(description="rejected requests, by reason")


class TotalsStatus(BaseModel):
    """Requests since the version was loaded."""

    model_config = ConfigDict(from_attributes=True)

    answered: int
    failed: int
    texts: int = Field(description="texts of the successful requests")


class VersionStatus(BaseModel):
    """A loaded model version."""

    version: str
    engine: str
    precision: str
    ready: bool
    fault: str = Field("", description="what is wrong with the results of an engine, or empty")
    inputs: list[str] = Field(description="names of the input tensors")
    entities: bool = Field(description="whether each text needs two marked entities")
    reading: TrainingReadOptions = Field(description="columns and format of the training data")
    kind: Kind
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


class ServerStatus(BaseModel):
    """Status of the server."""

    server: str = Field(description="version of pipework")
    stopping: bool
    models: list[ModelStatus]
    recent: RecentStatus


def build_status_router(models: Models, observers: Observers) -> APIRouter:
    """Create the route."""
    router = APIRouter()

    @router.get(STATUS_PATH, summary="Models, load and recent latency")
    async def status() -> ServerStatus:
        own = server_status(models, observers.recent)
        others = [] if observers.others is None else observers.others()
        return _added(own, [ServerStatus.model_validate(o.status) for o in others if o.status])

    return router


def server_status(models: Models, recent: RecentLatency) -> ServerStatus:
    """Return the status of this process."""
    return ServerStatus(
        server=__version__,
        stopping=models.stopping.is_set(),
        models=_by_name(models.serving()),
        recent=recent.summary(),
    )


def _added(own: ServerStatus, others: Sequence[ServerStatus]) -> ServerStatus:
    """Return the status of a worker with the counts of the others."""
    found: dict[tuple[str, str], list[VersionStatus]] = defaultdict(list)
    for model in (model for other in others for model in other.models):
        for version in model.versions:
            found[model.name, version.version].append(version)
    models = []
    for model in own.models:
        versions = [_added_version(v, found[model.name, v.version]) for v in model.versions]
        models.append(model.model_copy(update={"versions": versions}))
    recent = own.recent
    for other in others:
        recent = _added_recent(recent, other.recent)
    return own.model_copy(update={"models": models, "recent": recent})


def _added_version(own: VersionStatus, others: Sequence[VersionStatus]) -> VersionStatus:
    load, totals = own.load.model_dump(), own.totals.model_dump()
    for other in others:
        refused = Counter(load["refused"]) + Counter(other.load.refused)
        for name, count in other.totals:
            totals[name] += count
        for name, count in other.load:
            load[name] = dict(refused) if name == "refused" else load[name] + count
    fault = next((version.fault for version in (own, *others) if version.fault), "")
    sums = {"load": LoadStatus(**load), "totals": TotalsStatus(**totals), "fault": fault}
    return own.model_copy(update=sums)


def _added_recent(own: RecentStatus, other: RecentStatus) -> RecentStatus:
    """Add rates. The median is weighted by requests, and the 99th percentile is the larger one."""
    requests_per_s = own.requests_per_s + other.requests_per_s
    medians = [(part.p50_ms, part.requests_per_s) for part in (own, other)]
    weighted = [median * rate for median, rate in medians if median is not None]
    return RecentStatus(
        window_s=own.window_s,
        requests_per_s=requests_per_s,
        texts_per_s=own.texts_per_s + other.texts_per_s,
        p50_ms=sum(weighted) / requests_per_s if weighted else None,
        p99_ms=max((own.p99_ms, other.p99_ms), key=lambda value: value or 0),
    )


def _by_name(serving: Sequence[Predictor]) -> list[ModelStatus]:
    versions: dict[str, list[VersionStatus]] = {}
    for model in serving:
        versions.setdefault(model.name, []).append(_version(model))
    return [ModelStatus(name=name, versions=statuses) for name, statuses in versions.items()]


def _version(model: Predictor) -> VersionStatus:
    manifest = model.manifest
    return VersionStatus(
        version=model.version,
        engine=model.engine,
        precision=str(model.record.precision),
        ready=model.scheduler.ready,
        fault=model.scheduler.fault,
        inputs=list(model.inputs),
        entities=manifest.input.marked,
        reading=TrainingReadOptions.of(manifest.data),
        kind=manifest.task.kind,
        classes=model.classes,
        thresholds=manifest.task.label_thresholds,
        load=LoadStatus.model_validate(model.load),
        totals=TotalsStatus.model_validate(model.scheduler.statistics.totals),
    )
