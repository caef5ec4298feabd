"""Make a run folder from a checkpoint of another program: `pipe import`.

Shapes: N rows of dev, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import onnxruntime
import transformers

from pipework import __version__
from pipework.data.examples import Example, Source
from pipework.data.kept_rows import CALIBRATION_ROWS, keep_rows, sample_evenly
from pipework.data.readers import Columns, column_names
from pipework.errors import ConfigError, DataError
from pipework.export.config import ImportDataSettings, ImportSettings
from pipework.export.importing.adapters import find_revision
from pipework.export.importing.comparison import (
    COMPARED_ROWS,
    ImportedModel,
    SourceComparison,
    SourceReference,
    compare_with_source,
)
from pipework.export.importing.setfit_source import is_setfit, open_setfit
from pipework.export.importing.transformers_source import (
    SourceModel,
    open_source,
)
from pipework.export.publish.folder import check_new, new_folder
from pipework.export.rows.run_rows import sample_rows
from pipework.git import CHECKOUT, git_commit
from pipework.progress import Progress, counted
from pipework.run_folder.files import MANIFEST_FILE, file_digest, record_file
from pipework.run_folder.manifest import (
    Data,
    Identity,
    ImportRecord,
    Input,
    Manifest,
    Model,
    Part,
    ReadOptions,
    SourceKind,
    Split,
    write_manifest,
)
from pipework.run_folder.task import SplitMetrics, Task, TaskKind
from pipework.scoring.evaluation import evaluate, infer_all, label_array
from pipework.text.encoding import TextEncoder, token_digest
from pipework.text.padding import Padding
from pipework.train.config.data import TaskSettings
from pipework.train.data_report.data_report import data_report
from pipework.train.loop.evaluator import with_thresholds
from pipework.train.model import checkpoint
from pipework.train.model.checkpoint_engine import CheckpointEngine
from pipework.train.model.classifier import open_checkpoint, padding_of
from pipework.train.run_folder import TOKENIZER

FOREIGN_TEXTS = "proven on texts that are not yours: import again with --data FILE"


def import_source(
    name: str,
    out: Path,
    files: Sequence[Path],
    settings: ImportSettings,
    progress: Progress,
    *,
    trust_remote_code: bool = False,
) -> Manifest:
    """Copy a checkpoint into the run folder `out`, and compare the copy with the source.

    Args:
        name: a folder or hub id.
        out: the run folder, which must not exist.
        files: rows for the proof, then rows that calibrate static int8. Without the second file
            some rows of the first are held out; without any, texts of the sample are used.
        settings: how to read the source and the files.
        progress: receives the stages.
        trust_remote_code: whether to run Python code of the source.

    Raises:
        ConfigError: the source or the settings cannot be used.
        DataError: a file cannot be read, or has a label that the source lacks.
        RunFolderError: `out` exists or cannot be created.
        CheckFailedError: the copy answers differently.
    """
    _check_arguments(name, out, files)
    source = open_any(name, settings.task, trust_remote_code=trust_remote_code)
    rows = ImportRows.open(files, settings, source)
    task, limit = source.task, source.max_length(settings.max_length)
    progress.note(f"{name}: {_describe(source, rows.pair, limit)}")
    with new_folder(out) as folder:
        input_ = _copy(source, folder, rows.pair, limit)
        model = open_checkpoint(folder / checkpoint.FOLDER)
        imported = ImportedModel(
            task=task,
            encoder=TextEncoder.open(
                folder / TOKENIZER, max_length=limit, type_ids=input_.type_ids
            ),
            engine=CheckpointEngine(model, padding=Padding.of(input_)),
        )
        texts = rows.dev or sample_rows(input_)
        sampled = sample_evenly(texts, len(texts), COMPARED_ROWS).values()
        reference = SourceReference(source, limit)
        comparison = compare_with_source(imported, reference, [*sampled], progress)
        task, data = _data(source.findings, imported, rows, folder, comparison, progress)
        manifest = Manifest(
            identity=_identity(out),
            task=task,
            input=input_,
            model=_model(source, folder),
            data=data,
            imported=_record(source, comparison),
        )
        write_manifest(folder, manifest)
    return manifest


def _check_arguments(name: str, out: Path, files: Sequence[Path]) -> None:
    if len(files) > 2:  # noqa: PLR2004
        message = f"expected at most two --data files, found {len(files)}"
        raise ConfigError(message, "rows for the proof, then rows for the calibration of int8")
    check_new(out)
    if (Path(name) / MANIFEST_FILE).is_file():
        message = f"{name} is a run folder, which needs no import"
        raise ConfigError(message, f"for example: pipe export {name} --to auto")


def open_any(name: str, settings: TaskSettings, *, trust_remote_code: bool = False) -> SourceModel:
    """Open a source of any kind; see `open_source`."""
    if is_setfit(name):
        return open_setfit(name, settings)
    return open_source(name, settings, trust_remote_code=trust_remote_code)


@dataclass(frozen=True, kw_only=True)
class ImportRows:
    """The rows of the user.

    Attributes:
        pair: whether an input is two texts.
        sources: the files, or parts of them, by split: dev and train; empty without files.
        dev: the rows of dev.
    """

    pair: bool
    sources: dict[str, Source]
    dev: tuple[Example, ...]

    @classmethod
    def open(
        cls, files: Sequence[Path], settings: ImportSettings, source: SourceModel
    ) -> "ImportRows":
        """Find the columns of the files, and hold out the rows for the calibration.

        Raises:
            DataError: a file cannot be read.
        """
        kind = source.task.kind
        known = source.pair if settings.pair is None else settings.pair
        opened = [_source(path, settings.data, kind, known) for path in files]
        pairs = [file.columns.text_pair is not None for file in opened]
        pair = any(pairs) if known is None else known
        if opened and pairs != [pair] * len(pairs):
            message = f"{opened[0].path}: expected {'two texts' if pair else 'one text'} per row"
            raise ConfigError(message, "set data.columns.text_pair, or pair")
        if not opened:
            return cls(pair=pair, sources={}, dev=())
        every = tuple(opened[0].rows())
        if not every:
            message = f"{opened[0].path} holds no rows"
            raise DataError(message, "expected rows after the line with the names of the columns")
        sources = {"dev": opened[0]}
        if len(opened) > 1:
            sources["train"] = opened[1]
        elif held_out := min(CALIBRATION_ROWS, len(every) // 4):
            parts = {"dev": Part(rows=held_out), "train": Part(rows=held_out, held_out=True)}
            divided = {name: replace(opened[0], part=part) for name, part in parts.items()}
            if dev := tuple(divided["dev"].rows()):  # equal texts are in the same part
                return cls(pair=pair, sources=divided, dev=dev)
        return cls(pair=pair, sources=sources, dev=every)

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels."""
        return bool(self.sources) and self.sources["dev"].columns.label is not None

    def reading(self, kind: TaskKind) -> ReadOptions:
        """Return how the files are read, or the usual names of columns without files."""
        if self.sources:
            return self.sources["dev"].read_options()
        pair = "text_pair" if self.pair else None
        return ReadOptions(
            text="text", text_pair=pair, label=None, format="tsv", header=True, kind=kind
        )


