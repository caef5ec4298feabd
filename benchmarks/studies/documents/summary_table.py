"""The short table of README.md: a few accuracies, engines and servers compared with others."""

from collections.abc import Iterable, Iterator

from pipework.benchmarks.studies.records.engine_results import EnginesResult
from pipework.benchmarks.studies.records.peer_serving_results import PeerServingResult
from pipework.benchmarks.studies.records.stored_results import StoredResult
from pipework.benchmarks.studies.records.training_results import PIPEWORK, TrainingResult

HEAD = ("measurement", "pipework", "compared with")
Row = tuple[str, str, str]
ACCURACIES = ("SST-2", "SemEval-2010 task 8 (MiniLM-L6, entity head)", "THUCNews headlines (45,000")
ENGINES = ("SST-2", "THUCNews (4 layers of 256, linear head)")
PEERS = 3  # number of servers, fastest first


def summary_rows(results: Iterable[StoredResult]) -> list[Row]:
    """Return the rows of the chosen accuracies, engines and servers; absent results are omitted."""
    accuracies: dict[str, Row] = {}
    engines: dict[str, Row] = {}
    servers: list[Row] = []
    for result in results:
        match result:
            case TrainingResult():
                accuracies[result.dataset] = _accuracy(result)
            case EnginesResult():
                engines[result.dataset] = _engine(result)
            case PeerServingResult():
                servers += _servers(result)
            case _:
                pass
    return [*_chosen(accuracies, ACCURACIES), *_chosen(engines, ENGINES), *servers]


def _chosen(rows: dict[str, Row], prefixes: Iterable[str]) -> Iterator[Row]:
    for prefix in prefixes:
        yield from [row for dataset, row in rows.items() if dataset.startswith(prefix)][:1]


def _accuracy(result: TrainingResult) -> Row:
    baseline = max(result.floors.items(), key=lambda item: item[1], default=None)
    compared = "" if baseline is None else f"{baseline[0]} {baseline[1]:.2f}"
    return f"{result.dataset}: {result.metric}, %", f"**{result.value:.2f}**", compared


def _engine(result: EnginesResult) -> Row:
    fastest = max(result.engines, key=lambda engine: engine.texts_per_s)
    speedup = fastest.texts_per_s / result.by_hand_texts_per_s
    baseline = f"onnxruntime fp32, padded: {result.by_hand_texts_per_s:,.0f}"
    name = f"{result.dataset}: engine {fastest.name}, texts/s"
    return name, f"**{fastest.texts_per_s:,.0f}**", f"{baseline} (speedup {speedup:.1f})"


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
        rows.append((name, f"**{own.texts_per_s:,.0f}**", f"{peer}: {rates[peer]:,.0f}{ratio}"))
    return rows
