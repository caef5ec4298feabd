"""Import every family from every kind of source: `python -m pipework.benchmarks.studies.imports`.

The models have two layers and random weights, and are saved as other programs save them. Each is
imported, exported as a padded and a packed float32 engine, and served; the answers of the server
are compared with the source.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies import tiny_encoders
from pipework.benchmarks.studies.pipe_serve import running_server
from pipework.benchmarks.studies.records.grid_results import Cell, GridResult
from pipework.benchmarks.studies.script import command, report_errors, stored, study_parser
from pipework.benchmarks.studies.tiny_encoders import EncoderFamily, Family, sample_examples
from pipework.client import Client
from pipework.errors import CheckFailedError
from pipework.export.config import ExportSettings, ImportSettings
from pipework.export.importing.comparison import SourceReference
from pipework.export.importing.run import import_source, open_any
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.tasks.predictions import Prediction, RegressionValue, SingleLabel
from pipework.train.model.packed_encoder import PACKABLE

LABELS = ("sport", "money", "weather")
LENGTH = 64
GRAPH_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Without these names, the tokenizers of some families add tokens of their own.
SPECIAL_NAMES = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "bos_token": "[CLS]",
    "eos_token": "[SEP]",
}
SAVE = "save"  # the step of the other library
SETTINGS = ExportSettings(speed_s=0)


def save_classifier(
    folder: Path, family: Family = EncoderFamily.BERT, labels: int = 3, **config: object
) -> Path:
    """Save a model and its tokenizer as transformers does; `config` changes its config."""
    tokenizer = tiny_encoders.tokenizer_for(family, [example.text for example in sample_examples()])
    sizes = tiny_encoders.tiny(family, tokenizer.get_vocab_size())
    sizes.num_labels = labels
    if labels == len(LABELS):
        sizes.id2label = dict(enumerate(LABELS))
        sizes.label2id = {label: index for index, label in enumerate(LABELS)}
    for name, value in config.items():
        setattr(sizes, name, value)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(sizes).save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **SPECIAL_NAMES if family in tiny_encoders.ImportedFamily else {"pad_token": "[PAD]"},
        model_max_length=LENGTH,
        model_input_names=[
            name for name in GRAPH_INPUTS if name != "token_type_ids" or _has_types(family, sizes)
        ],
    )
    wrapped.save_pretrained(folder)
    return folder


def _has_types(family: Family, config: PreTrainedConfig) -> bool:
    return family in EncoderFamily and getattr(config, "type_vocab_size", 2) != 1


def save_pickle(folder: Path, family: Family) -> None:
    """Save the weights as pytorch_model.bin."""
    model = AutoModelForSequenceClassification.from_pretrained(save_classifier(folder, family))
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def save_cross_encoder(folder: Path, family: Family) -> None:
    """Save a cross-encoder whose score is a sigmoid."""
    activation = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    save_classifier(folder, family, labels=1, sentence_transformers=activation)


def save_graph(
    folder: Path,
    *,
    inputs: Sequence[str] = GRAPH_INPUTS[:2],
    dynamo: bool = False,
    fixed: bool = False,
) -> torch.nn.Module:
    """Export the model of a folder to ONNX, and delete its weights; return the model."""
    model: torch.nn.Module = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    sizes = {0: "batch", 1: "sequence"}
    ids = torch.randint(5, 50, (2, 9))
    values = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    axes: dict[str, Any] = {"dynamic_axes": {} if fixed else dict.fromkeys(inputs, sizes)}
    if dynamo:
        dynamic = {axis: torch.export.Dim(name) for axis, name in sizes.items()}
        axes = {"dynamic_shapes": dict.fromkeys(inputs, dynamic)}
    (folder / "model.safetensors").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (),
            folder / "model.onnx",
            kwargs=dict(zip(inputs, values, strict=False)),
            input_names=[*inputs],
            output_names=["logits"],
            opset_version=18,
            dynamo=dynamo,
            verbose=False,
            **axes,
        )
    return model


def save_adapter(folder: Path, family: Family) -> None:
    """Save a LoRA adapter with its own head, and its base without a head in the folder `base`."""
    base = save_classifier(folder / "base", family)
    model = AutoModelForSequenceClassification.from_pretrained(base)
    AutoModel.from_pretrained(base).save_pretrained(base)
    head = [
        name
        for name, module in model.named_children()
        if name != model.base_model_prefix and [*module.parameters()]
    ]
    settings = LoraConfig(
        task_type="SEQ_CLS", r=4, target_modules="all-linear", modules_to_save=head
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of peft's use of transformers
        adapted = get_peft_model(model, settings)
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if "lora_" in name:
                weights.normal_(0, 0.3)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(str(folder))


def save_setfit(folder: Path, family: Family) -> None:
    """Save a sentence encoder with the mean state of the tokens, and a logistic regression."""
    save_classifier(folder, family)
    encoder = AutoModel.from_pretrained(folder)
    encoder.save_pretrained(folder)
    modules = [
        {"idx": index, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate({"Transformer": "", "Pooling": "1_Pooling"}.items())
    ]
    weights = torch.randn((len(LABELS), encoder.config.hidden_size), dtype=torch.float64)
    files: Mapping[str, object] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": LENGTH},
        "config_setfit.json": {"labels": LABELS, "normalize_embeddings": False},
        "model_head.json": {"coef": weights.tolist(), "intercept": [0.1, -0.1, 0.0]},
    }
    (folder / "1_Pooling").mkdir()
    for name, fields in files.items():
        (folder / name).write_text(json.dumps(fields), encoding="utf-8")


def _save_graph(folder: Path, family: Family, *, dynamo: bool) -> None:
    save_graph(save_classifier(folder, family), dynamo=dynamo)


SOURCES: Mapping[str, Callable[[Path, Family], object]] = {
    "safetensors": save_classifier,
    "pytorch_model.bin": save_pickle,
    "ONNX": partial(_save_graph, dynamo=False),
    "ONNX, newer exporter": partial(_save_graph, dynamo=True),
    "cross-encoder": save_cross_encoder,
    "LoRA adapter": save_adapter,
    "SetFit": save_setfit,
}
IMPORTED_AS = {"safetensors", "cross-encoder", "LoRA adapter"}  # families that are not trained here


@dataclass(frozen=True, kw_only=True)
class ImportCheck:
    """A step of an import and its check.

    Attributes:
        step: save (by another library), import, padded or packed (the export), or serve.
        max_abs: the largest difference of a logit, or of a score for serve; None after an error.
        reason: the error.
    """

    step: str
    max_abs: float | None = None
    reason: str | None = None


def measure(family: Family, source: str) -> Iterator[ImportCheck]:
    """Yield the checks of one family from one kind of source."""
    with tempfile.TemporaryDirectory(prefix="pipework-imports-") as name:
        folder, run = Path(name) / "source", Path(name) / "run"
        try:
            SOURCES[source](folder, family)
        except Exception as error:  # noqa: BLE001  (any error of an exporter is the reason)
            yield ImportCheck(step=SAVE, reason=_reason(error, name))
            return
        layouts = (Layout.PADDED, *((Layout.PACKED,) if family in PACKABLE else ()))
        steps: dict[str, Callable[[], float]] = {
            "import": lambda: _import(folder, run),
            **{layout.value: partial(_export, run, layout) for layout in layouts},
            "serve": lambda: _serve(folder, run),
        }
        for step, function in steps.items():
            try:
                yield ImportCheck(step=step, max_abs=function())
            except Exception as error:  # noqa: BLE001
                yield ImportCheck(step=step, reason=_reason(error, name))
                return


def cell_of(family: str, source: str, checks: Sequence[ImportCheck]) -> Cell:
    """Return the largest difference of all steps, or the reason of the failure."""
    last = checks[-1]
    value = max((check.max_abs or 0.0 for check in checks), default=None)
    return Cell(
        row=(family,),
        column=source,
        value=value if last.reason is None else None,
        reason=last.reason,
    )


def _reason(error: Exception, folder: str) -> str:
    first = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
    return first.replace(folder, "").strip()


def _import(folder: Path, run: Path) -> float:
    manifest = import_source(str(folder), run, [], ImportSettings(), NullProgress())
    assert manifest.imported is not None
    return manifest.imported.max_abs


def _export(run: Path, layout: Layout) -> float:
    variant = Variant(format="onnx", layout=layout, precision=Precision.FP32)
    (record,) = export(run, NullProgress(), [variant], settings=SETTINGS)
    assert record.parity is not None
    return record.parity.max_abs


def _serve(folder: Path, run: Path) -> float:
    """Return the largest difference of a score between the server and the source."""
    source = open_any(str(folder), ImportSettings())
    examples = sample_examples()
    if source.pair:
        pairs = zip(examples, examples[1:] + examples[:1], strict=True)
        examples = [replace(example, text_pair=other.text) for example, other in pairs]
    outputs = SourceReference(source, LENGTH).outputs(examples, lambda _: None)
    expected = source.task.decode(outputs)
    with running_server(run) as url, Client(url) as client:
        found = client.predict_examples(examples)
    return max(_difference(*both) for both in zip(expected, found, strict=True))


def _difference(expected: Prediction, found: Prediction) -> float:
    return float(np.max(np.abs(np.subtract(_values(expected), _values(found)))))


def _values(prediction: Prediction) -> list[float]:
    """Return the scores of the labels in their order, or the score of a regression."""
    if isinstance(prediction, SingleLabel):
        return [prediction.scores[label] for label in LABELS]
    assert isinstance(prediction, RegressionValue)
    return [prediction.score]


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all combinations and store the result; return the exit code."""
    parser = study_parser("imports", __doc__)
    families = {str(family): family for family in (*EncoderFamily, *tiny_encoders.ImportedFamily)}
    parser.add_argument("--families", nargs="+", choices=families, default=[*families])
    parser.add_argument("--sources", nargs="+", choices=[*SOURCES], default=[*SOURCES])
    options = parser.parse_args(arguments)

    failed: list[str] = []

    def measured(note: Callable[[str], None]) -> GridResult:
        cells: list[Cell] = []
        for family, source in product(options.families, options.sources):
            if families[family] in tiny_encoders.ImportedFamily and source not in IMPORTED_AS:
                continue
            checks = [*measure(families[family], source)]
            cells.append(cell_of(family, source, checks))
            last = checks[-1]
            note(f"{family}, {source}: {last.reason or f'{cells[-1].value:.1e}'}")
            if last.reason and last.step != SAVE:
                failed.append(f"{family} from {source}")
        return GridResult(
            experiment="imports",
            names=("family",),
            cells=tuple(cells),
            command=command(parser, options),
            provenance=provenance(),
        )

    stored(options.out, lambda progress: measured(progress.note))
    if failed:
        message = f"{len(failed)} sources were not imported: {', '.join(failed)}"
        raise CheckFailedError(message, "the reasons are in the stored result")
    return 0


if __name__ == "__main__":
    sys.exit(main())
