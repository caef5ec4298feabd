"""Engine for a tensor model of a tritonserver, which gets the arrays of each call.

It is called by a text model of the same tritonserver.

Shapes: B inputs of one call, C classes.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pipework.errors import RunFolderError
from pipework.run_folder.engine_record import EngineRecord, Variant
from pipework.run_folder.files import FileRecord, verify_files
from pipework.run_folder.manifest import Manifest
from pipework.scoring.reference_rows import REFERENCE_ROWS_FILE as ROWS_FILE
from pipework.scoring.reference_rows import ReferenceRows
from pipework.serve.engines.base import Arrays, CollatedEngine, Logits
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.reproof import ReprovenEngine
from pipework.serve.engines.runtimes import runtime_of
from pipework.text.padding import Padding

# Parameters of a text model's config: the name of its tensor model, and whether that graph reads
# only the first token of a text.
TENSOR_MODEL, FIRST_ONLY = "tensor_model", "first_only"
ModelCall = Callable[[Arrays], Logits]


class TritonEngine(CollatedEngine):
    """Engine for a model that takes arrays by name and returns logits.

    The model may be loaded after this object is created, so no call is made before the first batch.
    """

    def __init__(
        self, call: ModelCall, manifest: Manifest, variant: Variant, *, first_only: bool
    ) -> None:
        """Prepare the engine.

        Args:
            call: maps the arrays of one call to logits [B, C]; raises NotReadyError if the model
                does not respond.
            manifest: manifest of the run, for the form of its inputs and labels.
            variant: format, layout and precision of the model.
            first_only: see `Collate`.
        """
        collate = Collate(
            layout=variant.layout,
            padding=Padding.of(manifest.input),
            spans=manifest.model.takes_spans,
            first_only=first_only,
            whole=True,  # on a GPU one large call is cheaper than several
            row_offsets=manifest.task.row_offsets,
        )
        super().__init__(collate, classes=len(manifest.task.labels))
        self._call = call

    @property
    def processor(self) -> str:
        """Triton's backend; the real processor is unknown."""
        return "Triton's own backend"

    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        return partial(self._call, arrays)

    def close(self) -> None:
        """Do nothing: tritonserver owns the model."""


def files_of(record: EngineRecord) -> tuple[dict[str, FileRecord], FileRecord]:
    """Return an engine's files, by their names in the tensor model, and its reference rows.

    Raises:
        RunFolderError: the record does not have exactly one of each.
    """
    files = {Path(file.path).name: file for file in record.files}
    runtime = runtime_of(record.format)
    model = runtime.model_file
    if len(files) != len(record.files) or not {model, ROWS_FILE} <= files.keys():
        names = ", ".join(file.path for file in record.files)
        message = f"engine {record.name}: expected one file {model} and one {ROWS_FILE} in {names}"
        raise RunFolderError(message, "export it again: pipe export RUN")
    rows, graph = files.pop(ROWS_FILE), files.pop(model)
    name = model if runtime.triton is None else runtime.triton.model_file
    return {**files, name: graph}, rows


def open_tensor_model(
    run: Path,
    manifest: Manifest,
    call: ModelCall,
    *,
    first_only: bool,
    batch: int,
    model_folder: Path,
) -> ReprovenEngine:
    """Open the tensor model of a text model. Its parity is checked before its first call, not now.

    Args:
        run: the folder of the text model's version.
        manifest: its manifest.
        call: see `TritonEngine`.
        first_only: see `Collate`.
        batch: most texts of a call.
        model_folder: the folder of the tensor model's version; its files are checked if it exists.

    Raises:
        RunFolderError: a file is missing or changed, or the engine was made from another model.
    """
    (record,) = manifest.engines
    files, rows = files_of(record)
    manifest.check_current((record,))
    verify_files(run, (rows,))
    if model_folder.is_dir():
        files_there = (file.model_copy(update={"path": name}) for name, file in files.items())
        verify_files(model_folder, tuple(files_there))
    kept = ReferenceRows.read(run / rows.path)
    engine = TritonEngine(call, manifest, record, first_only=first_only)
    return ReprovenEngine(engine, record, kept, manifest.task, batch)
