"""Twelve ways in which exports go wrong, and more: each is refused, and the layer is named.

Each fault is put into the real build, and goes through the real export with the real engines.
"""

import re
import shutil
from unittest.mock import patch

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from pipework.errors import CheckFailedError, RunFolderError
from pipework.export.build import Built, build
from pipework.export.config import ExportSettings
from pipework.export.convert import checkpoint2onnx
from pipework.export.convert.checkpoint2onnx import PackedClassifier
from pipework.export.run import export
from pipework.progress import Silent
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Variant
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.serve.engines import open_proven
from pipework.train.model.checkpoint import FOLDER, records
from pipework.train.model.classifier import open_checkpoint

QUICK = ExportSettings(speed_s=0, dev_rows=60)
SEP = 3  # of the sample's vocabulary
ONNX, OPENVINO = EngineFormat.ONNX, EngineFormat.OPENVINO


def variant(format=ONNX, layout=Layout.PADDED, precision=Precision.FP32):  # noqa: A002
    return Variant(format=format, precision=precision, layout=layout)


def of_model(change):
    """A build of a model that was changed after it was opened."""

    def building(which, subject, folder, progress):
        def opened(*given, **named):
            model = open_checkpoint(*given, **named)
            change(model)
            return model

        with patch.object(checkpoint2onnx, "open_checkpoint", opened):
            return build(which, subject, folder, progress)

    return building


def of_packing(kind):
    """A build with another reader of packed rows."""

    def building(which, subject, folder, progress):
        with patch.object(checkpoint2onnx, "PackedClassifier", kind):
            return build(which, subject, folder, progress)

    return building


def of_graph(change):
    """A build whose graph was changed after it was written."""

    def building(which, subject, folder, progress):
        built = build(which, subject, folder, progress)
        path = folder / "model.onnx"
        graph = onnx.load(path)
        change(graph.graph)
        onnx.save(graph, path)
        return built

    return building


def encoder_given(change):
    """A fault of what the encoder is given: `change` edits its arguments by name."""

    def fault(model):
        bert = model.model.bert
        forward = bert.forward

        def changed(input_ids, **given):
            given["input_ids"] = input_ids
            return forward(**(given | change(given)))

        bert.forward = changed

    return of_model(fault)


def mask_ignored(given):
    return {"attention_mask": torch.ones_like(given["attention_mask"])}


def mask_of_another_padding_id(given):
    """A graph that makes its own mask, and believes that padding has the id of [SEP]."""
    return {"attention_mask": (given["input_ids"] != SEP).long() * given["attention_mask"]}


def pair_swapped(given):
    """[CLS] first [SEP] second [SEP] becomes [CLS] second [SEP] first [SEP], types as they were."""
    types_BT, mask_BT = given["token_type_ids"], given["attention_mask"]
    place_T = torch.arange(types_BT.shape[1])
    rank_BT = torch.where(types_BT == 1, 1, 2) * 10_000 + place_T
    rank_BT = torch.where(mask_BT == 0, 10**6 + place_T, rank_BT)
    order_BT = torch.where(place_T == 0, -1, rank_BT).argsort(dim=1)
    return {"input_ids": given["input_ids"].gather(1, order_BT)}


def types_dropped(given):
    return {"token_type_ids": given["token_type_ids"] * 0}


def positions_of_7_tokens(given):
    del given
    return {"position_ids": torch.arange(7)[None]}


def positions_off_by_one(model):
    weight = model.model.bert.embeddings.position_embeddings.weight
    weight.data = weight.data.roll(1, dims=0)


def labels_permuted(model):
    head = model.model.classifier
    order = torch.arange(len(head.bias)).roll(1)
    head.weight.data, head.bias.data = head.weight.data[order], head.bias.data[order]


def two_labels_swapped(model):
    weight = model.model.classifier.weight
    weight.data[[0, 1]] = weight.data[[1, 0]]


def one_layer_perturbed(model):
    weight = model.model.bert.encoder.layer[1].attention.output.dense.weight
    weight.data += 1e-2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))


def one_value_lost(model):
    model.model.bert.encoder.layer[0].output.dense.weight.data[3, 5] += 0.5


