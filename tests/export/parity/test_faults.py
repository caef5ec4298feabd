"""Faulty exports: each is rejected, and the report names the faulty layer.

Each fault is injected into a real build, which goes through the real export and engines.
"""

import re
import shutil

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.transformers.float16 import convert_float_to_float16
from tokenizers import Tokenizer

from pipework.benchmarks.studies.planted_faults import FaultyExporter, dropout
from pipework.errors import CheckFailedError, RunFolderError
from pipework.export.build import BuildResult
from pipework.export.config import ExportSettings
from pipework.export.convert import checkpoint2onnx
from pipework.export.convert.checkpoint2onnx import PackedClassifier
from pipework.export.convert.onnx2ort import ONNX_FP32
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import EngineBuild
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.serve.engines import open_proven
from tests.export.conftest import ENGINES, change_weights, weight_changed
from tests.repetitions import repeated

QUICK = ExportSettings(speed_s=0, dev_rows=60)
SEP = 3  # of the sample's vocabulary
ONNX_PACKED = ENGINES["onnx-fp32-packed"]


def of_model(change):
    """Return a builder that changes the model after loading it."""
    return FaultyExporter(model=lambda model, _: change(model))


def encoder_given(change):
    """Return a builder with changed encoder inputs: `change` returns new arguments by name."""

    def fault(model):
        bert = model.model.bert
        forward = bert.forward

        def changed(input_ids, **inputs):
            inputs["input_ids"] = input_ids
            return forward(**(inputs | change(inputs)))

        bert.forward = changed

    return of_model(fault)


def mask_ignored(inputs):
    return {"attention_mask": torch.ones_like(inputs["attention_mask"])}


def mask_of_another_padding_id(inputs):
    """A mask computed from the wrong padding id, that of [SEP]."""
    return {"attention_mask": (inputs["input_ids"] != SEP).long() * inputs["attention_mask"]}


def pair_swapped(inputs):
    """[CLS] first [SEP] second [SEP] becomes [CLS] second [SEP] first [SEP] with the same types."""
    types_BT, mask_BT = inputs["token_type_ids"], inputs["attention_mask"]
    place_T = torch.arange(types_BT.shape[1])
    rank_BT = torch.where(types_BT == 1, 1, 2) * 10_000 + place_T
    rank_BT = torch.where(mask_BT == 0, 10**6 + place_T, rank_BT)
    order_BT = torch.where(place_T == 0, -1, rank_BT).argsort(dim=1)
    return {"input_ids": inputs["input_ids"].gather(1, order_BT)}


def types_dropped(inputs):
    return {"token_type_ids": inputs["token_type_ids"] * 0}


def positions_of_7_tokens(inputs):
    del inputs
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


def no_number(values):
    values[0] = np.nan


class SegmentsIgnored(PackedClassifier):
    def forward(self, input_ids, position_ids, segment_ids, *others, **named):
        return super().forward(input_ids, position_ids, segment_ids * 0, *others, **named)


class PositionsNotRestarting(PackedClassifier):
    def forward(self, input_ids, position_ids, *others, **named):
        along_RT = (torch.ones_like(position_ids).cumsum(1) - 1).clamp(max=63)
        return super().forward(input_ids, along_RT + 0 * position_ids, *others, **named)


class GatheredOutsideTheText(PackedClassifier):
    def forward(self, input_ids, position_ids, segment_ids, text_index, *others, **named):
        shifted = (text_index - 1).clamp(min=0)
        return super().forward(input_ids, position_ids, segment_ids, shifted, *others, **named)


