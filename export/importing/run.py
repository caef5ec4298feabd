"""Make a run folder from a checkpoint of another program: `pipe import`.

Shapes: N rows of dev, C classes.
"""

from collections.abc import Sequence
from pathlib import Path

import onnxruntime
import transformers

from pipework.data.kept_rows import sample_evenly
from pipework.errors import ConfigError
from pipework.export.config import ImportSettings
from pipework.export.importing.adapters import find_revision
from pipework.export.importing.comparison import (
    COMPARED_ROWS,
    SourceComparison,
    SourceReference,
    compare_with_source,
)
from pipework.export.importing.import_rows import ImportRows
from pipework.export.importing.imported_data import imported_data
from pipework.export.importing.model_copy import copy_source, model_record, open_copy
from pipework.export.importing.setfit_source import is_setfit, open_setfit
from pipework.export.importing.source_checks import is_decoder
from pipework.export.importing.source_model import SourceModel
from pipework.export.importing.transformers_source import open_source
from pipework.export.publish.folder import check_new, new_folder
from pipework.export.rows.run_rows import sample_rows
from pipework.progress import Progress, counted
from pipework.run_folder.files import MANIFEST_FILE
from pipework.run_folder.manifest import (
    Identity,
    ImportRecord,
    Manifest,
    SourceKind,
    write_manifest,
)


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
    source = open_any(name, settings, trust_remote_code=trust_remote_code)
    rows = ImportRows.open(files, settings, source)
    task = source.task
    limit = source.max_length(settings.max_length)
    progress.note(f"{name}: {_describe(source, rows.pair, limit)}")
    with new_folder(out) as folder:
        special_tokens = settings.special_tokens
        if special_tokens is None:
            special_tokens = is_decoder(source.classifier.config)
        input_ = copy_source(source, folder, rows.pair, limit, special_tokens)
        imported = open_copy(task, input_, folder)
        texts = rows.dev or sample_rows(input_)
        sampled = sample_evenly(texts, len(texts), COMPARED_ROWS).values()
        reference = SourceReference(source, limit)
        comparison = compare_with_source(imported, reference, [*sampled], progress)
        found = imported_data(source.findings, imported, rows, folder, comparison, progress)
        manifest = Manifest(
            identity=Identity.new(out, seed=None),
            task=found.task,
            input=input_,
            model=model_record(source, folder, found.calibration),
            data=found.data,
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


def open_any(
    name: str, settings: ImportSettings, *, trust_remote_code: bool = False
) -> SourceModel:
    """Open a source of any kind; see `open_source`."""
    if settings.adapter_base is None and is_setfit(name):
        return open_setfit(name, settings)
    return open_source(name, settings, trust_remote_code=trust_remote_code)


def _describe(source: SourceModel, pair: bool, max_length: int) -> str:
    """Describe what will be served and how it is decided."""
    more = source.longest is None or source.longest > max_length
    limit = "no limit" if source.longest is None else f"{source.longest:,}"
    longer = f" (the model takes {limit}: --set max_length=N)" if more else ""
    texts = "pairs" if pair else "single texts"
    decision = source.task.describe_decision()
    return f"{source.kind}, {decision}, {texts}, at most {counted(max_length, 'token')}{longer}"


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
