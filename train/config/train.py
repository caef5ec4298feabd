"""Settings of [train], [pretrain] and [tune]: loop, optimizer, pretraining, search of settings."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from pipework.settings import AboveZero, Fraction, NotNegative, Positive, Settings

WARMUP = 0.1
Share = Annotated[float, Field(gt=0, le=1)]
Weight = Annotated[float, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Runs = Annotated[
    tuple[Path, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


class TrainPrecision(StrEnum):
    """Precision of the forward pass; auto is bf16 if the processor supports it, else fp32."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class OptimizerName(StrEnum):
    """The optimizer, from torch.optim."""

    ADAMW = "adamw"
    SGD = "sgd"
    ADAFACTOR = "adafactor"


class ScheduleName(StrEnum):
    """The schedule of the learning rate after the warmup."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_RESTARTS = "cosine_restarts"
    POLYNOMIAL = "polynomial"
    STEP = "step"
    MULTI_STEP = "multi_step"
    EXPONENTIAL = "exponential"


class TrainSettings(Settings):
    """[train]: the training loop. train/README.md explains each key.

    A step is one update of the weights with `batch_size` x `accumulate` rows, for any number of
    processes: each batch is split between them. Rows of `data.unlabelled` are learned only from the
    teachers, and count as rows of an epoch. Checkpoints for --resume are written at each
    evaluation, every `save_every` steps and every `save_minutes`.
    """

    epochs: Positive = 3
    max_steps: Positive | None = None
    batch_size: Positive = 32
    accumulate: Positive = 1

    optimizer: OptimizerName = OptimizerName.ADAMW
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    eps: AboveZero = 1e-8
    momentum: Fraction = 0.9
    layer_decay: Share = 1.0
    reinit_layers: Annotated[int, Field(ge=0)] = 0
    clip: Annotated[float, Field(gt=0)] = 1.0

    schedule: ScheduleName = ScheduleName.LINEAR
    warmup: Fraction = WARMUP
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    cycles: Positive = 2
    eta_min: NotNegative = 0.0
    power: Annotated[float, Field(gt=0)] = 2.0
    gamma: Share = 0.5
    step_size: Positive | None = None
    milestones: tuple[Fraction, ...] = (0.5, 0.75)

    label_smoothing: Fraction = 0.0
    class_weights: Literal["equal", "balanced"] | tuple[Weight, ...] = "equal"
    token_dropout: Fraction = 0.0
    window_stride: Annotated[int, Field(ge=0)] | None = None

    teacher: Runs = ()
    temperature: Weight = 2.0
    soft_weight: Share = 0.7
    teacher_margin: Annotated[float, Field(ge=0, lt=100)] = 1.0

    precision: TrainPrecision = TrainPrecision.AUTO
    loss_scale: AboveZero | None = None
    tf32: bool = True
    compile: bool = False
    gradient_checkpointing: bool = False
    optimizer_on_cpu: bool = False

    eval_every: Positive | None = None
    save_every: Positive | None = None
    save_minutes: Annotated[float, Field(gt=0)] = 10.0
    keep: Positive = 1
    keep_every: Positive | None = None
    early_stop: Positive | None = None
    histograms: bool = False
    calibrate: bool = True
    report: bool = True
    seed: Seed = 0
    seeds: tuple[Seed, ...] = ()

    @model_validator(mode="after")
    def _distinct_seeds(self) -> Self:
        if len(set(self.seeds)) != len(self.seeds):
            message = f"expected distinct train.seeds, found {list(self.seeds)}"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _rates_fit(self) -> Self:
        # The default share is written to config.toml too, so it may be present.
        if self.warmup_steps is not None and self.warmup != WARMUP:
            message = "expected one of train.warmup (a share) and train.warmup_steps, found both"
            raise ValueError(message)
        if self.eta_min > self.learning_rate:
            message = (
                f"expected train.eta_min of at most train.learning_rate {self.learning_rate:g}, "
                f"found {self.eta_min:g}"
            )
            raise ValueError(message)
        cosine = (ScheduleName.COSINE, ScheduleName.COSINE_RESTARTS)
        for name, needed, found in (
            ("eta_min", cosine, self.schedule if self.eta_min else None),
            ("step_size", (ScheduleName.STEP,), self.schedule if self.step_size else None),
            ("loss_scale", (TrainPrecision.FP16,), self.precision if self.loss_scale else None),
        ):
            if found is not None and found not in needed:
                setting = "precision" if name == "loss_scale" else "schedule"
                message = f"train.{name} needs train.{setting} {' or '.join(needed)}, found {found}"
                raise ValueError(message)
        return self


def _check_sum(weights: tuple[float, ...]) -> tuple[float, ...]:
    if not any(weights):
        message = "expected at least one weight above 0"
        raise ValueError(message)
    return weights


Weights = Annotated[tuple[NotNegative, ...], AfterValidator(_check_sum)]


class PretrainSettings(Settings):
    """[pretrain]: masked language modelling and sentence order prediction.

    Texts longer than `model.max_length` are split, and whole words are masked, as by Devlin et al.
    2019, https://arxiv.org/abs/1810.04805. In scripts without spaces each token counts as a word:
    the default of `characters` is MacBERT's (Cui et al. 2020, https://arxiv.org/abs/2004.13922).
    ALBERT uses 6, 3, 2 for both, which is 1/n (Lan et al. 2020, https://arxiv.org/abs/1909.11942).

    Attributes:
        row_tokens: tokens of a packed row, at least `model.max_length`; `train.batch_size` counts
            these rows.
        mask_rate: share of tokens to predict: 80 % masked, 10 % replaced by a random token, 10 %
            unchanged.
        words: weights of masking 1, 2, ... neighbouring words.
        characters: the same for tokens in scripts without spaces (MacBERT's weights).
        sentence_order: with `data.format = documents`, predict whether two neighbouring segments
            were swapped.
    """

    row_tokens: Positive = 128
    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    words: Weights = (1.0,)
    characters: Weights = (4.0, 3.0, 2.0, 1.0)
    sentence_order: bool = True


class TuneSettings(Settings):
    """[tune]: the search of `pipe tune`; `pipe train` ignores this section.

    Each further key names a setting and has the values to try: `train.learning_rate = { low = 1e-5,
    high = 1e-3, log = true }`, `train.epochs = { low = 2, high = 6 }` or `model.head = ["linear",
    "cnn"]`. They are checked by `pipework.train.tune.search_space`.

    Attributes:
        trials: number of trials; `--trials` overrides it.
        seeds: number of seeds for the final runs of the best trials and of the unchanged config;
            they follow `train.seed`, which all trials have. `--seeds` overrides it.
    """

    model_config = ConfigDict(extra="allow")

    trials: Positive = 20
    seeds: Annotated[int, Field(ge=2)] = 3
