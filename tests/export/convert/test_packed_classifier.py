"""Packed rows: texts in the same row have the same logits as alone."""

import json
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, publish
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
from pipework.train.model.packed_encoder import PACKABLE, check_packable, first_position
from tests.repetitions import repeated
from tests.tiny_models import SampleRows, open_tiny

TINY = [family for family in EncoderFamily if family in PACKABLE]
# Each family once and each head at least once; `pipework.benchmarks.studies.matrix` has them all.
CROSS = list(zip(TINY, cycle(Head), strict=False))
SAME = 1e-5


@dataclass(frozen=True)
class TracedGraph:
    """A packed graph and the checkpoint's logits, each text alone."""

    path: Path
    padding: Padding
    spans: bool
    encodings: list[Encoding]
    expected_NC: np.ndarray

    def open(self, kind="onnx", **options):
        collate = Collate(layout=Layout.PACKED, padding=self.padding, spans=self.spans, **options)
        if kind == "onnx":
            return OnnxRuntimeEngine(self.path, collate)
        path = self.path.with_suffix(".xml")
        onnx_to_openvino(self.path, path, Precision.FP32)
        return OpenVinoEngine(path, collate, precision=Precision.FP32)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Create and cache graphs by family and head."""
    cache = {}

    def make(family, head):
        if (family, head) not in cache:
            cache[family, head] = trace(family, head, tmp_path_factory.mktemp(f"{family}-{head}"))
        return cache[family, head]

    return make


def trace(family, head, folder, **config):
    rows = SampleRows.of(family)
    publish(family, rows.tokenizer, folder / "published")
    published = folder / "published" / "config.json"
    published.write_text(json.dumps(json.loads(published.read_text()) | config))
    open_tiny(rows, folder / "published", head).save(folder)
    model, spans = open_checkpoint(folder), head is Head.ENTITY
    padding = padding_of(model)
    encodings = rows.encodings(type_ids=padding.type_ids, marked=spans)
    with CheckpointEngine(model, padding=padding, one_by_one=True) as engine:
        expected_NC = engine.infer(encodings).values
    packed = PackedClassifier(open_checkpoint(folder, attention="eager"))
    trace_packed(packed, folder / "model.onnx", type_ids=padding.type_ids, spans=spans)
    return TracedGraph(folder / "model.onnx", padding, spans, encodings, expected_NC)


@pytest.mark.parametrize(("family", "head"), repeated(CROSS, quick=3))
def test_texts_in_packed_rows_have_the_same_logits_as_alone(traced, family, head):
    graph = traced(family, head)
    for whole in (True, False):
        with graph.open(whole=whole, row_tokens=50) as engine:
            np.testing.assert_allclose(
                engine.infer(graph.encodings).values, graph.expected_NC, atol=SAME
            )


@pytest.mark.parametrize("head", [Head.LSTM, Head.ENTITY])
def test_openvino_gives_the_same_logits(traced, head):
    graph = traced(*next(pair for pair in CROSS if pair[1] is head))
    for whole in (True, False):
        with graph.open("openvino", whole=whole) as engine:
            np.testing.assert_allclose(
                engine.infer(graph.encodings).values, graph.expected_NC, atol=SAME
            )


@pytest.mark.parametrize(("family", "head"), repeated(CROSS[: len(Head)], quick=3))
def test_changing_a_text_does_not_affect_others_in_its_row(traced, family, head):
    graph = traced(family, head)
    *short, longest = sorted(graph.encodings, key=len)
    texts = [*short[:7], longest]
    lengths = [len(text) for text in texts]
    (row, *_) = (row for row in even_rows(lengths, ROW_TOKENS) if len(row) > 1)
    at = row[0]
    other = Encoding(
        ids=texts[at].ids[::-1].copy(),
        type_ids=texts[at].type_ids,
        entity_spans=texts[at].entity_spans,
    )
    with graph.open(whole=True) as engine:
        before_NC = engine.infer(texts).values
        after_NC = engine.infer([*texts[:at], other, *texts[at + 1 :]]).values
    assert np.abs(before_NC[at] - after_NC[at]).max() > SAME
    others = [place for place in range(len(texts)) if place != at]
    np.testing.assert_array_equal(before_NC[others], after_NC[others])


def test_a_text_longer_than_a_row_is_supported(traced):
    graph = traced(*CROSS[0])
    with graph.open(row_tokens=4) as engine:
        np.testing.assert_allclose(
            engine.infer(graph.encodings).values, graph.expected_NC, atol=SAME
        )


def test_the_texts_are_longer_than_the_local_attention_window(traced):
    graph = traced(*next(pair for pair in CROSS if pair[0] is EncoderFamily.MODERNBERT))
    window = PackedClassifier(open_checkpoint(graph.path.parent)).read.window
    assert max(len(encoding) for encoding in graph.encodings) > window + 1 > 7  # 7: of the example


def test_mean_pooling_covers_a_single_text(tmp_path):
    graph = trace(EncoderFamily.MODERNBERT, Head.LINEAR, tmp_path, classifier_pooling="mean")
    with graph.open(whole=True, row_tokens=50) as engine:
        np.testing.assert_allclose(
            engine.infer(graph.encodings).values, graph.expected_NC, atol=SAME
        )


def test_entity_positions_are_relative_to_their_text(traced):
    graph = traced(*next(pair for pair in CROSS if pair[1] is Head.ENTITY))
    moved = [
        Encoding(ids=text.ids, type_ids=text.type_ids, entity_spans=text.entity_spans[::-1])
        for text in graph.encodings
    ]
    with graph.open() as engine:
        apart_NC = engine.infer(moved).values - engine.infer(graph.encodings).values
    assert np.abs(apart_NC).max(1).min() > SAME


@pytest.mark.parametrize(
    ("family", "first"),
    [
        *((EncoderFamily.BERT, 0), (EncoderFamily.DISTILBERT, 0), (EncoderFamily.MODERNBERT, 0)),
        *(
            (EncoderFamily.ROBERTA, 1),
            (EncoderFamily.CAMEMBERT, 1),
            (EncoderFamily.XLM_ROBERTA, 1),
            (EncoderFamily.MPNET, 2),
        ),
    ],
)
def test_positions_start_at_the_first_position_of_the_family(traced, family, first):
    head = dict(CROSS)[family]
    folder = traced(family, head).path.parent
    assert first_position(open_checkpoint(folder).encoder) == first


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("deberta-v2", "it multiplies its embeddings by the mask"),
        ("xlnet", "its positions are relative to the whole row"),
        ("luke", "not tested"),
    ],
)
def test_a_family_without_packing_support_is_rejected_with_the_reason(family, why):
    with pytest.raises(
        ConfigError, match=f"^{family} does not support packed rows: {why}$"
    ) as caught:
        check_packable(family)
    assert caught.value.hint.startswith("use --layout padded; supported: albert, bert, ")
