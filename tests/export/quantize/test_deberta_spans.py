"""Faults in int8 engines of a DeBERTa that finds spans: engines that return noise are refused.

The projections of relative positions have the weights of the queries and keys, but other inputs.
The type of a name here depends on the word before it, so it cannot be found without positions.
"""

import random
import re
import shutil

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, publish, tokenizer_for
from pipework.errors import CheckFailedError
from pipework.export import checked_engine
from pipework.export.build import build
from pipework.export.config import ExportSettings, ImportSettings
from pipework.export.importing.run import import_source
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.settings import load_settings
from pipework.train.config.run_config import load_config
from pipework.train.run import train
from tests.export.conftest import ENGINES
from tests.repetitions import repeated
from tests.serve import test_spans

DYNAMIC, STATIC = (ENGINES[f"onnx-int8-{scaling}"] for scaling in ("dynamic", "static"))
QUICK = ExportSettings(speed_s=0)
NAMES = ("Paris", "Lena", "Georgia", "Sydney", "Austin", "Jordan")
BEFORE = {"in": "LOC", "near": "LOC", "met": "PER", "and": "PER"}


def rows(count, seed):
    generator = random.Random(seed)
    for _ in range(count):
        text, spans = "", []
        for _ in range(generator.randint(1, 7)):
            word, name = generator.choice([*BEFORE]), generator.choice(NAMES)
            start = len(text) + len(word) + 1
            spans.append({"start": start, "end": start + len(name), "label": BEFORE[word]})
            text += f"{word} {name} "
        yield {"text": text, "spans": spans}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The import of a trained token classifier of DeBERTa's version 3."""
    folder = tmp_path_factory.mktemp("deberta")
    examples = [*rows(400, seed=0)]
    test_spans.write(folder / "train.jsonl", examples)
    test_spans.write(folder / "dev.jsonl", rows(100, seed=1))
    tokenizer = tokenizer_for(EncoderFamily.DEBERTA, [example["text"] for example in examples])
    publish(EncoderFamily.DEBERTA, tokenizer, folder / "encoder")
    config = test_spans.CONFIG.replace('preset = "tiny"', 'name = "encoder"')
    (folder / "config.toml").write_text(config)
    train(load_config(str(folder / "config.toml"), []), folder / "run", NullProgress())
    words = ("task.words=letters", "data.columns.text=text", "data.columns.label=spans")
    settings = load_settings(ImportSettings, None, words)
    files = [folder / "dev.jsonl", folder / "train.jsonl"]
    source = str(folder / "run/checkpoint")
    import_source(source, folder / "imported", files, settings, NullProgress())
    return folder / "imported"


def relative(graph, kind):
    """Return the nodes of an operator that project the embeddings of relative positions."""
    found = [
        node
        for node in graph.node
        if node.op_type == kind and re.search(r"(key|query)_proj_1\.MatMul", node.output[0])
    ]
    assert found
    return found


def changed(graph, names, change):
    """Change constants of a graph."""
    for constant in graph.initializer:
        if constant.name in names:
            values = np.ascontiguousarray(change(numpy_helper.to_array(constant)))
            constant.CopyFrom(numpy_helper.from_array(values, constant.name))


def weights_transposed(graph):
    """Read the weights of keys and queries row by row that are stored column by column."""
    weights = {node.input[1] for node in relative(graph, "MatMulInteger")}
    changed(graph, weights, np.transpose)


def zero_points_lost(graph):
    """Multiply the unsigned inputs as if their zero were 0, and not 128."""
    for node in relative(graph, "MatMulInteger"):
        node.input[2] = ""


def inputs_saturated(graph):
    """Round the embeddings of relative positions with a scale that is too small for them."""
    inputs = {node.input[0] for node in relative(graph, "MatMul")}
    scales = {node.input[1] for node in graph.node if node.output[0] in inputs}
    changed(graph, scales, lambda scale: scale / 100)


# The fault, the engine, and the first reason: the comparison of the graphs, or limits of outputs.
FAULTS = {
    "weights transposed": (weights_transposed, DYNAMIC, "which differs from the checkpoint by"),
    "inputs saturated": (inputs_saturated, STATIC, "score_drop"),
    "zero points lost": (zero_points_lost, DYNAMIC, "differs from the checked float32 graph"),
}


def with_fault(fault):
    """Return an engine builder that changes the int8 graph."""

    def built(variant, run_rows, folder, *others):
        result = build(variant, run_rows, folder, *others)
        model = onnx.load(folder / "model.onnx")
        fault(model.graph)
        onnx.save(model, folder / "model.onnx")
        return result

    return built


def exported(run, variants, builder=build):
    export(run, NullProgress(), variants, settings=QUICK, builder=builder)


def test_the_correct_int8_engines_pass(imported, tmp_path):
    run = shutil.copytree(imported, tmp_path / "run")
    exported(run, [DYNAMIC, STATIC])
    for engine in read_manifest(run).engines:
        scores = engine.parity.scores
        assert (engine.proven, scores.engine) == (True, scores.reference)
        assert scores.reference > 0.95


@pytest.mark.parametrize("name", repeated(FAULTS, 2))
def test_an_int8_engine_that_returns_noise_is_refused(imported, tmp_path, monkeypatch, name):
    fault, variant, reason = FAULTS[name]
    run = shutil.copytree(imported, tmp_path / "run")
    with pytest.raises(CheckFailedError, match=rf"failed the parity check.*{reason}"):
        exported(run, [variant], with_fault(fault))
    if fault is not inputs_saturated:  # the outputs alone show the other faults, too
        monkeypatch.setattr(checked_engine, "_check_conversion", lambda *_: None)
        with pytest.raises(CheckFailedError, match=r"flips.* predictions changed") as refused:
            exported(run, [variant], with_fault(fault))
        changed, inputs = re.search(r"(\d+) of (\d+) predictions", str(refused.value)).groups()
        assert int(changed) > int(inputs) / 10
    assert read_manifest(run).engines == ()
