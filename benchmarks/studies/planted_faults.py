"""Faults to plant in the exporter and in engines, for the study `structural_faults`.

The faults change the graph, the tokenizer or the computation, and not the checkpoint.

Shapes: B inputs of a batch, T tokens, H width.
"""

import json
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from transformers import BertModel

from pipework.errors import CheckFailedError
from pipework.export import build as build_module
from pipework.export.build import BuildResult, GraphCheck, build
from pipework.export.checked_engine import UNFINISHED
from pipework.export.convert import checkpoint2onnx
from pipework.export.convert.checkpoint2onnx import PackedClassifier, checkpoint_to_onnx
from pipework.export.quantize.onnx2int8 import LayerPrecisions
from pipework.export.rows.run_rows import RunRows
from pipework.machine import cpu_limit
from pipework.progress import Progress
from pipework.run_folder.engine_record import Layout, Variant
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import Manifest, read_manifest, write_manifest
from pipework.serve.engines.base import Arrays, CollatedEngine, Logits
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.serve.engines.openvino import OpenVinoEngine
from pipework.train.model import packed_encoder
from pipework.train.model.classifier import Classifier
from pipework.train.model.combined import open_saved

LEAK = -5.0
MANY = 10**6
SPECIAL_IDS = 5  # token ids below this number are special in the vocabulary of a preset
WrongCall = Callable[[Arrays, int], bool]
ModelChange = Callable[[Classifier, RunRows], None]
GraphChange = Callable[[onnx.GraphProto], None]


@dataclass(frozen=True, kw_only=True)
class FaultyExporter:
    """An engine builder with a changed exporter; each change is optional.

    Attributes:
        model: changes the model that the exporter reads.
        graph: changes the float32 graph that the exporter writes.
        packed: replaces the classifier for packed rows.
        leaks: reduces attention to padding and other texts instead of excluding it.
        run: changes the run folder before the export.
        lowered: whether only the graph of a lower precision has the fault, and not the float32
            graph that is checked before the conversion.
        wrong_call: returns whether an engine negates the logits of a call, given its input arrays
            and the threads of the engine. The float32 graph of a lower precision is right.
    """

    model: ModelChange | None = None
    graph: GraphChange | None = None
    packed: type[PackedClassifier] = PackedClassifier
    leaks: bool = False
    run: Callable[[Path], None] | None = None
    lowered: bool = False
    wrong_call: WrongCall | None = None

    @contextmanager
    def engines(self) -> Iterator[None]:
        """Return a context in which engines compute with the fault."""
        with ExitStack() as stack:
            for kind in (OnnxRuntimeEngine, OpenVinoEngine):
                if self.wrong_call is not None:
                    constructor, start = _with_threads(kind), _negating(kind, self.wrong_call)
                    stack.enter_context(patch.object(kind, "__init__", constructor))
                    stack.enter_context(patch.object(kind, "_start", start))
            yield

    def __call__(
        self,
        variant: Variant,
        run_rows: RunRows,
        folder: Path,
        check: GraphCheck,
        progress: Progress,
    ) -> BuildResult:
        """Build an engine with the fault."""
        if not self.lowered:
            with self._exporter(run_rows):
                return build(variant, run_rows, folder, check, progress)
        convert = build_module._convert_precision  # noqa: SLF001

        def converted(plain: Path, *arguments: Any) -> LayerPrecisions:  # noqa: ANN401
            correct = plain.rename(plain.with_suffix(".correct"))
            with self._exporter(run_rows):
                export = build_module.checkpoint_to_onnx  # type: ignore[attr-defined]
                export(run_rows.run, run_rows.manifest, plain, variant.layout)
            layers = convert(plain, *arguments)
            correct.replace(plain)
            return layers

        with patch.object(build_module, "_convert_precision", converted):
            return build(variant, run_rows, folder, check, progress)

    @contextmanager
    def _exporter(self, run_rows: RunRows) -> Iterator[None]:
        """Return a context in which the exporter has the fault."""

        def opened(folder: Path, attention: str | None = None) -> Classifier:
            model = open_saved(folder, attention=attention)
            if self.model is not None:
                self.model(model, run_rows)
            return model

        def exported(run: Path, manifest: Manifest, path: Path, layout: Layout) -> None:
            checkpoint_to_onnx(run, manifest, path, layout)
            if self.graph is not None:
                model = onnx.load(path)
                self.graph(model.graph)
                onnx.save(model, path)

        bias = LEAK if self.leaks else packed_encoder.MASKED_BIAS
        masks = _leaking_masks if self.leaks else BertModel._create_attention_masks  # noqa: SLF001
        with (
            patch.object(checkpoint2onnx, "open_saved", opened),
            patch.object(build_module, "checkpoint_to_onnx", exported),
            patch.object(checkpoint2onnx, "PackedClassifier", self.packed),
            patch.object(packed_encoder, "MASKED_BIAS", bias),
            patch.object(BertModel, "_create_attention_masks", masks),
        ):
            yield