EMBEDDINGS, LAYERS = "bert.embeddings", "bert.encoder.layer"
# The run, the builder, the engine, a text of the report, and the first layer that differs.
FAULTS = {
    "dropout on": (
        "trained_run",
        FaultyExporter(graph=dropout(0.1)),
        ONNX_FP32,
        "draws random",
        "classifier",
    ),
    "mask ignored": (
        "trained_run",
        encoder_given(mask_ignored),
        ONNX_FP32,
        "wrong attention",
        f"{LAYERS}.0.attention.self",
    ),
    "position off by one": (
        "trained_run",
        of_model(positions_off_by_one),
        ONNX_FP32,
        "wrong token positions",
        f"{EMBEDDINGS}.position_embeddings",
    ),
    "labels permuted": (
        "trained_run",
        of_model(labels_permuted),
        ONNX_FP32,
        "labels permuted: the logits are the checkpoint's in another order, ",
        "classifier",
    ),
    "two labels swapped": (
        "trained_run",
        of_model(two_labels_swapped),
        ONNX_FP32,
        "all earlier layers are correct",
        "classifier",
    ),
    "wrong pad id": (
        "trained_run",
        encoder_given(mask_of_another_padding_id),
        ONNX_FP32,
        "wrong attention",
        f"{LAYERS}.0.attention.self",
    ),
    "pair order swapped": (
        "pair_run",
        encoder_given(pair_swapped),
        ONNX_FP32,
        "swapped texts of a pair",
        f"{EMBEDDINGS}.word_embeddings",
    ),
    "type ids dropped": (
        "pair_run",
        encoder_given(types_dropped),
        ONNX_FP32,
        "type ids",
        f"{EMBEDDINGS}.token_type_embeddings",
    ),
    "one layer perturbed": (
        "trained_run",
        of_model(one_layer_perturbed),
        ONNX_FP32,
        "relative difference",
        f"{LAYERS}.1.attention.output.dense",
    ),
    "one layer perturbed, OpenVINO": (
        "trained_run",
        of_model(one_layer_perturbed),
        ENGINES["openvino-fp32"],
        "float32 graph exported now",
        f"{LAYERS}.1.attention.output.dense",
    ),
    "one layer perturbed, packed": (
        "trained_run",
        of_model(one_layer_perturbed),
        ENGINES["openvino-fp32-packed"],
        "float32 graph exported now",
        f"{LAYERS}.1.attention.output.dense",
    ),
    "one value lost": (
        "trained_run",
        of_model(one_value_lost),
        ONNX_FP32,
        "relative difference",
        f"{LAYERS}.0.output.dense",
    ),
    "no number": (
        "trained_run",
        FaultyExporter(graph=weight_changed("classifier.bias", no_number)),
        ONNX_FP32,
        "relative difference inf",
        "classifier",
    ),
    "segments ignored": (
        "trained_run",
        FaultyExporter(packed=SegmentsIgnored),
        ONNX_PACKED,
        "wrong attention",
        f"{LAYERS}.0.attention.self",
    ),
    "positions not restarting": (
        "trained_run",
        FaultyExporter(packed=PositionsNotRestarting),
        ONNX_PACKED,
        "wrong token positions",
        f"{EMBEDDINGS}.position_embeddings",
    ),
    "wrong gather index": (
        "trained_run",
        FaultyExporter(packed=GatheredOutsideTheText),
        ONNX_PACKED,
        "relative difference",
        "bert.pooler.dense",
    ),
}


def refused(run, builder, which):
    """Export, check that nothing is recorded, and return the details of the error."""
    before = (run / "manifest.json").read_bytes()
    with pytest.raises(CheckFailedError, match="failed the parity check") as caught:
        export(run, NullProgress(), [which], settings=QUICK, builder=builder)
    assert caught.value.exit_code == 3
    assert (run / "manifest.json").read_bytes() == before
    assert not (run / "engines").exists()
    return caught.value.details


# One of each place: inputs, encoder, head, packing, runtime.
QUICK_FAULTS = (
    *("labels permuted", "mask ignored", "position off by one"),
    *("one layer perturbed, OpenVINO", "wrong gather index"),
)


@pytest.mark.parametrize(
    "fault", repeated(sorted(FAULTS, key=lambda name: name not in QUICK_FAULTS), len(QUICK_FAULTS))
)
def test_a_faulty_export_is_rejected_and_its_layer_reported(request, tmp_path, fault):
    fixture, builder, which, text, layer = FAULTS[fault]
    run = shutil.copytree(request.getfixturevalue(fixture), tmp_path / "run")
    details = refused(run, builder, which)
    assert "checkpoint -> engine" in details
    assert text in details
    assert re.search(r"first layer that differs: (\S+),", details)[1] == layer