def dropout_on(graph):
    """As in a graph that was exported in training mode (the runtime skips a Dropout node)."""
    last = graph.node[-1]
    assert last.op_type == "Gemm"
    kept = numpy_helper.from_array(np.array(0.1, np.float32), "rate")
    graph.initializer.append(kept)
    nodes = [
        helper.make_node("RandomUniformLike", [last.input[0]], ["random"]),
        helper.make_node("Greater", ["random", "rate"], ["kept"]),
        helper.make_node("Cast", ["kept"], ["scale"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", [last.input[0], "scale"], ["dropped"]),
    ]
    last.input[0] = "dropped"
    for node in nodes:
        graph.node.insert(len(graph.node) - 1, node)


def no_number(graph):
    (bias,) = (one for one in graph.initializer if one.name.endswith("classifier.bias"))
    values = numpy_helper.to_array(bias).copy()
    values[0] = np.nan
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))


class SegmentsIgnored(PackedClassifier):
    def forward(self, input_ids, position_ids, segment_ids, *others, **named):
        return super().forward(input_ids, position_ids, segment_ids * 0, *others, **named)


class PositionsNotRestarting(PackedClassifier):
    def forward(self, input_ids, position_ids, *others, **named):
        along_RT = (torch.ones_like(position_ids).cumsum(1) - 1).clamp(max=63)
        return super().forward(input_ids, along_RT + 0 * position_ids, *others, **named)


class GatheredBesideTheText(PackedClassifier):
    def forward(self, input_ids, position_ids, segment_ids, text_index, *others, **named):
        beside = (text_index - 1).clamp(min=0)
        return super().forward(input_ids, position_ids, segment_ids, beside, *others, **named)


EMBEDDINGS, LAYERS = "bert.embeddings", "bert.encoder.layer"
# The run, the build, the engine, what is said, and the layer that is named first.
FAULTS = {
    "dropout on": ("trained_run", of_graph(dropout_on), variant(), "draws random", "classifier"),
    "mask ignored": (
        "trained_run",
        encoder_given(mask_ignored),
        variant(),
        "attend to others",
        f"{LAYERS}.0.attention.self",
    ),
    "position off by one": (
        "trained_run",
        of_model(positions_off_by_one),
        variant(),
        "other positions",
        f"{EMBEDDINGS}.position_embeddings",
    ),
    "labels permuted": (
        "trained_run",
        of_model(labels_permuted),
        variant(),
        "labels permuted: it answers as the checkpoint in another order, ",
        "classifier",
    ),
    "two labels swapped": (
        "trained_run",
        of_model(two_labels_swapped),
        variant(),
        "all before it is right",
        "classifier",
    ),
    "wrong pad id": (
        "trained_run",
        encoder_given(mask_of_another_padding_id),
        variant(),
        "attend to others",
        f"{LAYERS}.0.attention.self",
    ),
    "pair order swapped": (
        "pair_run",
        encoder_given(pair_swapped),
        variant(),
        "pair swapped",
        f"{EMBEDDINGS}.word_embeddings",
    ),
    "type ids dropped": (
        "pair_run",
        encoder_given(types_dropped),
        variant(),
        "type ids",
        f"{EMBEDDINGS}.token_type_embeddings",
    ),
    "one layer perturbed": (
        "trained_run",
        of_model(one_layer_perturbed),
        variant(),
        "of its size",
        f"{LAYERS}.1.attention.output.dense",
    ),
    "one layer perturbed, OpenVINO": (
        "trained_run",
        of_model(one_layer_perturbed),
        variant(OPENVINO),
        "float32 graph exported now",
        f"{LAYERS}.1.attention.output.dense",
    ),
    "one layer perturbed, packed": (
        "trained_run",
        of_model(one_layer_perturbed),
        variant(OPENVINO, Layout.PACKED),
        "float32 graph exported now",
        f"{LAYERS}.1.attention.output.dense",
    ),
    "one value lost": (
        "trained_run",
        of_model(one_value_lost),
        variant(),
        "of its size",
        f"{LAYERS}.0.output.dense",
    ),
    "no number": ("trained_run", of_graph(no_number), variant(), "by inf", "classifier"),
    "segments ignored": (
        "trained_run",
        of_packing(SegmentsIgnored),
        variant(layout=Layout.PACKED),
        "attend to others",
        f"{LAYERS}.0.attention.self",
    ),
    "positions not restarting": (
        "trained_run",
        of_packing(PositionsNotRestarting),
        variant(layout=Layout.PACKED),
        "other positions",
        f"{EMBEDDINGS}.position_embeddings",
    ),
    "wrong gather index": (
        "trained_run",
        of_packing(GatheredBesideTheText),
        variant(layout=Layout.PACKED),
        "of its size",
        "bert.pooler.dense",
    ),
}