def _with_threads(kind: type[CollatedEngine]) -> Callable[..., None]:
    """Return the constructor of an engine that keeps its threads; 0 for graphs and candidates."""
    construct: Callable[..., None] = kind.__init__

    def constructed(engine: Any, path: Path, *rest: Any, threads: int, **named: Any) -> None:  # noqa: ANN401
        engine.threads = threads if path.parent.name == UNFINISHED else 0
        construct(engine, path, *rest, threads=threads, **named)

    return constructed


def _negating(kind: type[CollatedEngine], wrong: WrongCall) -> Callable[..., Any]:
    """Return the method of an engine that starts a call, with wrong results of some calls."""
    start = kind._start  # noqa: SLF001

    def started(engine: Any, arrays: Arrays) -> Callable[[], Logits]:  # noqa: ANN401
        wait = start(engine, arrays)
        faulty = engine.threads and wrong(arrays, engine.threads)
        return (lambda: -wait()) if faulty else wait

    return started


def _leaking_masks(_: BertModel, attention_mask: torch.Tensor, *__: object, **___: object) -> Any:  # noqa: ANN401
    if attention_mask.dim() > 2:  # noqa: PLR2004  (packed rows pass a bias)
        return attention_mask, None
    return (1 - attention_mask[:, None, None].float()) * LEAK, None


def inputs_changed(
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
) -> ModelChange:
    """Return a fault that changes the inputs of the embeddings, padded and packed."""

    def fault(model: Classifier, _: RunRows) -> None:
        embeddings = _bert(model).embeddings
        forward = embeddings.forward
        embeddings.forward = lambda **inputs: forward(**(inputs | change(inputs)))

    return fault


