"""A run's tokenizer: learned from the train texts, from a vocab.txt, or a checkpoint's."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from pipework.data.examples import Source
from pipework.data.readers import numbered_lines
from pipework.errors import ConfigError
from pipework.text.encoding import mark
from pipework.train.config.model import ModelSettings

# A vocabulary of the right language leaves well under a tenth unknown, even of noisy texts.
MOST_UNKNOWN = 0.2
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Spelling(BaseModel):
    """What a tokenizer_config.json says of a WordPiece vocabulary; the rest of it is not needed."""

    model_config = ConfigDict(frozen=True)

    do_lower_case: bool | None = None
    tokenize_chinese_chars: bool | None = None
    strip_accents: bool | None = None


def make_tokenizer(settings: ModelSettings, source: Source) -> Tokenizer:
    """Return the tokenizer that the model settings ask for; `source` is the train file.

    Raises:
        ConfigError: the vocabulary file lacks a special token, or the checkpoint cannot be read.
    """
    if settings.vocab is not None:
        return _with_vocabulary(settings, read_vocabulary(settings.vocab))
    if settings.name is not None:
        return _of_checkpoint(settings, settings.name)
    return learn(settings, lambda: _texts(source))


def learn(settings: ModelSettings, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """Learn a WordPiece vocabulary (Wu et al. 2016, https://arxiv.org/abs/1609.08144).

    The same texts give the same vocabulary. The library numbers the continuing characters in the
    order of a hash table, and breaks ties by number; so they are found in a first pass, which
    merges nothing, and given to the second in the order of the alphabet.

    Args:
        settings: size and spelling of the vocabulary.
        texts: gives the texts, from their beginning each time it is called.
    """
    alphabet = _trained(settings, texts(), SPECIAL, vocab_size=1)
    continuing = {token for token in alphabet if token.startswith("##")}
    if not settings.split_cjk:  # without spaces any character may follow any other
        continuing |= {f"##{token}" for token in alphabet if len(token) == 1}
    known = (*SPECIAL, *sorted(continuing))
    return _with_vocabulary(settings, _trained(settings, texts(), known, settings.vocab_size))


def _trained(
    settings: ModelSettings, texts: Iterable[str], known: Sequence[str], vocab_size: int
) -> dict[str, int]:
    tokenizer = _frame(settings, _wordpiece(settings, {}))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=list(known)
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read a vocab.txt: a token a line, its id the line's number from 0."""
    vocabulary = {text: number - 1 for number, text in numbered_lines(path)}
    missing = [token for token in SPECIAL if token not in vocabulary]
    if missing:
        message = f"{path} lacks {', '.join(missing)}: not a BERT vocabulary"
        raise ConfigError(message, "expected a token a line, special tokens included")
    return vocabulary


def _texts(source: Source) -> Iterator[str]:
    for example in source.rows():
        spans = example.entities
        yield example.text if spans is None else mark(example.text, spans)[0]
        if example.text_pair is not None:
            yield example.text_pair


def _frame(settings: ModelSettings, model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=settings.lowercase, handle_chinese_chars=settings.split_cjk
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _wordpiece(settings: ModelSettings, vocabulary: dict[str, int]) -> models.WordPiece:
    # BERT gives up on words of over 100 characters; unsplit, a Chinese sentence is one word.
    longest = 100 if settings.split_cjk else 10_000
    return models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=longest)  # noqa: S106


def _with_vocabulary(settings: ModelSettings, vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = _frame(settings, _wordpiece(settings, vocabulary))
    tokenizer.add_special_tokens(list(SPECIAL))
    return _with_template(tokenizer)


def _with_template(tokenizer: Tokenizer) -> Tokenizer:
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return tokenizer


def _of_checkpoint(settings: ModelSettings, name: str) -> Tokenizer:
    beside = Path(name).parent / "tokenizer.json"  # of a run folder, whose checkpoint this is
    if beside.is_file() and not (Path(name) / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(beside))
    if old := _of_old_folder(settings, Path(name)):
        return old
    from transformers import AutoTokenizer  # noqa: PLC0415  (slow to import)

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True)
    except (OSError, ValueError) as error:
        message = f"no tokenizer at model.name {name!r}: {str(error).splitlines()[0]}"
        raise ConfigError(message, "expected a hub id or a folder with tokenizer files") from error
    backend: Tokenizer = tokenizer.backend_tokenizer
    return backend


def _of_old_folder(settings: ModelSettings, folder: Path) -> Tokenizer | None:
    """Return the WordPiece tokenizer of a folder that has BERT's vocab.txt and no tokenizer.json.

    How it spells is in tokenizer_config.json, or else as the model settings say. None for another
    kind of folder.
    """
    vocab, said = folder / "vocab.txt", folder / "tokenizer_config.json"
    if (folder / "tokenizer.json").is_file() or not vocab.is_file():
        return None
    vocabulary = {text: number - 1 for number, text in numbered_lines(vocab)}
    if not vocabulary.keys() >= set(SPECIAL):
        return None
    spelling = _spelling(said) if said.is_file() else Spelling()
    lowercase, split_cjk = spelling.do_lower_case, spelling.tokenize_chinese_chars
    tokenizer = _with_vocabulary(settings, vocabulary)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=settings.lowercase if lowercase is None else lowercase,
        handle_chinese_chars=settings.split_cjk if split_cjk is None else split_cjk,
        strip_accents=spelling.strip_accents,
    )
    return tokenizer


def _spelling(path: Path) -> Spelling:
    try:
        return Spelling.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
        raise ConfigError(message, "mend it, or delete it and set model.lowercase") from error


def check_unknown_rate(rate: float, name: str) -> None:
    """Refuse a vocabulary that knows too little of the train texts to be theirs.

    Args:
        rate: the share of unknown tokens among those of the train texts, 0 to 1.
        name: of the vocabulary, as the user gave it.

    Raises:
        ConfigError: above `MOST_UNKNOWN`.
    """
    if rate > MOST_UNKNOWN:
        message = f"{rate:.0%} of the tokens of train are unknown to the vocabulary of {name}"
        raise ConfigError(message, "is it that of another language, or with other casing?")
