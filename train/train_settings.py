"""[train]: the loop."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pipework.settings import Fraction, Positive, Settings


class WantedPrecision(StrEnum):
    """Arithmetic of the forward pass; auto is bf16 where the processor multiplies in it."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"


class TrainSettings(Settings):
    """[train]: the loop. `warmup` is a share of all steps; `eval_every` counts steps.

    `token_dropout` is the share of tokens replaced by the mask token at each step, which keeps a
    model trained from scratch on few rows from learning them by heart.
    """

    epochs: Positive = 3
    max_steps: Positive | None = None
    batch_size: Positive = 32
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup: Fraction = 0.1
    label_smoothing: Fraction = 0.0
    token_dropout: Fraction = 0.0
    clip: Annotated[float, Field(gt=0)] = 1.0
    precision: WantedPrecision = WantedPrecision.AUTO
    eval_every: Positive | None = None
    seed: Annotated[int, Field(ge=0)] = 0
