"""Wrong settings of `pipe train` and wrong ranges of `pipe tune`."""

import shlex

from tests.end_to_end.wrong_inputs.wrong_input import (
    TRAIN_COMMAND,
    WrongInput,
    outside,
    refused,
    settings,
)

SETTINGS = {
    "an eps of 0": outside("train.eps=0", "greater than 0"),
    "a trial without rows": outside("data.rows=0", "greater than or equal to 1"),
    "weights of every 0 steps": outside("train.keep_every=0", "greater than or equal to 1"),
    "a setting without value": settings(
        "train.epochs", "--set train.epochs: expected section.key=value"
    ),
    "a setting with an empty part": settings(
        "train..epochs=3", "--set train..epochs=3: expected section.key=value"
    ),
    "a key below a value": settings(
        "train.epochs.more=3", "train.epochs.more: epochs is a value, not a section"
    ),
    "a value for a section": outside("train=3", "a valid dictionary or instance of TrainSettings"),
    "an unknown key": settings("train.epochz=3", "--set train.epochz: unknown key"),
    "a key in the wrong section": settings("model.epochs=3", "--set model.epochs: unknown key"),
    "a word as number": outside(
        "train.epochs=three", "a valid integer, unable to parse string as an integer"
    ),
    "no epochs": outside("train.epochs=0", "greater than or equal to 1"),
    "half an epoch": outside(
        "train.epochs=0.5", "a valid integer, got a number with a fractional part"
    ),
    "true as a number": settings(
        "train.batch_size=true", "--set train.batch_size: expected no boolean, found True"
    ),
    "no rows in a batch": outside("train.batch_size=0", "greater than or equal to 1"),
    "no learning rate": outside("train.learning_rate=0", "greater than 0"),
    "a learning rate that is no number": outside("train.learning_rate=nan", "a finite number"),
    "an unknown schedule": outside(
        "train.schedule=cosin",
        "'constant', 'linear', 'cosine', 'cosine_restarts', 'polynomial', "
        "'step', 'multi_step' or 'exponential'",
    ),
    "one beta": settings("train.betas=[0.9]", "--set train.betas.1: Field required, found [0.9]"),
    "a beta of 1": settings(
        "train.betas=[0.9, 1.0]", "--set train.betas.1: Input should be less than 1, found 1.0"
    ),
    "a milestone above 1": settings(
        "train.milestones=[0.5, 1.5]",
        "--set train.milestones.1: Input should be less than 1, found 1.5",
    ),
    "a warmup of all steps": outside("train.warmup=1.0", "less than 1"),
    "no cycles": outside("train.cycles=0", "greater than or equal to 1"),
    "a gamma above 1": outside("train.gamma=1.5", "less than or equal to 1"),
    "no steps": outside("train.max_steps=0", "greater than or equal to 1"),
    "no patience": outside("train.early_stop=0", "greater than or equal to 1"),
    "a seed twice": settings(
        "train.seeds=[1, 1]", "config.toml: train: expected distinct train.seeds, found [1, 1]"
    ),
    "a negative seed": outside("train.seed=-1", "greater than or equal to 0"),
    "a huge seed": outside("train.seed=99999999999999999999", "less than 4294967296"),
    "negative weights of classes": settings(
        "train.class_weights=[1, -1]",
        "--set train.class_weights.literal['equal','balanced']: Input should be "
        "'equal' or 'balanced', found [1, -1]",
    ),
    "too many weights of classes": settings(
        "train.class_weights=[1, 1, 1]", "train.class_weights: found 3 weights for 2 labels"
    ),
    "an unknown way to weight classes": settings(
        "train.class_weights=equally",
        "--set train.class_weights.literal['equal','balanced']: Input should be "
        "'equal' or 'balanced', found 'equally'",
    ),
    "a preset and a checkpoint": settings(
        "model.name=x",
        "config.toml: model: expected one of model.name (hub id or folder) and "
        "model.preset; --set model.preset= removes a key",
    ),
    "neither preset nor checkpoint": settings(
        "model.preset=",
        "config.toml: model: expected one of model.name (hub id or folder) and "
        "model.preset; --set model.preset= removes a key",
    ),
    "an unknown head": outside(
        "model.head=mlp", "'linear', 'cnn', 'lstm', 'gru', 'entity' or 'pooling'"
    ),
    "an entity head without entities": settings(
        "model.head=entity",
        "config.toml: the file: model.head entity needs data with entities: set "
        "data.marked, data.columns.entities or data.format semeval",
    ),
    "a cnn without filters": settings(
        "model.cnn.filter_sizes=[]",
        "--set model.cnn.filter_sizes: Tuple should have at least 1 item after "
        "validation, not 0, found []",
    ),
    "a negative size of n-grams": outside("model.ngrams=-1", "greater than or equal to 0"),
    "layers of a preset": settings(
        "train.reinit_layers=1",
        "config.toml: the file: train.reinit_layers needs a pretrained model.name that "
        "is not frozen",
    ),
    "dropped tokens with a frozen encoder": settings(
        "model.freeze=true & train.token_dropout=0.1",
        "config.toml: the file: train.token_dropout needs an encoder that is trained: "
        "remove model.freeze",
    ),
    "windows over the rows of a teacher": settings(
        "train.window_stride=8 & train.teacher=run",
        "config.toml: the file: train.window_stride is for single texts without a train.teacher",
    ),
    "texts of two tokens": outside("model.max_length=2", "greater than or equal to 3"),
    "a vocabulary smaller than its characters": outside(
        "model.vocab_size=0", "greater than or equal to 1"
    ),
    "an absent vocabulary": settings(
        "model.vocab=vocab.txt", "vocab.txt cannot be read: No such file or directory"
    ),
    "a vocabulary without special tokens": settings(
        "model.vocab=train.tsv",
        "train.tsv lacks [PAD], [UNK], [CLS], [SEP], [MASK]: not a BERT vocabulary",
    ),
    "an unknown kind": settings(
        "task.kind=clustering",
        "--set task.kind: expected one of single_label, multi_label, regression, tokens, pretrain, "
        "found 'clustering'",
    ),
    "an unknown metric": outside(
        "task.metric=auc",
        "'accuracy', 'macro_f1', 'micro_f1', 'f1', 'matthews', 'directional_f1', 'pearson', "
        "'spearman', 'masked_accuracy', 'order_accuracy' or 'mean_score'",
    ),
    "a positive label that is none": settings(
        "task.metric=f1 & task.positive=snow",
        "expected task.positive to be one of two labels, found 'snow'",
    ),
    "a warmup in steps and as a share": settings(
        "train.warmup=0.2 & train.warmup_steps=9",
        "config.toml: train: expected one of train.warmup (a share) and train.warmup_steps, "
        "found both",
    ),
    "a lowest rate above the highest": settings(
        "train.eta_min=1 & train.schedule=cosine",
        "config.toml: train: expected train.eta_min of at most train.learning_rate 0.0005, found 1",
    ),
    "a lowest rate of a linear schedule": settings(
        "train.eta_min=1e-6",
        "config.toml: train: train.eta_min needs train.schedule cosine or cosine_restarts, "
        "found linear",
    ),
    "a loss scale without fp16": settings(
        "train.loss_scale=128",
        "config.toml: train: train.loss_scale needs train.precision fp16, found auto",
    ),
    "a key of the Trainer": settings(
        "train.num_train_epochs=3",
        "--set has keys of other programs, here: num_train_epochs -> train.epochs",
    ),
    "a metric of another kind": settings(
        "task.metric=pearson",
        "task.metric pearson does not apply to a single_label task with these labels",
    ),
    "labels of a regression": settings(
        'task.kind=regression & task.labels=["a", "b"]',
        "config.toml: task: a task of the kind regression has no task.labels: remove them",
    ),
    "smoothed targets of a regression": settings(
        "task.kind=regression & train.label_smoothing=0.1",
        "config.toml: the file: train.class_weights and train.label_smoothing do not "
        "apply to a regression",
    ),
    "labels of a pretraining": settings(
        'task.kind=pretrain & task.labels=["a"]',
        "config.toml: task: a task of the kind pretrain has no task.labels: remove them",
    ),
    "a label twice": settings(
        'task.labels=["sports", "sports", "weather"]',
        "expected 2 or more distinct labels, found 3: ('sports', 'sports', 'weather')",
    ),
    "an empty label in the list": settings(
        'task.labels=["sports", "weather", ""]',
        "config.toml: task: expected task.labels without empty labels and spaces around them",
    ),
    "one label": settings(
        'task.labels=["sports"]', "expected 2 or more distinct labels, found 1: ('sports',)"
    ),
    "labels that the rows lack": settings(
        'task.labels=["a", "b"]', "train.tsv:2 has label 'weather', which the model lacks"
    ),
    "an absent file of labels": settings(
        "task.labels=labels.txt", "labels.txt cannot be read: No such file or directory"
    ),
    "a mask rate of 1": settings(
        "task.kind=pretrain & pretrain.mask_rate=1",
        "--set pretrain.mask_rate: Input should be less than 1, found 1",
    ),
    "weights of spans that are all 0": settings(
        "task.kind=pretrain & pretrain.words=[0]",
        "--set pretrain.words: expected at least one weight above 0, found [0]",
    ),
    "a head of a pretraining": settings(
        "task.kind=pretrain & model.head=cnn",
        "config.toml: the file: model.head applies only to classifiers, not to task.kind pretrain",
    ),
    "pairs of a pretraining": settings(
        "task.kind=pretrain & data.columns.text_pair=label",
        "config.toml: the file: data.columns.text_pair applies only to classifiers, "
        "not to task.kind pretrain",
    ),
    "short rows of a pretraining": settings(
        "task.kind=pretrain & pretrain.row_tokens=0",
        "--set pretrain.row_tokens: Input should be greater than or equal to 1, found 0",
    ),
    "an absent root": settings("data.root=nowhere", "nowhere/train.tsv is not a file"),
    "dev rows twice": settings(
        "data.dev_rows=2",
        "config.toml: data: expected one of data.dev (a file) and data.dev_rows (rows "
        "held out of train)",
    ),
    "no dev rows": settings(
        "data.dev=",
        "config.toml: data: expected one of data.dev (a file) and data.dev_rows (rows "
        "held out of train)",
    ),
    "more dev rows than rows": settings(
        "data.dev= & data.dev_rows=99", "train.tsv holds 16 rows: cannot hold out 99 of them"
    ),
    "groups without held-out rows": settings(
        "data.group=label",
        "config.toml: data: data.group is for rows held out of train, and no rows are held out",
    ),
    "an unknown group": settings(
        "data.dev= & data.dev_rows=4 & data.group=author",
        "train.tsv:1: no column 'author'; found text, label",
    ),
    "a separator for one label": settings(
        'data.separator=","',
        "data.separator needs a multi_label task, and this task is single_label",
    ),
    "an empty separator": settings(
        'task.kind=multi_label & data.separator=""',
        "config.toml: data: expected a data.separator and a data.delimiter of at least one "
        "character",
    ),
    "an unknown format": outside(
        "data.format=xml",
        "'csv', 'tsv', 'jsonl', 'json', 'parquet', 'arrow', 'fasttext', 'folder', "
        "'semeval', 'conll', 'text' or 'documents'",
    ),
    "texts without labels": settings(
        "data.format=text",
        "config.toml: the file: format text has no labels: set task.kind to pretrain",
    ),
    "semeval with columns": settings(
        "data.format=semeval & data.columns.text=a",
        "config.toml: data: format semeval has no data.columns: remove them",
    ),
    "entities twice": settings(
        "data.marked=true & data.columns.entities=e",
        "config.toml: data: expected one of data.marked and data.columns.entities, found both",
    ),
    "entities of a pair": settings(
        "data.marked=true & data.columns.text_pair=label",
        "config.toml: data: a pair of texts cannot have entities: remove data.columns.text_pair",
    ),
    "a negative column": settings(
        "data.columns.text=-1", "train.tsv:1: no column -1; found text, label"
    ),
    "a column beyond the last": settings(
        "data.columns.text=2 & data.columns.label=1",
        "train.tsv:1: no column 2; found 2 columns, no header",
    ),
    "text and label in one column": settings(
        "data.columns.text=label",
        "config.toml: the file: data.columns.text and data.columns.label are the same "
        "column, 'label'",
    ),
    "text and pair in one column": settings(
        "data.columns.text_pair=text",
        "config.toml: the file: data.columns.text and data.columns.text_pair are the "
        "same column, 'text'",
    ),
    "unlabelled rows without teacher": settings(
        "data.unlabelled=dev.tsv",
        "config.toml: the file: data.unlabelled needs a train.teacher and an encoder "
        "that is not frozen",
    ),
    "no temperature": outside("train.temperature=0", "greater than 0"),
    "labels without weight": outside("train.soft_weight=0", "greater than 0"),
    "a teacher of other labels": refused(
        f"{TRAIN_COMMAND} --set train.teacher=RUN",
        "train.teacher RUN has 'arts' as label 0, this run has 'sports'",
    ),
}


def ranges(override: str, error: str, options: str = "--out out") -> WrongInput:
    """Return a search with a range that is refused."""
    command = f"tune config.toml {options} --set {shlex.quote(override)}"
    return WrongInput(command=command, error=error)


RATES = "tune.train.learning_rate={ low = 1e-5, high = 1e-3 }"
SEARCHES = {
    "a range of an unknown setting": ranges(
        "tune.train.rate=[1, 2]", "tune.train.rate: unknown key"
    ),
    "a range that is empty": ranges(
        "tune.train.epochs={ low = 3, high = 3 }",
        "tune.train.epochs: expected { low, high } with integers, low < high, "
        "found {'low': 3, 'high': 3}",
    ),
    "a choice that is no value": ranges(
        'tune.model.head=["cnn", "rnn"]',
        'tune.model.head: the value "rnn" cannot be used: --set model.head: Input should be '
        "'linear', 'cnn', 'lstm', 'gru', 'entity' or 'pooling', found 'rnn'",
    ),
    "no trials": ranges(
        RATES,
        "Invalid value for '--trials': Input should be greater than or equal to 1",
        options="--out out --trials 0",
    ),
}
