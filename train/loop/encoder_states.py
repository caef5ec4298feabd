"""Cache of the hidden states of a frozen encoder, so that a head trains in seconds.

The cache is next to the token caches. Its name is a digest of the tokens, the weights of the
encoder and the library versions. Its size is tokens x H x 4 bytes.

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

from pipework.progress import Progress
from pipework.run_folder.files import file_digest, write_atomically
from pipework.train.data.batches import BATCH_TOKENS, token_batches
from pipework.train.data.disk_cache import allocate_file, cache_entry
from pipework.train.data.token_cache import COMPLETE, TokenSet
from pipework.train.loop.to_device import to_device
from pipework.train.model.checkpoint_engine import model_inputs
from pipework.train.model.classifier import Classifier, padding_of

STATES = "states"
FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class EncoderStates:
    """The last hidden states of a split: row i is flat[offsets[i]:offsets[i + 1]].

    Attributes:
        flat: float32 [tokens, H], memory-mapped.
        offsets: int64 [N + 1], the offsets of the token cache.
        left: whether the family pads on the left.
    """

    flat: NDArray[np.float32]
    offsets: NDArray[np.int64]
    left: bool

    def batch(
        self, rows: Sequence[int] | NDArray[np.int64], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return states [B, T, H] and attention mask int64 [B, T], the input of `from_states`."""
        states = [self.flat[self.offsets[row] : self.offsets[row + 1]] for row in rows]
        longest = max(map(len, states))
        states_BTH = np.zeros((len(states), longest, self.flat.shape[1]), np.float32)
        mask_BT = np.zeros((len(states), longest), np.int64)
        for row, states_TH in enumerate(states):
            start = longest - len(states_TH) if self.left else 0
            columns = slice(start, start + len(states_TH))
            states_BTH[row, columns], mask_BT[row, columns] = states_TH, 1
        return to_device(states_BTH, device), to_device(mask_BT, device)


def encoder_states(model: Classifier, tokens: TokenSet, progress: Progress) -> EncoderStates:
    """Open the cached states of a split; compute them first if they are not cached.

    With several processes one computes and the others wait. An interrupted computation starts
    again from the beginning.

    Raises:
        DataError: the cache does not fit on the disk, or cannot be written.
    """
    shape = (int(tokens.offsets[-1]), int(model.config.hidden_size))
    size = shape[0] * shape[1] * FLOAT_BYTES
    with cache_entry(_name(model, tokens), size) as folder:
        if not (folder / COMPLETE).is_file():
            allocate_file(folder / STATES, size)
            flat = np.memmap(folder / STATES, np.float32, mode="r+", shape=shape)
            _compute(flat, model, tokens, progress)
            write_atomically(folder / COMPLETE, b"")
        return EncoderStates(
            flat=np.memmap(folder / STATES, np.float32, mode="r", shape=shape),
            offsets=tokens.offsets,
            left=padding_of(model).left,
        )


def _compute(
    flat: NDArray[np.float32], model: Classifier, tokens: TokenSet, progress: Progress
) -> None:
    padding, was_training = padding_of(model), model.training
    model.eval()
    with progress.stage("compute encoder states", len(tokens), "rows"):
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


def _name(model: Classifier, tokens: TokenSet) -> str:
    digest = hashlib.sha256()
    for array in (tokens.ids, tokens.type_ids, tokens.offsets):
        digest.update(np.ascontiguousarray(array).data)
    for name, tensor in model.encoder.state_dict().items():
        if not name.startswith("pooler."):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    config = model.config.to_json_string(use_diff=False)
    # Another device, and TF32 on a GPU, give other states.
    device = model.device
    processor = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    arithmetic = (processor, torch.get_float32_matmul_precision())
    parts = (*arithmetic, version("torch"), version("transformers"), file_digest(Path(__file__)))
    digest.update(repr((*parts, type(model.encoder).__name__, config)).encode())
    return digest.hexdigest()[:32]
