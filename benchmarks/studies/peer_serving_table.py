"""Servers side by side as Markdown."""

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.results import PIPEWORK
from pipework.benchmarks.studies.peer_serving_results import (
    AGREEMENT,
    Answers,
    Candidate,
    Figures,
    Load,
    PeerServingResult,
)

HEAD = (
    *("model", "load", "server", "its best settings", "texts/s", "pipework is faster", "p50 ms"),
    *("p99 ms", "memory MiB", "start s", "labels as the checkpoint's"),
)
Row = tuple[str, ...]


def peer_rows(result: PeerServingResult) -> list[Row]:
    """Return the rows of a result: for each load the servers, the fastest first.

    Those that failed in every round come last.
    """
    rows = []
    for load in result.loads:
        found = [(peer, result.figures(peer, load)) for peer in result.peers]
        known = [(peer, one) for peer, one in found if one is not None]
        known.sort(key=lambda pair: -pair[1].texts_per_s)
        rows += [(result.model, _load(load), *_row(result, load, *one)) for one in known]
        rows += [
            (result.model, _load(load), *_failed_row(result, load, peer))
            for peer, one in found
            if one is None and result.failed(peer, load)
        ]
    return rows


def peer_notes(result: PeerServingResult) -> list[str]:
    """Return what the table cannot show: how much was tried, who failed, who was not there."""
    tried = f"{len(result.candidates)} settings of {len(result.peers)} servers were tried"
    notes = [f"{result.model}: {tried}, {result.search_seconds:g} s each; {_rounds(result)}"]
    for one in result.candidates:
        notes += [f"{one.peer}, {one.settings}, {said}" for said in _remarks(one)]
    notes += [one.said for one in result.failures]
    notes += [f"{name} was not measured: {why}" for name, why in result.absent.items()]
    return notes


def _remarks(one: Candidate) -> list[str]:
    """Say what is wrong with a candidate."""
    if one.failed is not None:
        return [f"was not measured: {one.failed}"]
    if one.answers is None:
        return []
    remarks = []
    if not one.answers.equal:
        right = f"{one.answers.same} of {one.answers.rows} labels are the checkpoint's"
        remarks.append(f"is not compared: {right}, fewer than {AGREEMENT:.0%}")
    if not one.answers.truncates:
        remarks.append("fails with a text that is too long")
    return remarks


def lines(result: PeerServingResult) -> list[str]:
    """Return a result for a terminal."""
    return [*(", ".join(row[1:]) for row in peer_rows(result)), *peer_notes(result)]


def _row(result: PeerServingResult, load: Load, peer: str, figures: Figures) -> Row:
    faster = result.faster_than(PIPEWORK, peer, load)
    settings = result.engine if peer == PIPEWORK else figures.settings
    lost = f", {figures.failed:,} requests failed" if figures.failed else ""
    missing = len({one.round for one in result.failed(peer, load)})
    lost += f", failed in {missing} of {result.rounds} rounds" if missing else ""
    return (
        f"**{peer}**" if peer == PIPEWORK else peer,
        settings,
        f"{figures.texts_per_s:,.0f}{lost}",
        "" if peer == PIPEWORK or faster is None else f"**{faster:.2f}** times",
        *("-" if one is None else tables.ms(one) for one in (figures.p50_ms, figures.p99_ms)),
        f"{figures.memory_mib:,.0f}",
        f"{figures.start_s:.1f}",
        _answers(result.candidate(peer, figures.settings).answers),
    )


def _failed_row(result: PeerServingResult, load: Load, peer: str) -> Row:
    settings = result.failed(peer, load)[0].settings
    answers = _answers(result.candidate(peer, settings).answers)
    return (peer, settings, "failed in every round", "", *("-",) * 4, answers)


def _answers(answers: Answers | None) -> str:
    if answers is None:
        return "-"
    score = f"accuracy {answers.accuracy:.1f} for {answers.checkpoint_accuracy:.1f}"
    return f"{answers.same} of {answers.rows}, ±{answers.max_difference:.0e}, {score}"


def _load(load: Load) -> str:
    texts = "single texts" if load.texts_per_request == 1 else f"{load.texts_per_request} a request"
    return f"{texts}, {load.clients} clients"


def _rounds(result: PeerServingResult) -> str:
    plural = "s" * (result.rounds > 1)
    return f"the best in {result.rounds} round{plural} of {result.seconds:g} s a load"
