"""A simple model server's inference code: tokenizers, padding to the longest text, onnxruntime.

It does not import pipework, and runs with NumPy 1 and 2.

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
    """Classifies texts; N texts are one batch, padded to the longest. Thread-safe."""

    def __init__(self, folder: Path, graph: str, threads: int) -> None:
        """Open a graph in a model folder, with a number of threads per call."""
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
        self._names = [tensor.name for tensor in self._session.get_inputs()]

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 [N, C]."""
        encodings = self._tokenizer.encode_batch(list(texts))
        arrays_NT = {
            "input_ids": np.array([encoding.ids for encoding in encodings], np.int64),
            "attention_mask": np.array(
                [encoding.attention_mask for encoding in encodings], np.int64
            ),
            "token_type_ids": np.array([encoding.type_ids for encoding in encodings], np.int64),
        }
        feed = {name: arrays_NT[name] for name in self._names}
        (logits_NC,) = self._session.run(["logits"], feed)
        powers_NC = np.exp(logits_NC - logits_NC.max(axis=-1, keepdims=True))
        return np.asarray(powers_NC / powers_NC.sum(axis=-1, keepdims=True), np.float32)
