"""Packed rows: texts side by side answer as each does alone."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pipework.benchmarks.studies.families import Family, Rows, open_tiny, publish
from pipework.errors import ConfigError
from pipework.export.convert.checkpoint2onnx import PackedClassifier, trace_packed
from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.run_folder.engine_record import Layout, Precision
from pipework.serve.engines.collate import ROW_TOKENS, Collate
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.serve.engines.openvino import OpenVinoEngine
from pipework.text.encoding import Encoding
from pipework.text.packing import even_rows
from pipework.text.padding import Padding
from pipework.train.config.model import Head
from pipework.train.model.checkpoint_engine import CheckpointEngine
from pipework.train.model.classifier import open_checkpoint, padding_of
from pipework.train.model.packable import PACKABLE, check_packable
from pipework.train.model.packed_encoder import first_position

TINY = [family for family in Family if family in PACKABLE]
# Each family once and each head twice; `pipework.benchmarks.studies.matrix` has them all.
CROSS = list(zip(TINY, list(Head) * 2, strict=True))
SAME = 1e-5


@dataclass(frozen=True)
class Made:
    """A packed graph and what the checkpoint answers, each text alone."""

    path: Path
    padding: Padding
    spans: bool
    encodings: list[Encoding]
    expected_NC: np.ndarray

    def open(self, kind="onnx", **given):
        collate = Collate(layout=Layout.PACKED, padding=self.padding, spans=self.spans, **given)
        if kind == "onnx":
            return OnnxRuntimeEngine(self.path, collate)
        path = self.path.with_suffix(".xml")
        onnx_to_openvino(self.path, path, Precision.FP32)
        return OpenVinoEngine(path, collate, precision=Precision.FP32)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Graphs by family and head, made when asked for."""
    kept = {}

    def make(family, head):
        if (family, head) not in kept:
            kept[family, head] = trace(family, head, tmp_path_factory.mktemp(f"{family}-{head}"))
        return kept[family, head]

    return make


def trace(family, head, folder, **config):
    rows = Rows.of(family)
    publish(family, rows.tokenizer, folder / "published")
    published = folder / "published" / "config.json"
    published.write_text(json.dumps(json.loads(published.read_text()) | config))
    open_tiny(rows, folder / "published", head).save(folder)
    model, spans = open_checkpoint(folder), head is Head.ENTITY
    padding = padding_of(model)
    encodings = rows.encodings(type_ids=padding.type_ids, marked=spans)
    with CheckpointEngine(model, padding=padding, one_by_one=True) as engine:
        expected_NC = engine.infer(encodings)
    packed = PackedClassifier(open_checkpoint(folder, attention="eager"))
    trace_packed(packed, folder / "model.onnx", type_ids=padding.type_ids, spans=spans)
    return Made(folder / "model.onnx", padding, spans, encodings, expected_NC)


@pytest.mark.parametrize(("family", "head"), CROSS)
def test_texts_in_packed_rows_answer_as_each_does_alone(made, family, head):
    one = made(family, head)
    for whole in (True, False):
        with one.open(whole=whole, row_tokens=50) as engine:
            np.testing.assert_allclose(engine.infer(one.encodings), one.expected_NC, atol=SAME)


@pytest.mark.parametrize("head", [Head.LSTM, Head.ENTITY])
def test_openvino_reads_the_same_graph_alike(made, head):
    one = made(*next(pair for pair in CROSS if pair[1] is head))
    for whole in (True, False):
        with one.open("openvino", whole=whole) as engine:
            np.testing.assert_allclose(engine.infer(one.encodings), one.expected_NC, atol=SAME)


@pytest.mark.parametrize(("family", "head"), CROSS[:5])
def test_changing_a_text_leaves_the_others_in_its_row_alone(made, family, head):
    one = made(family, head)
    *short, longest = sorted(one.encodings, key=len)
    texts = [*short[:7], longest]
    lengths = [len(text) for text in texts]
    (row, *_) = (row for row in even_rows(lengths, ROW_TOKENS) if len(row) > 1)
    at = row[0]
    other = Encoding(
        ids=texts[at].ids[::-1].copy(),
        type_ids=texts[at].type_ids,
        entity_spans=texts[at].entity_spans,
    )
    with one.open(whole=True) as engine:
        before_NC = engine.infer(texts)
        after_NC = engine.infer([*texts[:at], other, *texts[at + 1 :]])
    assert np.abs(before_NC[at] - after_NC[at]).max() > SAME
    others = [place for place in range(len(texts)) if place != at]
    np.testing.assert_array_equal(before_NC[others], after_NC[others])


def test_a_text_longer_than_a_row_is_answered_too(made):
    one = made(*CROSS[0])
    with one.open(row_tokens=4) as engine:
        np.testing.assert_allclose(engine.infer(one.encodings), one.expected_NC, atol=SAME)


def test_the_texts_reach_beyond_a_window_that_layers_look_through(made):
    one = made(*next(pair for pair in CROSS if pair[0] is Family.MODERNBERT))
    window = PackedClassifier(open_checkpoint(one.path.parent)).read.window
    assert max(len(encoding) for encoding in one.encodings) > window + 1 > 7  # 7: of the example


def test_a_head_that_takes_the_mean_of_a_text_takes_it_of_that_text_alone(tmp_path):
    one = trace(Family.MODERNBERT, Head.LINEAR, tmp_path, classifier_pooling="mean")
    with one.open(whole=True, row_tokens=50) as engine:
        np.testing.assert_allclose(engine.infer(one.encodings), one.expected_NC, atol=SAME)


def test_an_entity_is_read_where_it_stands_in_its_own_text(made):
    one = made(*next(pair for pair in CROSS if pair[1] is Head.ENTITY))
    moved = [
        Encoding(ids=text.ids, type_ids=text.type_ids, entity_spans=text.entity_spans[::-1])
        for text in one.encodings
    ]
    with one.open() as engine:
        apart_NC = engine.infer(moved) - engine.infer(one.encodings)
    assert np.abs(apart_NC).max(1).min() > SAME


@pytest.mark.parametrize(
    ("family", "first"),
    [
        *((Family.BERT, 0), (Family.DISTILBERT, 0), (Family.MODERNBERT, 0)),
        *((Family.ROBERTA, 1), (Family.CAMEMBERT, 1), (Family.XLM_ROBERTA, 1), (Family.MPNET, 2)),
    ],
)
def test_positions_are_counted_from_where_the_family_counts(made, family, first):
    head = dict(CROSS)[family]
    folder = made(family, head).path.parent
    assert first_position(open_checkpoint(folder).encoder) == first


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("deberta-v2", "it multiplies its embeddings by the mask"),
        ("xlnet", "it counts positions over the whole row"),
        ("luke", "nobody has tried it"),
    ],
)
def test_a_family_that_cannot_be_packed_is_refused_with_the_reason(family, why):
    with pytest.raises(ConfigError, match=f"^{family} cannot read packed rows: {why}$") as caught:
        check_packable(family)
    assert caught.value.hint.startswith("take --layout padded; packed are albert, bert, ")