def _source(path: Path, data: ImportDataSettings, kind: TaskKind, pair: bool | None) -> Source:
    """Return how to read a file: with the configured columns, or else those of the usual names."""
    columns = data.columns
    names = column_names(path, data.format)
    label = columns.label if "label" in columns.model_fields_set or "label" in names else None
    text_pair = columns.text_pair
    if text_pair is None and pair is not False and "text_pair" in names:
        text_pair = "text_pair"
    return Source(
        path=path,
        columns=Columns(text=columns.text, text_pair=text_pair, label=label),
        format=data.format,
        header=data.header,
        kind=kind,
        separator=data.separator,
    )


def _describe(source: SourceModel, pair: bool, max_length: int) -> str:
    """Describe what will be served and how it is decided."""
    task, count = source.task, len(source.task.labels)
    match task.kind:
        case TaskKind.SINGLE_LABEL:
            decision = f"{counted(count, 'label')}, softmax"
        case TaskKind.MULTI_LABEL:
            decision = f"{counted(count, 'label')}, a sigmoid each"
        case _:
            decision = "one score"
    more = source.longest is None or source.longest > max_length
    limit = "no limit" if source.longest is None else f"{source.longest:,}"
    longer = f" (the model takes {limit}: --set max_length=N)" if more else ""
    texts = "pairs" if pair else "single texts"
    return f"{source.kind}, {decision}, {texts}, at most {counted(max_length, 'token')}{longer}"


