"""The states of a frozen encoder, computed once and kept on disk, so that a head learns in seconds.

The cache lies beside the token caches and is named by a digest of the tokens, of the encoder's
weights and of what computed with them. Its size is tokens x H x 4 bytes.

Shapes: N rows, B rows of a batch, T tokens, H width of the encoder.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.errors import DataError
from pipework.progress import Progress
from pipework.run_folder.files import file_digest, sole_writer, write_atomically
from pipework.train.data.batches import BATCH_TOKENS, token_batches
from pipework.train.data.disk_cache import cache_folder, made, reserve
from pipework.train.data.token_cache import COMPLETE, TokenSet
from pipework.train.model.checkpoint_engine import model_inputs
from pipework.train.model.classifier import Classifier, padding_of

STATES = "states"
GIB = 1 << 30
FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureSet:
    """The last hidden states of a split: those of row i are flat[offsets[i]:offsets[i + 1]].

    Attributes:
        flat: float32 [tokens, H], memory-mapped.
        offsets: int64 [N + 1], those of the tokens.
        left: whether the family pads on the left.
    """

    flat: NDArray[np.float32]
    offsets: NDArray[np.int64]
    left: bool

    def __len__(self) -> int:
        """Return N."""
        return len(self.offsets) - 1

    def states(self, rows: Sequence[int] | NDArray[np.int64]) -> list[NDArray[np.float32]]:
        """Return the states of rows, each float32 [T, H]."""
        spans = ((int(self.offsets[row]), int(self.offsets[row + 1])) for row in rows)
        return [np.asarray(self.flat[start:end], np.float32) for start, end in spans]

    def batch(
        self, rows: Sequence[int] | NDArray[np.int64], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return states [B, T, H] and attention mask int64 [B, T], as `from_states` takes them."""
        found = self.states(rows)
        longest = max(map(len, found))
        states_BTH = np.zeros((len(found), longest, self.flat.shape[1]), np.float32)
        mask_BT = np.zeros((len(found), longest), np.int64)
        for row, states_TH in enumerate(found):
            start = longest - len(states_TH) if self.left else 0
            place = slice(start, start + len(states_TH))
            states_BTH[row, place], mask_BT[row, place] = states_TH, 1
        return torch.from_numpy(states_BTH).to(device), torch.from_numpy(mask_BT).to(device)


def feature_set(model: Classifier, tokens: TokenSet, progress: Progress) -> FeatureSet:
    """Open the states of a split's rows, computing them first where they are not kept yet.

    Several processes may ask at once: one computes, the others wait. A computation that was
    interrupted begins anew.

    Raises:
        DataError: the cache does not fit on the disk, or cannot be written.
    """
    shape = (int(tokens.offsets[-1]), int(model.config.hidden_size))
    folder = made(cache_folder() / _name(model, tokens))
    try:
        with sole_writer(folder, wait=True):
            if not (folder / COMPLETE).is_file():
                reserve(folder / STATES, shape[0] * shape[1] * FLOAT_BYTES)
                flat = np.memmap(folder / STATES, np.float32, mode="r+", shape=shape)
                _compute(flat, model, tokens, progress)
                write_atomically(folder / COMPLETE, b"")
    except OSError as error:
        size = shape[0] * shape[1] * FLOAT_BYTES / GIB
        message = f"{size:.1f} GiB of features in {folder} cannot be written: {error.strerror}"
        raise DataError(message, "set PIPEWORK_CACHE to a folder with room") from error
    return FeatureSet(
        flat=np.memmap(folder / STATES, np.float32, mode="r", shape=shape),
        offsets=tokens.offsets,
        left=padding_of(model).left,
    )


def _compute(
    flat: NDArray[np.float32], model: Classifier, tokens: TokenSet, progress: Progress
) -> None:
    padding, was_training = padding_of(model), model.training
    model.eval()
    progress.begin("encode once", len(tokens), "rows")
    try:
        order_N = np.argsort(tokens.lengths, kind="stable")
        for rows in token_batches(tokens.lengths, order_N, BATCH_TOKENS):
            inputs = model_inputs(tokens.encodings(rows), padding, model.device)
            inputs.pop("entity_spans", None)
            with torch.inference_mode():
                states_BTH = model.states(**inputs).float().cpu().numpy()
            mask_BT = inputs["attention_mask"].cpu().numpy().astype(bool)
            for row, states_TH, mask_T in zip(rows, states_BTH, mask_BT, strict=True):
                flat[tokens.offsets[row] : tokens.offsets[row + 1]] = states_TH[mask_T]
            progress.advance(len(rows))
    finally:
        model.train(was_training)
        progress.end()


def _name(model: Classifier, tokens: TokenSet) -> str:
    digest = hashlib.sha256()
    for array in (tokens.ids, tokens.type_ids, tokens.offsets):
        digest.update(np.ascontiguousarray(array).data)
    for name, one in model.encoder.state_dict().items():
        if not name.startswith("pooler."):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(one.cpu().numpy()).data)
    config = model.config.to_json_string(use_diff=False)
    parts = (version("torch"), version("transformers"), file_digest(Path(__file__)))
    digest.update(repr((*parts, type(model.encoder).__name__, config)).encode())
    return digest.hexdigest()[:32]
