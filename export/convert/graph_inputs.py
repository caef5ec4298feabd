"""Real rows as the arrays of a graph, for whoever runs one while it is being made."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from pipework.export.rows.run_rows import Subject
from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.collate import Collate
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding


def graph_feeds(
    graph: Path, subject: Subject, encodings: Sequence[Encoding], batch: int = 8
) -> list[dict[str, NDArray[np.int64]]]:
    """Return the arrays of calls of `batch` inputs each, in their order, by the graph's names.

    Args:
        graph: an ONNX file that `checkpoint_to_onnx` wrote, padded or packed.
        subject: for what its inputs look like.
        encodings: the inputs.
        batch: inputs of a call.
    """
    inputs = {one.name: one for one in onnx.load(graph, load_external_data=False).graph.input}
    packed = "text_index" in inputs
    collate = Collate(
        layout=Layout.PACKED if packed else Layout.PADDED,
        padding=Padding.of(subject.manifest.input),
        spans=subject.manifest.model.takes_spans,
        first_only=packed and inputs["text_index"].type.tensor_type.shape.dim[1].dim_value == 1,
        whole=True,
    )
    return [
        feed.arrays
        for start in range(0, len(encodings), batch)
        for feed in collate.feeds(encodings[start : start + batch])
    ]
