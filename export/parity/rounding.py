"""The error of a correct conversion to a lower precision: the checkpoint with rounded numbers.

The limits of a lower precision must allow the rounding errors of any model, so they alone also pass
graphs with faults. A correct engine has errors of the same size as this checkpoint, which shares no
code with the exporter, for each class and in every range of lengths; a fault does not.

Shapes: N inputs, C classes, K inputs and M outputs of a layer.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipework.export.convert.checkpoint2onnx import strip_model_prefix
from pipework.machine import sums_int8
from pipework.progress import Progress
from pipework.run_folder.engine_record import LengthBand, Precision, Scaling, Tolerance
from pipework.scoring.logit_diff import STANDARD_ERRORS, Comparison
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task
from pipework.text.encoding import Encoding
from pipework.train.model.checkpoint_engine import CheckpointEngine
from pipework.train.model.classifier import Classifier

SMOOTHING = 0.95  # share of the difference between channels that moves into the weights
MEASURED_BAND_INPUTS = 16  # rounding errors are measured in length bands of at least this many
MIN_ERROR = 0.1  # rms below this multiple of `mean_abs` is not compared
GROUP = 128  # values of a token or column that share a scale in grouped layers
EMBEDDING_ROWS = 1000  # smaller tables are not int8


@dataclass(frozen=True, kw_only=True)
class NumberFormat:
    """The numbers that an engine computes with.

    Attributes:
        precision: its precision.
        scaling: scaling of the inputs of int8 layers.
        int8_layers: module paths of the linear layers in int8. Those of a head stay in float32.
    """

    precision: Precision
    scaling: Scaling | None = None
    int8_layers: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundingError:
    """Outputs of the checkpoint in float32 and with rounded numbers, and lengths, [N].

    The first `labelled` inputs are texts, the others are the rows of the vocabulary.
    """

    task: Task
    labelled: int
    lengths_N: NDArray[np.int64]
    expected: Outputs
    rounded: Outputs

    def limits(self, tolerance: Tolerance) -> Tolerance:
        """Return a tolerance with the limits by class and length that its ratios give."""
        if tolerance.error_ratio is None or tolerance.bias_ratio is None:
            return tolerance
        comparison = Comparison.of(
            self.task,
            expected=self.expected,
            found=self.rounded,
            inputs=np.arange(len(self.lengths_N)),
            lengths=self.lengths_N,
            labelled=self.labelled,
        )
        least, unit = MIN_ERROR * tolerance.mean_abs, comparison.unit

        def limits(ratio: float, rms_C: NDArray[np.float64]) -> tuple[float, ...]:
            return tuple(float(f"{ratio * max(rms, least):.4g}") for rms in rms_C / unit)

        bands: list[LengthBand] = []
        for start, end in pairwise((0, *_bands(self.lengths_N))):
            rms_C = comparison.band_rms(start, end, STANDARD_ERRORS)
            bands.append(LengthBand(longest=end, rms=limits(tolerance.error_ratio, rms_C)))
        bias = limits(tolerance.bias_ratio, comparison.rms)
        return tolerance.model_copy(update={"bands": tuple(bands), "bias": bias})


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundedCheckpoint:
    """Simulates each number format once, when its errors are first needed.

    Attributes:
        reference: the checkpoint in float32.
        encodings: N inputs.
        expected: the outputs of the checkpoint in float32 for them.
        labelled: number of texts; the later inputs are the rows of the vocabulary.
        calibration: returns the inputs that calibrate static int8.
        task: the task of the run.
        progress: receives the finished inputs.
        done: the errors of the formats that have been simulated.
    """

    reference: CheckpointEngine
    encodings: Sequence[Encoding]
    expected: Outputs
    labelled: int
    calibration: Callable[[], Sequence[Encoding]]
    task: Task
    progress: Progress
    done: dict[NumberFormat, RoundingError] = field(default_factory=dict)

    def error(self, number_format: NumberFormat) -> RoundingError:
        """Return the rounding error of a number format.

        Raises:
            DataError: the inputs that calibrate static int8 are missing.
        """
        if number_format not in self.done:
            engine = _rounded_engine(self.reference, self.calibration, number_format)
            with self.progress.stage("rounded checkpoint", len(self.encodings), "rows"):
                self.done[number_format] = RoundingError(
                    task=self.task,
                    labelled=self.labelled,
                    lengths_N=np.array([len(encoding) for encoding in self.encodings], np.int64),
                    expected=self.expected,
                    rounded=engine.infer(self.encodings),
                )
                self.progress.advance(len(self.encodings))
        return self.done[number_format]


def _rounded_engine(
    reference: CheckpointEngine,
    calibration: Callable[[], Sequence[Encoding]],
    number_format: NumberFormat,
) -> CheckpointEngine:
    if number_format.scaling is not Scaling.STATIC:  # the others need no calibration
        return reference.with_model(lambda model: rounded(model, number_format))
    inputs: list[StaticInput] = []

    def observed(model: Classifier) -> Classifier:
        model = copy.deepcopy(model)
        _round_embeddings(model)
        layers = _linear_layers(model, number_format.int8_layers)
        inputs.extend(StaticInput(layer) for layer in layers)
        return model

    engine = reference.with_model(observed)
    engine.infer(calibration())
    for input_ in inputs:
        input_.calibrated()
    return engine


def _linear_layers(model: nn.Module, paths: frozenset[str]) -> list[nn.Linear]:
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and strip_model_prefix(name) in paths
    ]


class StaticInput:
    """Rounds the inputs of a linear layer to int8 with one scale, and its weights per column.

    Until it is calibrated, it finds the range of each channel. As in SmoothQuant (Xiao et al. 2023,
    arXiv:2211.10438), factors move the differences between channels into the weights. The mean of
    each channel is not rounded: its product with the float32 weights is added to the output.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer
        self._low_K = torch.full((layer.in_features,), torch.inf, device=layer.weight.device)
        self._high_K = -self._low_K
        self._mean_K, self._calls = torch.zeros_like(self._low_K), 0
        self._factor_K, self._scale = torch.ones_like(self._low_K), 0.0
        layer.register_forward_pre_hook(self)

    def __call__(self, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        """Return the rounded inputs."""
        values = inputs[0]
        if not self._scale:
            values_SK = values.detach().reshape(-1, values.shape[-1])
            self._low_K = torch.minimum(self._low_K.to(values.device), values_SK.amin(dim=0))
            self._high_K = torch.maximum(self._high_K.to(values.device), values_SK.amax(dim=0))
            self._calls += 1
            self._mean_K = self._mean_K.to(values.device)
            self._mean_K += (values_SK.mean(dim=0) - self._mean_K) / self._calls
            return (values,)
        factor_K = self._factor_K.to(values.device)  # the model may have moved to the CPU
        mean_K = self._mean_K.to(values.device)
        integers = torch.round((values - mean_K) / (factor_K * self._scale)).clamp(-127, 127)
        return (integers * self._scale * factor_K,)

    def calibrated(self) -> None:
        """Fix the scale and round the weights; a layer without inputs stays in float32."""
        if not (self._high_K > self._low_K).any():
            return
        weight_MK = self._layer.weight.data
        range_K = torch.maximum(self._high_K - self._mean_K, self._mean_K - self._low_K)
        offset_M = weight_MK @ self._mean_K
        reach_K, weight_K = (
            torch.maximum(max_K, 1e-5 * max_K.max())
            for max_K in (range_K, weight_MK.abs().amax(dim=0))
        )
        self._factor_K = reach_K**SMOOTHING / weight_K ** (1 - SMOOTHING)
        self._scale = float((range_K / self._factor_K).max()) / 127
        smoothed_MK = _integers(weight_MK * self._factor_K, _largest_weight())
        self._layer.weight.data = smoothed_MK / self._factor_K
        self._layer.register_forward_hook(lambda _, __, output: output + offset_M.to(output.device))


def rounded(model: Classifier, number_format: NumberFormat) -> Classifier:
    """Return a copy of a model that computes in float32 with rounded numbers.

    In int8, linear layers round their inputs per token and their weights per column; grouped
    scaling also has a scale per group of inputs. In the other precisions, all layers round their
    weights and outputs.
    """
    model = copy.deepcopy(model)
    if number_format.precision is not Precision.INT8:
        bf16 = number_format.precision is Precision.BF16
        for module in model.modules():
            if not any(True for _ in module.children()):
                _round_float(module, torch.bfloat16 if bf16 else torch.float16)
        return model
    group = GROUP if number_format.scaling is Scaling.GROUPED else -1
    for layer in _linear_layers(model, number_format.int8_layers):
        layer.weight.data = _by_group(layer.weight.data, _largest_weight(), group)
        layer.register_forward_pre_hook(lambda _, inputs: (_by_group(inputs[0], 127, group),))
    if number_format.scaling is not Scaling.GROUPED:
        _round_embeddings(model)
    return model


def _round_embeddings(model: nn.Module) -> None:
    """Round large embedding tables to int8 per row."""
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings >= EMBEDDING_ROWS:
            module.weight.data = _integers(module.weight.data, 127)


def _largest_weight() -> int:
    return 127 if sums_int8() else 63  # as the quantizer, on a processor like this one


def _by_group(values: torch.Tensor, largest: int, group: int) -> torch.Tensor:
    """Round values to integers times a scale for each group of the last dimension; -1: all."""
    shape = (1, -1) if group < 0 else (-1, group)
    return _integers(values.reshape(*values.shape[:-1], *shape), largest).flatten(-2)


def _integers(values: torch.Tensor, largest: int) -> torch.Tensor:
    """Round values to integers times a scale for each vector of the last dimension."""
    scale = values.abs().amax(dim=-1, keepdim=True).clamp(min=1e-9) / largest
    return torch.round(values / scale) * scale


def _round_float(module: nn.Module, dtype: torch.dtype) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.data = _as(parameter.data, dtype)
    # Recurrent layers return tuples, whose tensors are rounded by the layers that read them.
    module.register_forward_hook(
        lambda _, __, output: _as(output, dtype) if isinstance(output, torch.Tensor) else output
    )


def _as(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not values.is_floating_point():
        return values
    numbers = values.to(dtype).to(values.dtype)
    return torch.where(numbers.isfinite(), numbers, values)  # as layers that overflow float16


def _bands(lengths_N: NDArray[np.int64]) -> list[int]:
    """Return the longest length of each band; bands end at powers of two and have enough inputs."""
    longest = int(lengths_N.max())
    ends = [2**power for power in range(2, 20) if 2**power < longest] + [longest]
    bands: list[int] = []
    for end in ends:
        start = bands[-1] if bands else 0
        if ((lengths_N > start) & (lengths_N <= end)).sum() >= MEASURED_BAND_INPUTS:
            bands.append(end)
    return [*bands[:-1], longest]
