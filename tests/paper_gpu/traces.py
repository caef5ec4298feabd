"""What the CUDA provider does with a graph, recorded on a paper GPU; see `PaperGpu.call`."""

import os
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.cuda_libraries import load_cuda_libraries
from pipework.serve.engines.onnxruntime import (
    CUDA,
    PROVIDER_OPTIONS,
    OnnxRuntimeEngine,
    session_options,
)
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding

ASSIGNMENTS = "session.record_ep_graph_assignment_info"


def placed(graph):
    """Return the operators of each provider after its optimisations, with their counts."""
    assert load_cuda_libraries() == ()
    options = session_options(1)
    options.add_session_config_entry(ASSIGNMENTS, "1")
    session = ort.InferenceSession(
        graph, options, providers=[CUDA], provider_options=[PROVIDER_OPTIONS[CUDA]]
    )
    providers = {}
    for part in session.get_provider_graph_assignment_info():
        counts = providers.setdefault(part.ep_name, Counter())
        counts.update(node.op_type for node in part.get_nodes())
    return providers


def examined(graph, layout, lengths):
    """Return the results of `placed` and `call_events`."""
    return placed(graph), call_events(graph, layout, lengths)


def refused(graph, option):
    """Return the error of a session with an option of its provider."""
    assert load_cuda_libraries() == ()
    options = [PROVIDER_OPTIONS[CUDA] | {option: "0"}]
    try:
        ort.InferenceSession(graph, providers=[CUDA], provider_options=options, enable_fallback=0)
    except RuntimeError as error:
        return str(error)
    return ""


def call_events(graph, layout, lengths):
    """Return the events of the second of two calls with texts of these lengths."""
    inputs = {one.name for one in onnx.load(graph).graph.input}
    padding = Padding(pad_id=0, type_ids="token_type_ids" in inputs)
    collate = Collate(layout=Layout(layout), padding=padding, spans=False, whole=True)
    texts = [text_of(length) for length in lengths]
    with OnnxRuntimeEngine(Path(graph), collate) as engine:
        engine.infer(texts)
        return recorded(lambda: engine.infer(texts))


def captured(graph, calls, longest):
    """Return the events of each of some calls by an engine that captures CUDA graphs."""
    inputs = {one.name for one in onnx.load(graph).graph.input}
    padding = Padding(pad_id=0, type_ids="token_type_ids" in inputs)
    collate = Collate(
        layout=Layout.VARLEN, padding=padding, spans=False, whole=True, longest=longest
    )
    with OnnxRuntimeEngine(Path(graph), collate, graphs=True) as engine:
        found = []
        for lengths in calls:
            call = partial(engine.infer, [text_of(length) for length in lengths])
            found.append(recorded(call))
            assert call().values.shape == (len(lengths), 8)
        return found


def text_of(length):
    """Return an input of a number of tokens."""
    return Encoding(ids=np.ones(length, np.int32), type_ids=np.zeros(length, np.int8))


def recorded(action):
    """Return the events of an action: kind, name, bytes."""
    log = Path(os.environ["PAPER_GPU_LOG"])
    before = log.stat().st_size if log.exists() else 0
    action()
    with log.open(encoding="utf-8") as file:
        file.seek(before)
        return [line.rstrip("\n").split("\t") for line in file]
