"""A pretraining run from config to manifest."""

import numpy as np
import torch
from tokenizers import Tokenizer

from pipework.machine import collect_and_trim
from pipework.run_folder.manifest import Manifest
from pipework.train.data.batches import Rows
from pipework.train.data_report.data_report import UNLIMITED
from pipework.train.loop.loop import LoopSpec, TrainingRun
from pipework.train.loop.resume import Snapshot, TrainState
from pipework.train.loop.step import StepSpec
from pipework.train.loop.training import run_loop
from pipework.train.model.classifier import unused_parameters
from pipework.train.model.families import checkpoint_activations
from pipework.train.model.fast_dropout import use_fast_dropout
from pipework.train.prepare import PreparedRun, checked_data_report
from pipework.train.pretrain.evaluator import PretrainEvaluator
from pipework.train.pretrain.finalize import finalize
from pipework.train.pretrain.loaders import PretrainLoaders, has_pairs, open_loaders
from pipework.train.pretrain.model import PretrainModel, build_pretrain_model


def pretrain(run: TrainingRun, prepared: PreparedRun, snapshot: Snapshot | None) -> Manifest:
    """Pretrain in every process of the world.

    Raises:
        PipeError: as `train.run.train`.
    """
    encoder = prepared.encoder(UNLIMITED, type_ids=False)  # long texts are split, not truncated
    report = checked_data_report(run, prepared, encoder)
    loaders, state = _train(run, prepared, snapshot)
    collect_and_trim()  # frees the model and its optimizer: the checkpoint is loaded again
    return run.world.lead(lambda: finalize(run, prepared, loaders, report, state))


def _train(
    run: TrainingRun, prepared: PreparedRun, snapshot: Snapshot | None
) -> tuple[PretrainLoaders, TrainState]:
    """Train from the beginning or a checkpoint; return the inputs and the final state."""
    model = _model(run, prepared)
    loaders = open_loaders(run, prepared.tokenizer, model.padding)
    rows = loaders.corpus
    # Rows are full, so they have about the same number of masked tokens: the mean over rows is
    # proportional to the mean over tokens.
    tokens = len(rows.ids) * run.config.pretrain.mask_rate / len(rows)
    model.scales = (1 / tokens, len(rows) / max(1, rows.pairs))
    for name in unused_parameters(model, loaders.train.inputs(np.array([0]))):
        model.get_parameter(name).requires_grad_(False)
    step = StepSpec(model=model, layers=model.layers(), loader=loaders.train, losses=_of_model)
    evaluator = PretrainEvaluator(loader=loaders.dev, world=run.world, progress=run.progress)
    loop = LoopSpec(model=model, step=step, evaluator=evaluator, numbered=True)
    state, _ = run_loop(run, loop, prepared.fingerprint, snapshot)
    return loaders, state


def _of_model(logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
    del rows_B
    return logits_BC  # the losses, which the model computes itself


def _model(run: TrainingRun, prepared: PreparedRun) -> PretrainModel:
    config = run.config
    device = run.world.device
    tokenizer = Tokenizer.from_str(prepared.tokenizer)
    model = build_pretrain_model(config.model, tokenizer, order=has_pairs(config)).to(device)
    if device.type == "cpu":
        use_fast_dropout(model.model)
    if config.train.gradient_checkpointing:
        checkpoint_activations(model.model)
    return model
