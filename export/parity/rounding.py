"""The error of a correct conversion to a lower precision: the checkpoint with rounded numbers.

The limits of a lower precision must allow the rounding errors of any model, so they alone also pass
graphs with faults. A correct engine has errors of the same size as this checkpoint, which shares no
code with the exporter, for each class and in every range of lengths; a fault does not.

Shapes: N inputs, C classes, K inputs and M outputs of a layer.
"""

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipework.cpu import sums_int8
from pipework.progress import Progress
from pipework.run_folder.engine_record import LengthBand, Precision, Tolerance
from pipework.run_folder.task import Task
from pipework.scoring.logit_diff import Comparison
from pipework.text.encoding import Encoding
from pipework.train.model.checkpoint_engine import CheckpointEngine
from pipework.train.model.classifier import Classifier

BAND_INPUTS = 16  # a band has at least this many inputs
MIN_ERROR = 0.1  # rms below this multiple of `mean_abs` is not compared
EMBEDDING_ROWS = 1000  # smaller tables are not int8


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundingError:
    """Logits of the checkpoint in float32 and with rounded numbers, [N, C], and lengths, [N]."""

    task: Task
    lengths_N: NDArray[np.int64]
    expected_NC: NDArray[np.float32]
    rounded_NC: NDArray[np.float32]

    def limits(self, tolerance: Tolerance) -> Tolerance:
        """Return a tolerance with the limits by class and length that its ratios give."""
        if tolerance.error_ratio is None or tolerance.bias_ratio is None:
            return tolerance
        comparison = Comparison(
            task=self.task,
            expected_XC=self.expected_NC,
            found_XC=self.rounded_NC,
            input_X=np.arange(len(self.lengths_N)),
            lengths_X=self.lengths_N,
        )
        least, unit = MIN_ERROR * tolerance.mean_abs, comparison.unit
        bands: list[LengthBand] = []
        for longest in _bands(self.lengths_N):
            rms = max(comparison.band_rms(bands[-1].longest if bands else 0, longest) / unit, least)
            bands.append(LengthBand(longest=longest, rms=tolerance.error_ratio * rms))
        overall = max(comparison.band_rms(0, int(self.lengths_N.max())) / unit, least)
        bias = tolerance.bias_ratio * overall
        return tolerance.model_copy(update={"bands": tuple(bands), "bias": bias})


def rounding_errors(
    reference: CheckpointEngine,
    encodings: Sequence[Encoding],
    expected_NC: NDArray[np.float32],
    task: Task,
    precisions: Collection[Precision],
    progress: Progress,
) -> dict[Precision, RoundingError]:
    """Return the rounding error of each precision but float32.

    Args:
        reference: the checkpoint in float32.
        encodings: N inputs.
        expected_NC: the logits of `reference` for them.
        task: the task of the run.
        precisions: the precisions to simulate.
        progress: receives the finished precisions.
    """
    simulated = sorted({*precisions} - {Precision.FP32})
    lengths_N = np.array([len(encoding) for encoding in encodings], np.int64)
    errors = {}
    progress.begin("rounded checkpoint", len(simulated) * len(encodings), "rows")
    for precision in simulated:
        engine = reference.with_model(lambda model: rounded(model, precision))  # noqa: B023
        errors[precision] = RoundingError(
            task=task,
            lengths_N=lengths_N,
            expected_NC=expected_NC,
            rounded_NC=engine.infer(encodings),
        )
        progress.advance(len(encodings))
    progress.end()
    return errors


def rounded(model: Classifier, precision: Precision) -> Classifier:
    """Return a copy of a model that computes in float32 with numbers rounded to a precision.

    In int8, linear layers round their inputs per token and their weights per column, and large
    embedding tables are rounded per row. In the other precisions, all layers round their weights
    and outputs.
    """
    model = copy.deepcopy(model)
    for module in model.modules():
        if any(True for _ in module.children()):
            continue
        if precision is Precision.INT8:
            _round_int8(module)
        else:
            _round_float(module, torch.bfloat16 if precision is Precision.BF16 else torch.float16)
    return model


def _round_int8(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        largest = 127 if sums_int8() else 63  # as the quantizer, on a processor like this one
        module.weight.data = _integers(module.weight.data, largest)
        module.register_forward_pre_hook(lambda _, inputs: (_integers(inputs[0], 127),))
    elif isinstance(module, nn.Embedding) and module.num_embeddings >= EMBEDDING_ROWS:
        module.weight.data = _integers(module.weight.data, 127)


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
        if ((lengths_N > start) & (lengths_N <= end)).sum() >= BAND_INPUTS:
            bands.append(end)
    return [*bands[:-1], longest]
