"""Answers with a model of a tritonserver, to which a call's arrays are passed on.

What asks it is another model of the same server, or our own server in front of it.

Shapes: B inputs of one call, C classes.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pipework.errors import RunFolderError
from pipework.run_folder.engine_record import EngineFormat, EngineRecord, Variant
from pipework.run_folder.files import FileRecord, verify_files
from pipework.run_folder.manifest import Manifest
from pipework.scoring.reference_rows import FILE_NAME as KEPT_ROWS
from pipework.scoring.reference_rows import KeptRows
from pipework.serve.engines import MODELS
from pipework.serve.engines.base import Arrays, CollatedEngine, Logits
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.reproof import ProvenFirst
from pipework.text.padding import Padding

# Parameters of a text model's config that name the model behind it, and say whether its graph reads
# only the first token of a text.
TENSOR_MODEL, FIRST_ONLY = "tensor_model", "first_only"
# What Triton's own backends call an engine's main file.
MODEL_FILES = {EngineFormat.ONNX: "model.onnx", EngineFormat.TENSORRT: "model.plan"}
Ask = Callable[[Arrays], Logits]


class TritonEngine(CollatedEngine):
    """An Engine over a model that takes arrays by name and gives logits.

    That model may be loaded later than this is made, so nothing is asked before the first batch.
    """

    def __init__(self, ask: Ask, manifest: Manifest, variant: Variant, *, first_only: bool) -> None:
        """Take what asks the model: it gets the arrays of one call and gives logits [B, C].

        Args:
            ask: raises NotReadyError where the model does not answer.
            manifest: of the run, for what its inputs and labels look like.
            variant: what the model is.
            first_only: see `Collate`.
        """
        collate = Collate(
            layout=variant.layout,
            padding=Padding.of(manifest.input),
            spans=manifest.model.takes_spans,
            first_only=first_only,
            whole=True,  # it may stand on a GPU, to which one large call costs less than several
        )
        super().__init__(collate, classes=len(manifest.task.labels))
        self._ask = ask

    @property
    def processor(self) -> str:
        """Triton: where it runs the model is not told."""
        return "Triton's own backend"

    def _start(self, arrays: Arrays) -> Callable[[], Logits]:
        return partial(self._ask, arrays)

    def close(self) -> None:
        """Do nothing: the model is the server's."""


def files_of(record: EngineRecord) -> tuple[dict[str, FileRecord], FileRecord]:
    """Return an engine's files by name in the model behind, and the rows that prove it.

    Raises:
        RunFolderError: it has not one of each.
    """
    files = {Path(file.path).name: file for file in record.files}
    model = MODELS[record.format]
    if len(files) != len(record.files) or not {model, KEPT_ROWS} <= files.keys():
        names = ", ".join(file.path for file in record.files)
        message = f"engine {record.name}: expected one file {model} and one {KEPT_ROWS} in {names}"
        raise RunFolderError(message, "make it again: pipe export RUN")
    rows, graph = files.pop(KEPT_ROWS), files.pop(model)
    return {**files, MODEL_FILES[record.format]: graph}, rows


def open_behind(
    run: Path, manifest: Manifest, ask: Ask, *, first_only: bool, batch: int, beside: Path
) -> ProvenFirst:
    """Open the model behind a text model. It is proven before its first answer, not now.

    Args:
        run: the folder of the text model's version.
        manifest: of it.
        ask: see `TritonEngine`.
        first_only: see `Collate`.
        batch: the most texts of a call.
        beside: the folder of the other model's version, whose files are checked where it is there.

    Raises:
        RunFolderError: a file is missing or changed.
    """
    (record,) = manifest.engines
    files, rows = files_of(record)
    verify_files(run, (rows,))
    if beside.is_dir():
        there = (file.model_copy(update={"path": name}) for name, file in files.items())
        verify_files(beside, tuple(there))
    kept = KeptRows.read(run / rows.path)
    engine = TritonEngine(ask, manifest, record, first_only=first_only)
    return ProvenFirst(engine, record, kept, manifest.task, batch)
