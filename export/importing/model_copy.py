"""The copy of a foreign model in a run folder: weights, tokenizer and their records."""

from pathlib import Path

from pipework.export.importing.comparison import ImportedModel
from pipework.export.importing.source_checks import is_decoder
from pipework.export.importing.source_model import SourceModel
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import Input, Model
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.task import Task
from pipework.text.encoding import TextEncoder
from pipework.text.padding import Padding
from pipework.text.special_tokens import matching_special_tokens
from pipework.train.model import checkpoint
from pipework.train.model.checkpoint_engine import CheckpointEngine
from pipework.train.model.classifier import open_checkpoint, padding_of
from pipework.train.run_folder import TOKENIZER


def copy_source(
    source: SourceModel, folder: Path, pair: bool, max_length: int, special_tokens: bool
) -> Input:
    """Write weights and tokenizer into the run folder; return the record of the input.

    Args:
        source: the opened source.
        folder: the run folder.
        pair: whether an input is two texts.
        max_length: tokens of an input.
        special_tokens: whether special tokens in texts are read as tokens; the pad token stays
            text, except in a decoder.
    """
    padding = padding_of(source.classifier)
    tokenizer = source.tokenizer
    if special_tokens:
        # The head of a decoder skips pad tokens at the end, and prompts often end with that token.
        as_text = () if is_decoder(source.classifier.config) else (padding.pad_id,)
        tokenizer = matching_special_tokens(tokenizer, as_text)
    tokenizer.save(str(folder / TOKENIZER))
    input_ = Input(
        fields=("text", "text_pair") if pair else ("text",),
        tokenizer=record_file(folder, folder / TOKENIZER),
        max_length=max_length,
        pad_id=padding.pad_id,
        type_ids=source.type_ids,
        pad_type_id=padding.pad_type_id,
        pad_left=padding.left,
    )
    source.classifier.save(folder / checkpoint.FOLDER)
    checkpoint.add_tokenizer(folder, input_)
    return input_


def open_copy(task: Task, form: Input, folder: Path) -> ImportedModel:
    """Open the weights and the tokenizer that `copy_source` wrote."""
    model = open_checkpoint(folder / checkpoint.FOLDER)
    return ImportedModel(
        task=task,
        encoder=TextEncoder.open(
            folder / TOKENIZER, max_length=form.max_length, type_ids=form.type_ids
        ),
        engine=CheckpointEngine(model, padding=Padding.of(form), row_offsets=task.row_offsets),
        has_bias=model.has_bias,
    )


def model_record(source: SourceModel, folder: Path, calibration: LogitScale | None) -> Model:
    """Return the record of the copied checkpoint, after the calibration of its weights."""
    classifier = source.classifier
    if calibration is not None:
        classifier.calibrate(calibration)
        classifier.save(folder / checkpoint.FOLDER)
    return Model(
        family=str(classifier.config.model_type),
        head=classifier.settings.head,
        base=source.name,
        parameters=sum(parameter.numel() for parameter in classifier.parameters()),
        dtype="float32",
        checkpoint=checkpoint.records(folder),
        calibration=calibration,
    )