def _copy(source: SourceModel, folder: Path, pair: bool, max_length: int) -> Input:
    """Write weights and tokenizer into the run folder; return the record of the input."""
    source.tokenizer.save(str(folder / TOKENIZER))
    padding = padding_of(source.classifier)
    input_ = Input(
        fields=("text", "text_pair") if pair else ("text",),
        tokenizer=record_file(folder, folder / TOKENIZER),
        max_length=max_length,
        pad_id=padding.pad_id,
        type_ids=source.type_ids,
        pad_type_id=padding.pad_type_id,
        pad_left=padding.left,
    )
    source.classifier.save(folder / checkpoint.FOLDER)
    checkpoint.add_tokenizer(folder, input_)
    return input_


def _data(
    source_findings: Sequence[str],
    imported: ImportedModel,
    rows: ImportRows,
    folder: Path,
    comparison: SourceComparison,
    progress: Progress,
) -> tuple[Task, Data]:
    """Score the rows, choose thresholds, and copy the rows into the run folder."""
    task, metrics = imported.task, dict[str, SplitMetrics]()
    findings = [*([] if rows.sources else [FOREIGN_TEXTS]), *source_findings]
    if comparison.with_special_tokens:
        findings.append(
            f"inputs with a special token in their text: {comparison.with_special_tokens}, not "
            "compared: the source reads it as the token, the import as text"
        )
    if rows.labelled:
        path = rows.sources["dev"].path
        truth = label_array(rows.dev, task, str(path))
        encodings = imported.encoder.encode(rows.dev)
        logits_NC = infer_all(imported.engine, encodings, progress)
        task = with_thresholds(task, logits_NC, truth)
        scored = evaluate(logits_NC, truth, task).metrics()
        metrics["dev"] = scored.model_copy(update={"tokens": token_digest(encodings)})
    if rows.sources:
        # The rows of the calibration are not scored: those that are also in dev do no harm.
        dev = {"dev": rows.sources["dev"]}
        report = data_report(dev, imported.encoder, task.labels, progress)
        findings += report.findings
    return task, Data(
        reading=rows.reading(task.kind),
        splits={
            name: _split(folder, name, source, rows.dev if name == "dev" else [*source.rows()])
            for name, source in rows.sources.items()
        },
        findings=tuple(findings),
        metrics=metrics,
    )


def _split(folder: Path, name: str, source: Source, rows: Sequence[Example]) -> Split:
    """Record a file; the run folder keeps its rows, or those that the calibration needs."""
    most = len(rows) if name == "dev" else CALIBRATION_ROWS
    return Split(
        path=str(source.path.absolute()),
        sha256=file_digest(source.path),
        rows=len(rows),
        part=source.part,
        kept=keep_rows(folder, name, sample_evenly(rows, len(rows), most).values()),
    )


def _identity(out: Path) -> Identity:
    return Identity(
        name=out.absolute().name,
        created_at=datetime.now(UTC),
        pipework=__version__,
        git_commit=git_commit(CHECKOUT),
        seed=None,
    )


def _model(source: SourceModel, folder: Path) -> Model:
    classifier = source.classifier
    return Model(
        family=str(classifier.config.model_type),
        head=classifier.settings.head,
        base=source.name,
        parameters=sum(parameter.numel() for parameter in classifier.parameters()),
        dtype="float32",
        checkpoint=checkpoint.records(folder),
    )


def _record(source: SourceModel, comparison: SourceComparison) -> ImportRecord:
    library = onnxruntime if source.kind is SourceKind.ONNX else transformers
    return ImportRecord(
        kind=source.kind,
        source=source.name,
        revision=find_revision(source.name),
        program=f"{library.__name__} {library.__version__}",
        rows=comparison.rows,
        max_abs=comparison.max_abs,
        custom_code=dict(source.custom_code),
    )