def test_a_fixed_length_is_rejected(run):
    details = refused(run, encoder_given(positions_of_7_tokens), ONNX_FP32)
    assert "module in the runtime's error: bert.embeddings" in details


def scaled_values(weights):
    """Scale the values of attention up and its outputs down: same logits, large activations."""
    layer = "bert.encoder.layer.1.attention"
    for part in ("weight", "bias"):
        weights[f"{layer}.self.value.{part}"] *= 1e6
    weights[f"{layer}.output.dense.weight"] /= 1e6


def all_in_float16(_variant, run_rows, folder, *_):
    path = folder / "model.onnx"
    checkpoint2onnx.checkpoint_to_onnx(run_rows.run, run_rows.manifest, path)
    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), path)
    return BuildResult(built=EngineBuild(opset=17, built_with={}))


@pytest.mark.filterwarnings("ignore:the float32 number")
def test_values_that_overflow_float16_are_rejected(run):
    change_weights(run, scaled_values)
    details = refused(run, all_in_float16, ENGINES["onnx-fp16"])
    layer = "bert.encoder.layer.1.attention.self.value"
    assert f"first layer that differs: {layer}, relative difference inf" in details
    assert "the conversion to onnx-fp16 causes the difference" in details


@pytest.mark.parametrize(
    ("tokens_known", "message"),
    [(True, "the token ids of the dev rows differ"), (False, r"but was \S+ after training")],
)
def test_a_changed_tokenizer_in_the_manifest_is_rejected(run, tokens_known, message):
    reordered(run / "tokenizer.json")
    manifest = read_manifest(run)
    input_ = manifest.input.model_copy(
        update={"tokenizer": record_file(run, run / "tokenizer.json")}
    )
    dev = manifest.data.metrics["dev"]
    metrics = {"dev": dev if tokens_known else dev.model_copy(update={"tokens": None})}
    data = manifest.data.model_copy(update={"metrics": metrics})
    write_manifest(run, manifest.model_copy(update={"input": input_, "data": data}))
    with pytest.raises(CheckFailedError, match=message) as caught:
        export(
            run, NullProgress(), settings=QUICK
        )  # a sample of dev is compared, all of it is scored
    assert "tokenizer" in f"{caught.value} {caught.value.hint}"


def reordered(path):
    """Reorder the ids of a vocabulary."""
    tokenizer = Tokenizer.from_file(str(path))
    text, vocabulary = tokenizer.to_str(), tokenizer.get_vocab(with_added_tokens=False)
    words = sorted(vocabulary, key=vocabulary.get)
    special = sum(word.startswith("[") for word in words[:5])
    mixed = words[:special] + words[special:][::-1]
    plain = Tokenizer.from_str(text)
    plain.model = type(tokenizer.model)(
        {word: number for number, word in enumerate(mixed)}, unk_token="[UNK]"
    )
    plain.save(str(path))


def test_an_engine_of_another_run_is_rejected_by_the_parity_check_and_at_load(
    proven, trained_run, tmp_path
):
    def another_head(weights):
        weights["classifier.weight"] += 0.1
        weights["classifier.weight"][0] *= -1

    other = shutil.copytree(trained_run, tmp_path / "other")
    change_weights(other, another_head)

    def copied(_variant, run_rows, folder, *_):
        checkpoint2onnx.checkpoint_to_onnx(other, run_rows.manifest, folder / "model.onnx")
        return BuildResult(built=EngineBuild(opset=17, built_with={}))

    run = shutil.copytree(trained_run, tmp_path / "run")
    assert "checkpoint -> engine" in refused(run, copied, ONNX_FP32)
    engine = read_manifest(proven).engines[0].files[0].path
    checkpoint2onnx.checkpoint_to_onnx(other, read_manifest(proven), proven / engine)
    with pytest.raises(RunFolderError, match=r"model\.onnx changed"):
        open_proven(proven, read_manifest(proven))
