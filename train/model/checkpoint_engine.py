"""Runs a checkpoint as an engine, so that it is scored and compared like exported engines.

Shapes: N inputs, C classes, B rows of a batch, T tokens.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.closeable import Closeable
from pipework.errors import RunFolderError
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import Manifest
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding, pad
from pipework.train.data.batches import BATCH_TOKENS, token_batches
from pipework.train.model.checkpoint import FOLDER, STEPS
from pipework.train.model.classifier import Classifier, open_checkpoint


class CheckpointEngine(Closeable):
    """Runs a model through the interface of `pipework.scoring.evaluation.Engine`.

    With `one_by_one` each input is computed alone and without padding: slow, but a reference that
    does not depend on batching.
    """

    def __init__(
        self,
        model: Classifier,
        *,
        padding: Padding,
        autocast: torch.dtype | None = None,
        one_by_one: bool = False,
    ) -> None:
        """Use a model on its current device; each call runs in evaluation mode."""
        self._model = model
        self._padding = padding
        self._autocast = autocast
        self._batch_tokens = 0 if one_by_one else BATCH_TOKENS

    def infer(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """Return logits float32 [N, C], computed in batches of similar length."""
        was_training = self._model.training
        self._model.eval()
        logits_NC = np.empty((len(encodings), self._model.classes), np.float32)
        lengths_N = np.array([len(encoding) for encoding in encodings], np.int64)
        order = np.argsort(lengths_N, kind="stable")
        with torch.inference_mode():
            for rows in token_batches(lengths_N, order, self._batch_tokens):
                logits_NC[rows] = self._forward([encodings[row] for row in rows])
        self._model.train(was_training)
        return logits_NC

    def _forward(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        device = self._model.device
        inputs = model_inputs(encodings, self._padding, device)
        with torch.autocast(device.type, self._autocast, enabled=self._autocast is not None):
            logits = self._model(**inputs)
        return np.asarray(logits.float().cpu().numpy(), np.float32)

    def one_by_one(self) -> "CheckpointEngine":
        """Return an engine with the same model that computes each input alone."""
        return CheckpointEngine(
            self._model, padding=self._padding, autocast=self._autocast, one_by_one=True
        )

    def with_model(self, change: Callable[[Classifier], Classifier]) -> "CheckpointEngine":
        """Return an engine with the changed model."""
        model = change(self._model)
        return CheckpointEngine(model, padding=self._padding, autocast=self._autocast)

    def close(self) -> None:
        """Do nothing: the model belongs to the caller."""


def model_inputs(
    encodings: Sequence[Encoding], padding: Padding, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return the model inputs of a batch, int64, on the device."""
    inputs = pad(encodings, padding).inputs()
    return {name: torch.from_numpy(array).to(device) for name, array in inputs.items()}


def open_reference(
    run: Path,
    manifest: Manifest,
    *,
    device: torch.device | None = None,
    autocast: torch.dtype | None = None,
    kept: str | None = None,
) -> CheckpointEngine:
    """Load the checkpoint of a run, or that of a step by its name, after checking its digests.

    It runs on the CPU in float32 unless a device or an autocast type is given.

    Raises:
        RunFolderError: the step has no checkpoint, a file of the checkpoint is missing or has
            changed, or its labels differ from those of the manifest.
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
    model = open_checkpoint(run / FOLDER if kept is None else run / STEPS / kept)
    if model.labels != manifest.task.labels:
        message = f"{run}: checkpoint labels {model.labels} differ from the labels of the manifest"
        raise RunFolderError(message, "train again: the order of the labels is ambiguous")
    padding = Padding.of(manifest.input)
    return CheckpointEngine(model.to(device or "cpu"), padding=padding, autocast=autocast)
