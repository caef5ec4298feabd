"""The short table of README.md: a few accuracies, engines, servers and cascades."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from statistics import mean
from typing import TypeVar

from pipework.benchmarks.studies.records.cascade_results import CascadesResult
from pipework.benchmarks.studies.records.engine_results import EnginesResult
from pipework.benchmarks.studies.records.experiment_results import ExperimentResult
from pipework.benchmarks.studies.records.peer_serving_results import PeerServingResult
from pipework.benchmarks.studies.records.stored_results import StoredResult
from pipework.benchmarks.studies.records.training_results import PIPEWORK, TrainingResult

HEAD = ("measurement", "pipework", "compared with", "processor")
Row = tuple[str, str, str, str]
T = TypeVar("T")
ACCURACIES = (
    "SST-2",
    "SemEval-2010 task 8 (MiniLM-L6, entity head)",
    "THUCNews headlines, from scratch",
)
ENGINES = ("SST-2", "THUCNews (4 layers of 256, linear head)")
SERVERS = ("SST-2 (MiniLM-L6, 300 steps)",)
CASCADES = ("THUCNews",)
LIMIT = 0.01  # of the cascades
PEERS = 3  # number of servers, fastest first


def summary_rows(results: Iterable[StoredResult]) -> list[Row]:
    """Return the rows of the chosen results; absent results are omitted."""
    accuracies: dict[str, Row] = {}
    engines: dict[str, list[Row]] = {}
    servers: dict[str, list[Row]] = {}
    cascades: dict[str, list[Row]] = {}
    for result in results:
        match result:
            case TrainingResult():
                accuracies[result.dataset] = _accuracy(result)
            case ExperimentResult():
                accuracies[result.dataset] = _experiment(result)
            case EnginesResult():
                engines[result.dataset] = _engines(result)
            case PeerServingResult():
                servers[result.model] = _servers(result)
            case CascadesResult():
                cascades[result.dataset] = _cascades(result)
            case _:
                pass
    lists = ((engines, ENGINES), (servers, SERVERS), (cascades, CASCADES))
    chosen = chain(*(chain(*_chosen(*each)) for each in lists))
    return [*_chosen(accuracies, ACCURACIES), *chosen]


def _chosen(rows: dict[str, T], prefixes: Iterable[str]) -> Iterator[T]:
    for prefix in prefixes:
        yield from [row for dataset, row in rows.items() if dataset.startswith(prefix)][:1]


def _processor(result: StoredResult) -> str:
    return result.provenance.machine.cpu.replace("(R)", "").removesuffix(" Processor")


def _accuracy(result: TrainingResult) -> Row:
    value, compared = _compared(result.value, result.floors)
    return f"{result.dataset}: {result.metric}, %", value, compared, _processor(result)


def _experiment(result: ExperimentResult) -> Row:
    """Return the arm that is best on dev."""
    best = max(result.arms, key=lambda arm: mean(arm.dev))
    value, compared = _compared(mean(best.test), result.floors)
    name = f"{result.dataset} ({best.name}, {len(best.seeds)} seeds): test {result.metric}, %"
    return name, value, compared, _processor(result)


def _compared(value: float, floors: Mapping[str, float]) -> tuple[str, str]:
    """Return a score, bold if it is above the best baseline, and this baseline."""
    baseline = max(floors.items(), key=lambda item: item[1], default=None)
    compared = "" if baseline is None else f"{baseline[0]} {baseline[1]:.2f}"
    better = baseline is None or value > baseline[1]
    return f"**{value:.2f}**" if better else f"{value:.2f}", compared


def _engines(result: EnginesResult) -> list[Row]:
    """Return the fastest engine, and the default engine if it is another one."""
    fastest = max(result.engines, key=lambda engine: engine.texts_per_s)
    rows = []
    for engine in result.engines:
        if engine is not fastest and not engine.default:
            continue
        kinds = [("fastest", engine is fastest), ("default", engine.default)]
        kind = " and ".join(word for word, applies in kinds if applies)
        speedup = engine.texts_per_s / result.by_hand_texts_per_s
        baseline = f"onnxruntime fp32, padded: {result.by_hand_texts_per_s:,.0f}"
        name = f"{result.dataset}: {kind} engine, {engine.name}, texts/s"
        compared = f"{baseline} (speedup {speedup:.1f})"
        rows.append((name, f"**{engine.texts_per_s:,.0f}**", compared, _processor(result)))
    return rows


def _servers(result: PeerServingResult) -> list[Row]:
    """Return pipework's server compared with the fastest peers under the first load."""
    load = result.loads[0]
    own = result.figures(PIPEWORK, load)
    if own is None:
        return []
    rates: dict[str, float] = {}
    for peer in result.peers:
        figures = result.figures(peer, load)
        if peer != PIPEWORK and figures is not None:
            rates[peer] = figures.texts_per_s
    name = f"{result.model}: server, {load.texts_per_request} texts per request, texts/s"
    rows = []
    for peer in sorted(rates, key=lambda peer: -rates[peer])[:PEERS]:
        speedup = result.speedup_over(PIPEWORK, peer, load)
        ratio = "" if speedup is None else f" (speedup {speedup:.1f})"
        compared = f"{peer}: {rates[peer]:,.0f}{ratio}"
        rows.append((name, f"**{own.texts_per_s:,.0f}**", compared, _processor(result)))
    return rows


def _cascades(result: CascadesResult) -> list[Row]:
    """Return the cascade of a limit, under the highest measured load."""
    rows = []
    for point in result.points:
        if point.max_difference == LIMIT:
            rate, load = point.rates[-1], point.levels[-1].name
            name = (
                f"{result.dataset}: {result.first} before the engine, at most {LIMIT:.0%} other "
                f"labels, {load}, texts/s"
            )
            alone = f"{result.engine} alone: {rate.before:,.0f} (speedup {rate.ratio:.1f})"
            rows.append((name, f"**{rate.after:,.0f}**", alone, _processor(result)))
    return rows
