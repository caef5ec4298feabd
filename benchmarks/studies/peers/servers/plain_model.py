"""An ONNX graph as many write its server by hand: tokenizers, padding to the longest, onnxruntime.

It knows nothing of pipework, and runs on NumPy 1 and 2.

Shapes: N texts, T tokens of the longest, C classes.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer


class PlainModel:
    """Texts to labels: N texts are one batch, padded to the longest. Safe from several threads."""

    def __init__(self, folder: Path, graph: str, threads: int) -> None:
        """Open a graph of the model in a folder, with so many threads for each call."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        limits = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        self.labels = [config["id2label"][str(row)] for row in range(len(config["id2label"]))]
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(limits["model_max_length"])
        padding = limits["pad_token"]
        self._tokenizer.enable_padding(
            pad_token=padding, pad_id=self._tokenizer.token_to_id(padding)
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        path = folder / "onnx" / graph
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._names = [given.name for given in self._session.get_inputs()]

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 [N, C]."""
        found = self._tokenizer.encode_batch(list(texts))
        arrays_NT = {
            "input_ids": np.array([one.ids for one in found], np.int64),
            "attention_mask": np.array([one.attention_mask for one in found], np.int64),
            "token_type_ids": np.array([one.type_ids for one in found], np.int64),
        }
        feed = {name: arrays_NT[name] for name in self._names}
        (logits_NC,) = self._session.run(["logits"], feed)
        powers_NC = np.exp(logits_NC - logits_NC.max(axis=-1, keepdims=True))
        return np.asarray(powers_NC / powers_NC.sum(axis=-1, keepdims=True), np.float32)
