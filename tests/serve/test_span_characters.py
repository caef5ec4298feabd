"""The spans of texts with characters of all kinds, on each way to a model, for each tokenizer."""

import json
import random
from itertools import pairwise

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from pyarrow import Table, parquet
from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast

from pipework.data.examples import Example
from pipework.errors import MissingDependencyError
from pipework.export.config import ExportSettings, ImportSettings, TritonSettings
from pipework.export.importing.run import import_source
from pipework.export.inference import predict_run
from pipework.export.run import export
from pipework.export.triton.model_repository import EngineChoice, add_version
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.serve.bulk.job import BulkOptions, score_files
from pipework.serve.triton.installation import Installation
from pipework.serve.triton.server import TritonServer
from pipework.settings import load_settings
from tests.pipework.text.test_places import BLANKS, KINDS, SPECIAL, WORDS
from tests.serve.conftest import with_windows

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
ROWS, AT_ONCE = 3400, 50  # of each tokenizer
# The first characters of scripts, signs, combining marks, format characters and emoji.
BLOCKS = (0x21, 0xA1, 0x300, 0x370, 0x590, 0x600, 0x900, 0xE00, 0x1100, 0x200B, 0x20D0)
BLOCKS += (0x2600, 0x3040, 0x4E00, 0xAC00, 0xFB00, 0xFE00, 0xFF01, 0x1D400, 0x1F1E6, 0x1F600)


def texts():
    """Return random texts, some longer than a window."""
    generator = random.Random(0)
    found = ["", " ", "\ufeff", "\r\n", "\u200d"]
    while len(found) < ROWS:
        text = generator.choice(("", "\ufeff", " ", "\r\n"))
        for _ in range(generator.randint(1, 60)):
            block = generator.choice(BLOCKS)
            characters = "".join(chr(block + generator.randint(0, 30)) for _ in range(4))
            text += generator.choice((*WORDS, characters)) + generator.choice((*BLANKS, "", "."))
        found.append(text)
    return found


@pytest.fixture(params=KINDS)
def run(request, tmp_path):
    """A token classifier with random weights, which finds spans of all lengths everywhere."""
    tokenizer = KINDS[request.param]()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)
    wrapped.save_pretrained(tmp_path / "source")
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        id2label=dict(enumerate(TAGS)),
        label2id={tag: index for index, tag in enumerate(TAGS)},
    )
    model = BertForTokenClassification(config)
    model.classifier.weight.data *= 20
    model.save_pretrained(tmp_path / "source")
    options = load_settings(ImportSettings, None, ["force=true"])
    import_source(str(tmp_path / "source"), tmp_path / "plain", (), options, NullProgress())
    variant = Variant(format="onnx", precision=Precision.FP32, layout=Layout.PACKED)
    settings = ExportSettings(speed_s=0)
    export(tmp_path / "plain", NullProgress(), [variant], settings=settings)
    return with_windows(tmp_path / "plain", tmp_path / "run", stride=8)


def as_tuples(spans):
    return [(span["start"], span["end"], span["label"], span["text"]) for span in spans]


@pytest.mark.thorough
def test_each_span_is_the_text_between_its_ends(run, launch, tmp_path):
    rows = texts()
    predictions = [one for _, one in predict_run(run, [Example(text=text) for text in rows])]
    expected = [
        [(span.start, span.end, span.label, span.text) for span in one.spans] for one in predictions
    ]
    assert sum(map(len, expected)) > 5 * ROWS
    assert sum((one.windows or 1) > 1 for one in predictions) > ROWS / 10
    for text, spans in zip(rows, expected, strict=True):
        assert all(text[start:end] == part == part.strip() for start, end, _, part in spans)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    http, *_, grpc = launch(run).first_line().split()
    parts = [rows[start : start + AT_ONCE] for start in range(0, ROWS, AT_ONCE)]
    answers = [httpx.post(f"{http}/v1/predict", json={"texts": part}, timeout=60) for part in parts]
    served = [one for answer in answers for one in answer.json()["predictions"]]
    assert [as_tuples(one["spans"]) for one in served] == expected
    assert tensors(grpc, "plain", parts) == expected
    parquet.write_table(Table.from_pydict({"text": rows}), tmp_path / "in.parquet")
    options = BulkOptions(pattern=f"{tmp_path}/in.parquet", out=tmp_path / "out")
    score_files(run, options, NullProgress())
    (part,) = (tmp_path / "out").rglob("*.parquet")
    found = parquet.read_table(part)["predicted_spans"].to_pylist()
    assert [as_tuples(spans) for spans in found] == expected
    check_triton(run, tmp_path / "repository", parts, expected)


def check_triton(run, repository, parts, expected):
    try:
        installation = Installation.find()
    except MissingDependencyError as error:
        pytest.skip(f"{error}: {error.hint}")
    add_version(run, repository, TritonSettings(name="plain"), EngineChoice(), NullProgress())
    with TritonServer(repository, installation=installation) as server:
        assert tensors(server.grpc, "plain", parts) == expected


def tensors(address, model, parts):
    """Return the spans of texts by the Open Inference Protocol."""
    found = []
    with triton.InferenceServerClient(address) as client:
        for part in parts:
            tensor = triton.InferInput("text", [len(part), 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[text.encode()] for text in part], np.object_))
            labels = client.infer(model, [tensor]).as_numpy("label")[:, 0]
            found += [as_tuples(json.loads(label)) for label in labels]
    return found
