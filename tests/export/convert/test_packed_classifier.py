"""Packed rows and the varlen layout: texts in the same row have the same logits as alone."""

import json
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, publish
from pipework.errors import ConfigError
from pipework.export.convert import varlen
from pipework.export.convert.checkpoint2onnx import (
    PackedClassifier,
    VarlenClassifier,
    trace_packed,
)
from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.run_folder.engine_record import Layout, Precision
from pipework.serve.engines.collate import ROW_TOKENS, Collate
from pipework.serve.engines.cuda_calls import graph_buckets
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.serve.engines.openvino import OpenVinoEngine
from pipework.text.encoding import Encoding
from pipework.text.packing import LENGTHS, OFFSET, concatenate, even_rows, token_offsets
from pipework.text.padding import Padding
from pipework.train.config.model import Head
from pipework.train.model.checkpoint_engine import CheckpointEngine
from pipework.train.model.classifier import open_checkpoint, padding_of
from pipework.train.model.packed_encoder import (
    PACKABLE,
    VARLEN,
    check_packable,
    check_varlen,
    first_position,
)
from tests.repetitions import repeated
from tests.tiny_models import SampleRows, open_tiny

TINY = [family for family in EncoderFamily if family in PACKABLE]
# Each family once and each head at least once; `pipework.benchmarks.studies.matrix` has them all.
CROSS = list(zip(TINY, cycle(Head), strict=False))
WHOLE_TEXT = {"local_attention": 1024}  # windows of ModernBERT, which the varlen layout has not
LAYOUTS = [
    *((family, head, Layout.PACKED) for family, head in CROSS),
    *((family, head, Layout.VARLEN) for family, head in CROSS if family in VARLEN),
]
BOTH = [(*pair, layout) for pair in CROSS[: len(Head)] for layout in (Layout.VARLEN, Layout.PACKED)]
SAME = 1e-5
LONGEST = 64


@dataclass(frozen=True)
class TracedGraph:
    """A packed or varlen graph and the checkpoint's logits, each text alone."""

    path: Path
    layout: Layout
    padding: Padding
    spans: bool
    encodings: list[Encoding]
    expected_NC: np.ndarray

    def open(self, kind="onnx", **options):
        collate = Collate(layout=self.layout, padding=self.padding, spans=self.spans, **options)
        if kind == "onnx":
            return OnnxRuntimeEngine(self.path, collate)
        path = self.path.with_suffix(".xml")
        onnx_to_openvino(self.path, path, Precision.FP32)
        return OpenVinoEngine(path, collate, precision=Precision.FP32)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Create and cache graphs by family, head and layout."""

    @cache
    def make(family, head, layout=Layout.PACKED):
        folder = tmp_path_factory.mktemp(f"{family}-{head}-{layout}")
        wide = family is EncoderFamily.MODERNBERT and layout is Layout.VARLEN
        return trace(family, head, folder, layout, **(WHOLE_TEXT if wide else {}))

    return make


def trace(family, head, folder, layout=Layout.PACKED, **config):
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
    path = folder / "model.onnx"
    if layout is Layout.VARLEN:
        packed = VarlenClassifier(open_checkpoint(folder, attention=varlen.ATTENTION))
    else:
        packed = PackedClassifier(open_checkpoint(folder, attention="eager"))
    trace_packed(packed, path, type_ids=padding.type_ids, spans=spans)
    return TracedGraph(path, layout, padding, spans, encodings, expected_NC)


@pytest.mark.parametrize(("family", "head", "layout"), LAYOUTS)
def test_texts_in_the_same_row_have_the_same_logits_as_alone(traced, family, head, layout):
    graph = traced(family, head, layout)
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


@pytest.mark.parametrize(("family", "head", "layout"), repeated(BOTH, quick=4))
def test_changing_a_text_does_not_affect_others_in_its_row(traced, family, head, layout):
    graph = traced(family, head, layout)
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


def test_empty_texts_and_padding_of_a_bucket_change_nothing(traced):
    """Sizes of CUDA graphs, on the CPU, whose function needs the real offsets."""
    graph = traced(EncoderFamily.BERT, Head.LINEAR, Layout.VARLEN)
    texts = graph.encodings[:5]
    lengths = [len(text) for text in texts]
    (bucket,) = (one for one in graph_buckets(LONGEST) if one.tokens == 512)
    arrays = concatenate(texts, graph.padding, first_only=True, bucket=bucket)
    assert arrays["input_ids"].shape == (1, 512)
    assert arrays[LENGTHS].shape == (65,)
    arrays[OFFSET] = token_offsets([*lengths, *[0] * (64 - len(texts))], LONGEST)
    session = ort.InferenceSession(graph.path, providers=["CPUExecutionProvider"])
    feed = {one.name: arrays[one.name] for one in session.get_inputs()}
    (logits,) = session.run(["logits"], feed)
    assert logits.shape == (64, graph.expected_NC.shape[1])
    np.testing.assert_allclose(logits[:5], graph.expected_NC[:5], atol=SAME)


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


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("mpnet", "its attention adds a bias for relative positions"),
        ("rembert", "its attention cannot be replaced in transformers"),
        ("deberta-v2", "it multiplies its embeddings by the mask"),
    ],
)
def test_a_family_with_another_attention_has_no_varlen_layout(family, why):
    with pytest.raises(
        ConfigError, match=f"^{family} does not support the varlen layout: {why}$"
    ) as caught:
        check_varlen(family)
    assert caught.value.hint.startswith("use --layout padded or packed; supported: albert, bert, ")
