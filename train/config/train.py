"""[train]: the loop, its optimizer and what it keeps."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pipework.settings import Fraction, Positive, Settings

Share = Annotated[float, Field(gt=0, le=1)]
Weight = Annotated[float, Field(gt=0)]
Runs = Annotated[
    tuple[Path, ...], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)
]


class WantedPrecision(StrEnum):
    """Arithmetic of the forward pass; auto is bf16 where the processor multiplies in it."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class OptimizerName(StrEnum):
    """What changes the weights; all from torch.optim."""

    ADAMW = "adamw"
    SGD = "sgd"
    ADAFACTOR = "adafactor"


class ScheduleName(StrEnum):
    """How the learning rate goes after the warmup."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_RESTARTS = "cosine_restarts"
    POLYNOMIAL = "polynomial"
    STEP = "step"
    MULTI_STEP = "multi_step"
    EXPONENTIAL = "exponential"


class TrainSettings(Settings):
    """[train]: the loop. A step is one change of the weights.

    Rows: a step learns from `batch_size` x `accumulate` rows, whatever the number of processes:
    each batch is cut across them. `eval_every` and `save_every` count steps.

    Learning rate: `warmup` is a share of all steps. `cycles` belongs to cosine_restarts, `power`
    to polynomial, `gamma` to step, multi_step and exponential, and `milestones`, shares of all
    steps, to multi_step; step and exponential multiply by `gamma` after each epoch. `layer_decay`
    multiplies the rate of each layer below the head once more. `reinit_layers` top layers of a
    checkpoint begin with new weights, and its pooler with them.

    Rows and labels: `token_dropout` is the share of tokens replaced by the mask token at each
    step, which keeps a model trained from scratch on few rows from learning them by heart.
    `class_weights` weigh the loss of a row by its class: balanced, or one weight a label. In a
    multi-label task they weigh the rows that have the label.

    Teachers: `teacher` names finished runs of the same task, or folders of seeds, whose answers are
    learned beside the labels: several are averaged. `soft_weight` is the share of the loss that is
    theirs, and `temperature` softens the probabilities of both sides; a number has none. Rows of
    `data.unlabelled` are learned from the teachers alone, and count as rows of an epoch.

    Checkpoints for --resume are written at each evaluation, every `save_every` steps and every
    `save_minutes`; the last `keep` stay until the run is complete. `early_stop` ends a run after
    so many evaluations without a better score. `seeds` trains once with each. `report` writes
    report.html, with a linear model trained on the same rows to compare with.
    """

    epochs: Positive = 3
    max_steps: Positive | None = None
    batch_size: Positive = 32
    accumulate: Positive = 1

    optimizer: OptimizerName = OptimizerName.ADAMW
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    momentum: Fraction = 0.9
    layer_decay: Share = 1.0
    reinit_layers: Annotated[int, Field(ge=0)] = 0
    clip: Annotated[float, Field(gt=0)] = 1.0

    schedule: ScheduleName = ScheduleName.LINEAR
    warmup: Fraction = 0.1
    cycles: Positive = 2
    power: Annotated[float, Field(gt=0)] = 2.0
    gamma: Share = 0.5
    milestones: tuple[Fraction, ...] = (0.5, 0.75)

    label_smoothing: Fraction = 0.0
    class_weights: Literal["equal", "balanced"] | tuple[Weight, ...] = "equal"
    token_dropout: Fraction = 0.0

    teacher: Runs = ()
    temperature: Weight = 2.0
    soft_weight: Share = 0.7

    precision: WantedPrecision = WantedPrecision.AUTO
    tf32: bool = True
    compile: bool = False
    gradient_checkpointing: bool = False
    optimizer_on_cpu: bool = False

    eval_every: Positive | None = None
    save_every: Positive | None = None
    save_minutes: Annotated[float, Field(gt=0)] = 10.0
    keep: Positive = 1
    early_stop: Positive | None = None
    histograms: bool = False
    report: bool = True
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = ()

    @model_validator(mode="after")
    def _distinct_seeds(self) -> Self:
        if len(set(self.seeds)) != len(self.seeds):
            message = f"expected distinct train.seeds, found {list(self.seeds)}"
            raise ValueError(message)
        return self


NonNegative = Annotated[float, Field(ge=0)]
Weights = Annotated[tuple[NonNegative, ...], Field(min_length=1)]


class PretrainSettings(Settings):
    """[pretrain]: masked language modelling, and the order of two segments.

    `row_tokens` are laid side by side in a row, which `train.batch_size` counts; no row is narrower
    than `model.max_length`, the tokens that a text may have before it is cut into several.

    `mask_rate` of the tokens of a row are to be told, 80 % of them hidden by the mask token, 10 %
    by a token drawn by chance and 10 % not at all (Devlin et al. 2019,
    https://arxiv.org/abs/1810.04805). Words are hidden whole; `words` weighs runs of 1, 2, ... of
    them. In writing without spaces each token counts as a word, and `characters` weighs runs of 1,
    2, ... tokens: the default is MacBERT's (Cui et al. 2020, https://arxiv.org/abs/2004.13922).
    ALBERT has 6, 3, 2 for both, which is 1/n (Lan et al. 2020, https://arxiv.org/abs/1909.11942).

    `sentence_order`: where data.format is documents, tell whether two segments that follow one
    another were swapped (ALBERT's).
    """

    row_tokens: Positive = 128
    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    words: Weights = (1.0,)
    characters: Weights = (4.0, 3.0, 2.0, 1.0)
    sentence_order: bool = True