def refused(run, building, which):
    """Export, and return what the refusal says after checking that nothing is recorded."""
    before = (run / "manifest.json").read_bytes()
    with pytest.raises(CheckFailedError, match="does not answer as the checkpoint") as caught:
        export(run, Silent(), [which], settings=QUICK, building=building)
    assert caught.value.exit_code == 3
    assert (run / "manifest.json").read_bytes() == before
    assert not (run / "engines").exists()
    return caught.value.details


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_export_is_refused_and_its_layer_named(request, tmp_path, fault):
    fixture, building, which, says, layer = FAULTS[fault]
    run = shutil.copytree(request.getfixturevalue(fixture), tmp_path / "run")
    details = refused(run, building, which)
    assert "checkpoint -> engine" in details
    assert says in details
    assert re.search(r"first layer that differs: (\S+),", details)[1] == layer


def test_a_length_that_was_frozen_is_refused(run):
    details = refused(run, encoder_given(positions_of_7_tokens), variant())
    assert "the runtime names bert.embeddings" in details


def scaled_values(run, factor):
    """Multiply what attention reads and divide what it gives: the same answers, large values."""
    path = run / FOLDER / "model.safetensors"
    weights = load_file(path)
    layer = "bert.encoder.layer.1.attention"
    for part in ("weight", "bias"):
        weights[f"{layer}.self.value.{part}"] *= factor
    weights[f"{layer}.output.dense.weight"] /= factor
    save_file(weights, path, metadata={"format": "pt"})
    manifest = read_manifest(run)
    model = manifest.model.model_copy(update={"checkpoint": records(run)})
    write_manifest(run, manifest.model_copy(update={"model": model}))


def all_in_float16(_variant, subject, folder, _progress):
    path = folder / "model.onnx"
    checkpoint2onnx.checkpoint_to_onnx(subject.run, subject.manifest, path)
    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), path)
    return Built(built_with={})


@pytest.mark.filterwarnings("ignore:the float32 number")
def test_values_that_overflow_float16_are_refused(run):
    scaled_values(run, 1e6)
    details = refused(run, all_in_float16, variant(precision=Precision.FP16))
    assert "first layer that differs: bert.encoder.layer.1.attention.self.value, by inf" in details
    assert "it is what makes onnx-fp16 of the graph that errs" in details


def test_a_tokenizer_that_is_another_is_refused_before_anything_is_built(run):
    reordered(run / "tokenizer.json")
    with pytest.raises(RunFolderError, match=r"tokenizer\.json changed"):
        export(run, Silent(), settings=QUICK)


def test_a_tokenizer_that_the_manifest_vouches_for_is_refused_by_the_score(run):
    reordered(run / "tokenizer.json")
    manifest = read_manifest(run)
    given = manifest.input.model_copy(
        update={"tokenizer": record_file(run, run / "tokenizer.json")}
    )
    write_manifest(run, manifest.model_copy(update={"input": given}))
    with pytest.raises(CheckFailedError, match="when it was trained") as caught:
        export(run, Silent(), settings=QUICK)  # a part of dev is proven, all of it is scored
    assert "tokenizer" in caught.value.hint


def reordered(path):
    """Give each word of a vocabulary the id of another."""
    tokenizer = Tokenizer.from_file(str(path))
    text, vocabulary = tokenizer.to_str(), tokenizer.get_vocab(with_added_tokens=False)
    words = sorted(vocabulary, key=vocabulary.get)
    kept = sum(word.startswith("[") for word in words[:5])
    mixed = words[:kept] + words[kept:][::-1]
    plain = Tokenizer.from_str(text)
    plain.model = type(tokenizer.model)(
        {word: number for number, word in enumerate(mixed)}, unk_token="[UNK]"
    )
    plain.save(str(path))


def test_an_engine_of_another_run_is_refused_by_the_proof_and_at_load(
    proven, trained_run, tmp_path
):
    other = shutil.copytree(trained_run, tmp_path / "other")
    weights = load_file(other / FOLDER / "model.safetensors")
    weights["classifier.weight"] += 0.1
    weights["classifier.weight"][0] *= -1
    save_file(weights, other / FOLDER / "model.safetensors", metadata={"format": "pt"})

    def copied(_variant, subject, folder, _progress):
        checkpoint2onnx.checkpoint_to_onnx(other, subject.manifest, folder / "model.onnx")
        return Built(built_with={})

    run = shutil.copytree(trained_run, tmp_path / "run")
    assert "checkpoint -> engine" in refused(run, copied, variant())
    engine = read_manifest(proven).engines[0].files[0].path
    checkpoint2onnx.checkpoint_to_onnx(other, read_manifest(proven), proven / engine)
    with pytest.raises(RunFolderError, match=r"model\.onnx changed"):
        open_proven(proven, read_manifest(proven))
