"""Answers with ONNX Runtime on the CPU.

The graph takes input_ids, attention_mask and, for some families, token_type_ids, int64 [B, T]; for
the entity head also entity_spans, int64 [B, 4]. It gives logits, float32 [B, C].

Shapes: N inputs, B rows of a micro-batch, T tokens of its longest row, C classes.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from pipework.closing import Closing
from pipework.encoding import Encoding
from pipework.errors import RunFolderError
from pipework.padding import Padding, pad
from serve.collate import plan

# The cost of a token no longer falls beyond 256 tokens a call, and rises again where the
# activations outgrow the cache (a tiny model: 10 us up to 512 tokens, 17 us at 1024).
MAX_BATCH_TOKENS = 512
CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


class OnnxRuntimeEngine(Closing):
    """An Engine over an ONNX file. Not for use from several threads at once."""

    def __init__(
        self,
        path: Path,
        *,
        padding: Padding,
        spans: bool = False,
        threads: int | None = None,
        max_batch_tokens: int | None = MAX_BATCH_TOKENS,
    ) -> None:
        """Load the graph.

        Args:
            path: the .onnx file.
            padding: how rows are filled up, and whether there are type ids.
            spans: whether the graph takes the places of two entities.
            threads: threads of the runtime; None for as many as the container may use.
            max_batch_tokens: the most tokens of one call, padding included; None to run each
                batch in one call whatever it costs, as a proof over given shapes wants it.

        Raises:
            RunFolderError: the file is not a graph, or its inputs and outputs are not the above.
        """
        self._padding = padding
        self._max_batch_tokens = max_batch_tokens
        try:
            self._session = ort.InferenceSession(
                str(path), _options(threads or cpu_limit()), providers=["CPUExecutionProvider"]
            )
            # A text with entities has spans, which a head that only reads the marks does not take.
            self._names = ["input_ids", "attention_mask"]
            self._names += ["token_type_ids"] * padding.type_ids + ["entity_spans"] * spans
            _check_names(self._session, set(self._names))
            self._classes = self._run([_probe(padding.pad_id)]).shape[1]
        except Exception as error:  # the runtime's errors share no narrower base
            message = f"{path} is not a graph to serve: {str(error).splitlines()[0]}"
            raise RunFolderError(message, "make it again: pipe export RUN --to onnx") from error

    def infer(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """Return logits [N, C]; [0, C] for no inputs."""
        logits_NC = np.empty((len(encodings), self._classes), np.float32)
        for batch in self._plan([len(encoding) for encoding in encodings]):
            logits_NC[batch] = self._run([encodings[index] for index in batch])
        return logits_NC

    def _plan(self, lengths_N: Sequence[int]) -> list[list[int]]:
        if self._max_batch_tokens is None:
            return [list(range(len(lengths_N)))] if lengths_N else []
        return plan(lengths_N, self._max_batch_tokens)

    def _run(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        inputs = pad(encodings, self._padding).inputs()
        feed = {name: inputs[name] for name in self._names}
        return np.asarray(self._session.run(["logits"], feed)[0], np.float32)

    def close(self) -> None:
        """Free the graph and its threads. Closing twice is allowed."""
        self._session = None


def _options(threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; its warnings are about graphs, for exporters
    # Both keep memory for every shape they meet, and lengths vary without end. Measured without
    # them: the same tokens per second, and memory that falls again after a large batch.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    # Spinning threads take the cores from the event loop: with other work on the machine they
    # cost a third (6 layers) to a half (2 layers) of the tokens per second.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _check_names(session: ort.InferenceSession, expected: set[str]) -> None:
    found = {node.name for node in session.get_inputs()}
    if found != expected:
        message = f"expected inputs {_names(expected)}, found {_names(found)}"
        raise ValueError(message)
    outputs = {node.name for node in session.get_outputs()}
    if outputs != {"logits"}:
        message = f"expected the output logits, found {_names(outputs)}"
        raise ValueError(message)


def _probe(pad_id: int) -> Encoding:
    # One token: shows that the graph runs, how many classes it has, and makes the first run.
    return Encoding(
        ids=np.array([pad_id], np.int32),
        type_ids=np.zeros(1, np.int8),
        entity_spans=((0, 1), (0, 1)),
    )


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names))


def cpu_limit(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return how many CPUs this process may use: its affinity, or the container's quota if less.

    The quota is read as cgroup version 2 writes it, "microseconds period" or "max period".
    """
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = cgroup_limit.read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if quota == "max" else max(1, min(cpus, int(quota) // int(period)))