def types_swapped(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Exchange the type ids of the two texts."""
    return {"token_type_ids": 1 - inputs["token_type_ids"]}


def order_reversed(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Reverse the tokens between special tokens, which exchanges the texts of a pair."""
    ids_BT = inputs["input_ids"]
    words_BT = (ids_BT > SPECIAL_IDS) & (ids_BT.flip(-1) > SPECIAL_IDS)
    return {"input_ids": torch.where(words_BT, ids_BT.flip(-1), ids_BT)}


def positions_zeroed(share: float) -> ModelChange:
    """Return a fault that zeroes the positions from this share of the maximum length on."""

    def fault(model: Classifier, run_rows: RunRows) -> None:
        first = int(share * run_rows.manifest.input.max_length)
        _bert(model).embeddings.position_embeddings.weight.data[first:] = 0

    return fault


def class_shifted(model: Classifier, _: RunRows) -> None:
    """Add a constant to the logit of one class."""
    _head(model).bias.data[1] += 0.18


def classes_swapped(model: Classifier, _: RunRows) -> None:
    """Exchange two classes."""
    head = _head(model)
    order = [1, 0, *range(2, len(head.bias))]
    head.weight.data, head.bias.data = head.weight.data[order], head.bias.data[order]


def norms_smoothed(model: Classifier, _: RunRows) -> None:
    """Use an epsilon of 0.01 in all layer norms."""
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-2


def head_bias_lost(model: Classifier, _: RunRows) -> None:
    """Set the bias of the head to zero."""
    _head(model).bias.data[:] = 0


def unused_embeddings_scaled(most: int, factor: float) -> ModelChange:
    """Return a fault that scales embeddings of tokens that no dev row and no edge case has."""

    def fault(model: Classifier, run_rows: RunRows) -> None:
        rows = [row.encoding.ids for row in (*run_rows.dev, *run_rows.edge_cases)]
        weight = _bert(model).embeddings.word_embeddings.weight
        unused = np.setdiff1d(np.arange(SPECIAL_IDS, len(weight)), np.concatenate(rows))
        weight.data[unused[:most]] *= factor

    return fault


def largest_weights_negated(model: Classifier, _: RunRows) -> None:
    """Negate the largest weight of each channel of a layer, as 127 that overflows to -127."""
    weight_OI = _bert(model).encoder.layer[0].intermediate.dense.weight.data
    weight_OI[weight_OI.abs() == weight_OI.abs().amax(dim=1, keepdim=True)] *= -1


def channel_doubled(model: Classifier, _: RunRows) -> None:
    """Double the weights of a channel, as with a wrong scale."""
    _bert(model).encoder.layer[0].intermediate.dense.weight.data[0] *= 2


def last_norm_lost(model: Classifier, _: RunRows) -> None:
    """Remove the last layer norm."""
    _bert(model).encoder.layer[-1].output.LayerNorm = torch.nn.Identity()


def gelu_approximated(model: Classifier, _: RunRows) -> None:
    """Replace GELU by its approximation with tanh."""
    for layer in _bert(model).encoder.layer:
        layer.intermediate.intermediate_act_fn = torch.nn.GELU(approximate="tanh")


def queries_scaled(model: Classifier, _: RunRows) -> None:
    """Scale the queries of all layers by 1.02."""
    for layer in _bert(model).encoder.layer:
        layer.attention.self.query.weight.data *= 1.02


def pooled_state_changed(model: Classifier, _: RunRows) -> None:
    """Add half of the last token's state to the states that the head reads."""
    reader = _head(model) if model.per_token else _bert(model).pooler
    forward = reader.forward
    reader.forward = lambda states_BTH: forward(
        states_BTH + 0.5 * states_BTH[:, -1:].roll(1, dims=-1)
    )


class OtherTokenGathered(PackedClassifier):
    """Reads the token before the first of a text."""

    def forward(  # noqa: D102
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        segment_ids: torch.Tensor,
        text_index: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        entity_spans: torch.Tensor | None = None,
    ) -> torch.Tensor:
        before = torch.where(text_index > 0, text_index - 1, text_index)  # -1 is padding
        return super().forward(
            input_ids, position_ids, segment_ids, before, token_type_ids, entity_spans
        )


def dropout(rate: float) -> GraphChange:
    """Return a fault that emulates training mode: onnxruntime skips Dropout nodes."""

    def fault(graph: onnx.GraphProto) -> None:
        graph.initializer.append(numpy_helper.from_array(np.array(rate, np.float32), "rate"))
        source = graph.node[-1].input[0]
        _insert_before_last(
            graph,
            helper.make_node("RandomUniformLike", [source], ["random"]),
            helper.make_node("Greater", ["random", "rate"], ["kept"]),
            helper.make_node("Cast", ["kept"], ["scale"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [source, "scale"], ["dropped"]),
        )

    return fault


def noise_added(graph: onnx.GraphProto) -> None:
    """Add noise of 0.01 to the input of the last product."""
    source = graph.node[-1].input[0]
    _insert_before_last(
        graph,
        helper.make_node("RandomNormalLike", [source], ["noise"], scale=0.01),
        helper.make_node("Add", [source, "noise"], ["noisy"]),
    )


def _insert_before_last(graph: onnx.GraphProto, *nodes: onnx.NodeProto) -> None:
    """Insert nodes before the last node of a graph, which then reads the output of the last."""
    graph.node[-1].input[0] = nodes[-1].output[0]
    for node in nodes:
        graph.node.insert(len(graph.node) - 1, node)


def texts_in(counts: Container[int]) -> WrongCall:
    """Return whether a call has one of these numbers of texts."""
    return lambda arrays, _: len(arrays.get("text_index", arrays["input_ids"])) in counts


def longest_in(lengths: Container[int]) -> WrongCall:
    """Return whether the longest text of a call has one of these numbers of tokens."""

    def wrong(arrays: Arrays, _: int) -> bool:
        if "position_ids" in arrays:
            return int(arrays["position_ids"].max()) + 1 in lengths
        return int(arrays["attention_mask"].sum(axis=1).max()) in lengths

    return wrong


def tokens_above(most: int) -> WrongCall:
    """Return whether a call has more tokens, including padding."""
    return lambda arrays, _: arrays["input_ids"].size > most


def few_threads(_: Arrays, threads: int) -> bool:
    """Return whether an engine has one thread, or fewer than there are processors."""
    return threads < max(2, cpu_limit())


def case_kept(run: Path) -> None:
    """Change the tokenizer, with its digest, so that it keeps upper case."""
    manifest, path = read_manifest(run), run / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    if not tokenizer["normalizer"]["lowercase"]:
        message = f"{path}: expected a tokenizer that converts to lower case"
        raise CheckFailedError(message)
    tokenizer["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    input_ = manifest.input.model_copy(update={"tokenizer": record_file(run, path)})
    write_manifest(run, manifest.model_copy(update={"input": input_}))


def _bert(model: Classifier) -> Any:  # noqa: ANN401
    return model.encoder


def _head(model: Classifier) -> Any:  # noqa: ANN401
    return model.model.classifier


NO_FAULT = FaultyExporter()
FAULTS: Mapping[str, FaultyExporter] = {
    "type ids swapped": FaultyExporter(model=inputs_changed(types_swapped)),
    "order of tokens reversed": FaultyExporter(model=inputs_changed(order_reversed)),
    "positions of the second half zeroed": FaultyExporter(model=positions_zeroed(0.5)),
    "positions of the last eighth zeroed": FaultyExporter(model=positions_zeroed(0.875)),
    "one class shifted by 0.18": FaultyExporter(model=class_shifted),
    "two classes swapped": FaultyExporter(model=classes_swapped),
    "mask leaks (e^-5)": FaultyExporter(leaks=True),
    "embeddings of unused tokens times -3": FaultyExporter(
        model=unused_embeddings_scaled(MANY, -3)
    ),
    "bias of the head lost": FaultyExporter(model=head_bias_lost),
    "wrong pooling": FaultyExporter(model=pooled_state_changed, packed=OtherTokenGathered),
    "last layer norm lost": FaultyExporter(model=last_norm_lost),
    "dropout of 0.02 on": FaultyExporter(graph=dropout(0.02)),
    "GELU approximated by tanh": FaultyExporter(model=gelu_approximated),
    "queries scaled by 1.02": FaultyExporter(model=queries_scaled),
    "upper case kept by the tokenizer": FaultyExporter(run=case_kept),
    "layer norms with an epsilon of 0.01": FaultyExporter(model=norms_smoothed),
    "noise of 0.01": FaultyExporter(graph=noise_added),
}
# Faults of the conversion to a lower precision; the float32 graph is right.
LOWERED = (
    "GELU approximated by tanh",
    "queries scaled by 1.02",
    "layer norms with an epsilon of 0.01",
    "noise of 0.01",
)
STORED: Mapping[str, ModelChange] = {
    "embedding of an unused token times -3": unused_embeddings_scaled(1, -3),
    "embeddings of 20 unused tokens times -10": unused_embeddings_scaled(20, -10),
    "largest weights of a layer negated": largest_weights_negated,
    "one channel of a layer doubled": channel_doubled,
}
LOWERED_FAULTS: Mapping[str, FaultyExporter] = {
    f"{name}, after the conversion": replace(exporter, lowered=True)
    for name, exporter in (
        *((name, FAULTS[name]) for name in LOWERED),
        *((name, FaultyExporter(model=change)) for name, change in STORED.items()),
    )
}
WRONG_CALLS: Mapping[str, WrongCall] = {
    "wrong for 40 texts or more": texts_in(range(40, MANY)),
    "wrong for 65 texts or more": texts_in(range(65, MANY)),
    "wrong for 17 texts": texts_in({17}),
    "wrong if the longest text has 6, 7 or 9 tokens": longest_in({6, 7, 9}),
    "wrong if the longest text has 51 tokens": longest_in({51}),
    "wrong above 2,100 tokens": tokens_above(2100),
    "wrong with few threads": few_threads,
}
ENGINE_FAULTS: Mapping[str, FaultyExporter] = {
    name: FaultyExporter(wrong_call=wrong) for name, wrong in WRONG_CALLS.items()
}
