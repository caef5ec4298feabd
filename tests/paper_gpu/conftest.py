"""A paper GPU, and float16 graphs of small models for it."""

from functools import cache

import pytest
from transformers import AutoConfig, AutoModel

from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, publish
from pipework.export.convert import varlen
from pipework.export.convert.checkpoint2onnx import (
    PackedClassifier,
    VarlenClassifier,
    trace,
    trace_packed,
)
from pipework.export.convert.onnx2fp16 import onnx_to_fp16
from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.collate import Collate
from pipework.train.config.model import Head
from pipework.train.model.classifier import open_checkpoint, padding_of
from tests.paper_gpu.device import PaperGpu, missing
from tests.tiny_models import SampleRows, open_tiny

CLASSES = {Layout.PACKED: PackedClassifier, Layout.VARLEN: VarlenClassifier}


@pytest.fixture(scope="session")
def paper_gpu(tmp_path_factory) -> PaperGpu:
    if reason := missing():
        pytest.skip(f"there is no paper GPU: {reason}")
    return PaperGpu.compile(tmp_path_factory.mktemp("paper-gpu"))


@pytest.fixture(scope="session")
def engine_file(tmp_path_factory):
    """Make and cache the engine file of a family in a layout, in float16 or float32."""

    @cache
    def make(family, layout, *, half=True, head=Head.LINEAR, **sizes):
        folder = tmp_path_factory.mktemp(f"{family}-{layout}")
        write_checkpoint(family, folder, head, **sizes)
        return write_engine(folder, layout, half=half)

    return lambda family, layout, **options: str(make(family, layout, **options))


def write_checkpoint(family, folder, head, **sizes):
    """Write a checkpoint of a family with random weights."""
    rows = SampleRows.of(family)
    publish(family, rows.tokenizer, folder / "published")
    config = AutoConfig.from_pretrained(folder / "published")
    if family is EncoderFamily.MODERNBERT:
        sizes = {"local_attention": 1024}
    for name, value in sizes.items():
        setattr(config, name, value)
    AutoModel.from_config(config).save_pretrained(folder / "published")
    open_tiny(rows, folder / "published", head).save(folder)


def write_engine(folder, layout, *, half):
    """Write the engine file of a checkpoint in its folder."""
    attention = varlen.ATTENTION if layout is Layout.VARLEN else "eager"
    model = open_checkpoint(folder, attention=attention)
    padding, plain, path = padding_of(model), folder / "fp32.onnx", folder / "graph.onnx"
    if layout is Layout.PADDED:
        trace(model, plain, type_ids=padding.type_ids, spans=False)
        first_only = True
    else:
        packed = CLASSES[layout](model)
        first_only = packed.first_only
        trace_packed(packed, plain, type_ids=padding.type_ids, spans=False)
    if half:
        texts = SampleRows.of(EncoderFamily(model.config.model_type)).encodings(
            type_ids=padding.type_ids, marked=False
        )
        collate = Collate(
            layout=layout, padding=padding, spans=False, first_only=first_only, whole=True
        )
        onnx_to_fp16(plain, path, [feed.arrays for feed in collate.feeds(texts)])
    else:
        plain.rename(path)
    if layout is Layout.VARLEN:
        varlen.use_kernel(path, folder / "model.onnx")
        return folder / "model.onnx"
    return path
