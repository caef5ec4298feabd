"""Create and fit the linear model of a run.

Shapes: N rows, C classes, F features.
"""

import torch
from tokenizers import Tokenizer

from pipework.data.kept_rows import spread
from pipework.errors import ConfigError
from pipework.progress import Progress
from pipework.tasks.task import Task
from pipework.text.special_tokens import PairTemplate
from pipework.train.config.model import HeadSettings
from pipework.train.config.run_config import Config
from pipework.train.data.token_cache import TokenSet
from pipework.train.linear.features import NgramFeatures
from pipework.train.linear.fit import LinearWeights
from pipework.train.model.bag_of_ngrams import NO_TOKEN, BagOfNgrams, BagOfNgramsConfig
from pipework.train.model.classifier import Classifier, silence_transformers
from pipework.train.model.ngram_embeddings import start_id
from pipework.train.model.pretrained import LabelNames

ROWS = 200_000
FITS = 4_000_000  # rows times labels: one binary classifier is fitted per label
FEWEST_ROWS = 20_000
TOKENS = 20_000_000  # of the train texts
BUCKETS, FEWEST_BUCKETS = 2**18, 2**12
TABLE = 2**26  # most values of a table: 256 MB


def new_model(config: Config, task: Task, tokenizer: Tokenizer) -> Classifier:
    """Return a model whose logits are 0, and which is as large as possible.

    Raises:
        ConfigError: the kind of task has no linear model, or the table would be too large.
    """
    if not task.baseline:
        message = f"a {config.task.kind} task has no linear model"
        raise ConfigError(message, "use another model.preset, or model.name")
    separator = NO_TOKEN
    if "text_pair" in config.data.fields and (between := PairTemplate.of(tokenizer).ids[1]).size:
        separator = int(between[-1])
    sizes = BagOfNgramsConfig(
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        buckets=config.model.ngrams or BUCKETS,
        start_id=start_id(tokenizer, missing=NO_TOKEN),
        separator_id=separator,
        pad_token_id=tokenizer.token_to_id("[PAD]") or 0,
    )
    LabelNames.of(task).write(sizes)
    columns = len(task.labels) + 1
    while sizes.features * columns > TABLE and sizes.buckets > FEWEST_BUCKETS:
        sizes.buckets //= 2
    if sizes.features * columns > TABLE:
        message = f"{sizes.features:,} n-grams times {len(task.labels):,} labels is above {TABLE:,}"
        raise ConfigError(message, "lower model.vocab_size, or use another model.preset")
    silence_transformers()
    return Classifier(BagOfNgrams(sizes), HeadSettings())


def fit(
    classifier: Classifier, tokens: TokenSet, task: Task, progress: Progress, *, balanced: bool
) -> int:
    """Fit a new model to the labels of rows; return the number of rows that it was fitted to."""
    rows = fitted_rows(tokens, len(task.labels))
    with progress.stage("fit the linear model", len(task.labels) + 1, "steps"):
        features = NgramFeatures.fit(classifier.model, tokens, rows)
        progress.advance(1)
        truth_N = tokens.truth[rows]
        weights = LinearWeights.fit(features.x_NF, truth_N, task, progress, balanced=balanced)
    _set_weights(classifier.model, features, weights)
    return len(rows)


def fitted_rows(tokens: TokenSet, labels: int) -> list[int]:
    """Return the rows to fit, which are evenly spaced if they are not all."""
    count = min(ROWS, max(FEWEST_ROWS, FITS // labels))
    length = max(1.0, float(tokens.lengths.mean()))
    return spread(len(tokens), min(count, max(1, int(TOKENS / length))))


@torch.no_grad()
def _set_weights(model: BagOfNgrams, features: NgramFeatures, weights: LinearWeights) -> None:
    idf_F = torch.from_numpy(features.idf_F)
    weights_FC, bias_C = torch.from_numpy(weights.weights_FC), torch.from_numpy(weights.bias_C)
    count, classes = model.config.features, len(bias_C)
    model.table.weight[:, :-1] = idf_F[:, None] * weights_FC[:count]
    model.table.weight[:, -1] = idf_F**2
    model.classifier.weight[:, :classes] = torch.eye(classes)
    model.classifier.weight[:, classes:] = weights_FC[count:].T
    model.classifier.bias[:] = bias_C
