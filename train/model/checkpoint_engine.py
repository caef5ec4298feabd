"""Runs a checkpoint as an engine, so that it is scored and compared like exported engines.

Shapes: N inputs, R rows of their outputs, C logits, B rows of a batch, T tokens.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.closeable import Closeable
from pipework.errors import RunFolderError
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import Manifest
from pipework.tasks.outputs import Outputs, RowOffsets, one_row_of, rows_of
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding, pad
from pipework.train.data.batches import BATCH_TOKENS, token_batches
from pipework.train.model.checkpoint import FOLDER, STEPS
from pipework.train.model.classifier import Classifier
from pipework.train.model.combined import open_saved

log = logging.getLogger(__name__)
CPU = torch.device("cpu")
Result = TypeVar("Result")


@dataclass(eq=False)
class CheckpointEngine(Closeable):
    """Runs a model through the interface of `pipework.scoring.evaluation.Engine`.

    Attributes:
        model: the model, on its device; each call runs it in evaluation mode.
        padding: padding of its inputs.
        autocast: type of autocast; None for float32.
        one_by_one: whether each input is computed alone and without padding: slow, but a reference
            that does not depend on batching.
        spare: the device to which the model moves if the memory of its device is exhausted.
        row_offsets: the offsets of the output rows of inputs, given their lengths.
    """

    model: Classifier
    _: KW_ONLY
    padding: Padding
    autocast: torch.dtype | None = None
    one_by_one: bool = False
    spare: torch.device | None = None
    row_offsets: RowOffsets = one_row_of

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        """Return the outputs of N inputs, computed in batches of similar length."""
        return self._with_spare(lambda: self._infer(encodings))

    def _infer(self, encodings: Sequence[Encoding]) -> Outputs:
        was_training = self.model.training
        self.model.eval()
        lengths_N = np.array([len(encoding) for encoding in encodings], np.int64)
        offsets = self.row_offsets(lengths_N.tolist())
        logits_RC = np.empty((int(offsets[-1]), self.model.classes), np.float32)
        order = np.argsort(lengths_N, kind="stable")
        batch_tokens = 0 if self.one_by_one else BATCH_TOKENS
        with torch.inference_mode():
            for rows in token_batches(lengths_N, order, batch_tokens):
                logits_RC[rows_of(offsets, rows)] = self._forward([encodings[row] for row in rows])
        self.model.train(was_training)
        return Outputs(logits_RC, offsets)

    def _forward(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        device = self.model.device
        inputs = model_inputs(encodings, self.padding, device)
        with torch.autocast(device.type, self.autocast, enabled=self.autocast is not None):
            logits = self.model(**inputs)
        return np.asarray(logits.float().cpu().numpy(), np.float32)

    def alone(self) -> "CheckpointEngine":
        """Return an engine with the same model that computes each input alone."""
        return replace(self, one_by_one=True)

    def with_model(self, change: Callable[[Classifier], Classifier]) -> "CheckpointEngine":
        """Return an engine with the changed model."""
        return replace(self, model=self._with_spare(lambda: change(self.model)))

    def _with_spare(self, compute: Callable[[], Result]) -> Result:
        """Return the result of a computation, repeated on the spare device if memory runs out."""
        try:
            return compute()
        except torch.OutOfMemoryError:
            if self.spare is None:
                raise
            log.warning(
                "%s has too little memory; the checkpoint continues on %s",
                self.model.device,
                self.spare,
            )
        # Not in the handler, whose traceback keeps tensors of the failed computation.
        self.model.to(self.spare)
        self.spare = None
        return compute()

    def close(self) -> None:
        """Do nothing: the model belongs to the caller."""


def model_inputs(
    encodings: Sequence[Encoding], padding: Padding, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return the model inputs of a batch, int64, on the device."""
    inputs = pad(encodings, padding)
    return {name: torch.from_numpy(array).to(device) for name, array in inputs.items()}


def open_reference(
    run: Path,
    manifest: Manifest,
    *,
    device: torch.device = CPU,
    spare: torch.device | None = None,
    autocast: torch.dtype | None = None,
    kept: str | None = None,
) -> CheckpointEngine:
    """Load the checkpoint of a run, or of a step by its name, after checking its digests.

    The checkpoint of a step gets the calibration of the run, which its weights do not contain. It
    runs in float32 unless an autocast type is given, and on `spare` if memory runs out.

    Raises:
        RunFolderError: the step has no checkpoint, a file of the checkpoint is missing or has
            changed, or its labels differ from the manifest.
    """
    files = manifest.model.checkpoint if kept is None else manifest.model.kept.get(kept)
    if files is None:
        message = (
            f"{run} has no checkpoint {kept!r}; it keeps {', '.join(manifest.model.kept) or 'none'}"
        )
        raise RunFolderError(
            message, "train with train.keep_every=N to keep those of every N steps"
        )
    verify_files(run, files)
    model = open_saved(run / FOLDER if kept is None else run / STEPS / kept)
    if model.labels != manifest.task.labels:
        message = f"{run}: checkpoint labels {model.labels} differ from the labels of the manifest"
        raise RunFolderError(message, "train again: the order of the labels is ambiguous")
    if kept is not None and manifest.model.calibration is not None:
        model.calibrate(manifest.model.calibration)
    padding = Padding.of(manifest.input)
    return CheckpointEngine(
        model.to(device),
        padding=padding,
        autocast=autocast,
        spare=spare,
        row_offsets=manifest.task.row_offsets,
    )
