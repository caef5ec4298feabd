"""Create the tokenizer of a run: trained on its texts, from a vocab.txt or from a checkpoint."""

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
from pipework.data.text_files import numbered_lines
from pipework.errors import ConfigError
from pipework.machine import is_out_of_memory
from pipework.progress import Progress
from pipework.run_folder.files import MANIFEST_FILE
from pipework.text.encoding import mark_entities
from pipework.train.config.model import ModelSettings
from pipework.train.data.foreign_files import check_format

# With a vocabulary of the right language, well under 10 % of the tokens of noisy texts are unknown.
MAX_UNKNOWN_RATE = 0.2
REACH_S = 10  # timeout of the connection to the hub
CASED_RATE = 0.01  # a vocabulary with more upper-case tokens is cased
STRIP = normalizers.BertNormalizer(
    clean_text=False, handle_chinese_chars=False, lowercase=False, strip_accents=True
)
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class WordPieceOptions(BaseModel):
    """The options of a WordPiece tokenizer in tokenizer_config.json; others are ignored."""

    model_config = ConfigDict(frozen=True)

    do_lower_case: bool | None = None
    tokenize_chinese_chars: bool | None = None
    strip_accents: bool | None = None


def make_tokenizer(settings: ModelSettings, source: Source, progress: Progress) -> Tokenizer:
    """Return the tokenizer for the model settings; `source` is the train file.

    Raises:
        ConfigError: the vocabulary file lacks a special token, or the checkpoint cannot be read.
    """
    if settings.vocab is not None and settings.vocab.suffix == ".json":
        return _tokenizer_file(settings.vocab)
    if settings.vocab is not None:
        return _with_vocabulary(settings, read_vocabulary(settings.vocab))
    if settings.name is not None:
        return checkpoint_tokenizer(settings, settings.name)
    progress.note(f"training a vocabulary on {source.path.name}")
    return learn_wordpiece(settings, lambda: _texts(source))


def _tokenizer_file(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        message = f"{path} is not a tokenizer: {error}"
        raise ConfigError(message, "expected a tokenizer.json, or a vocab.txt") from error


def learn_wordpiece(settings: ModelSettings, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """Train a WordPiece tokenizer (Wu et al. 2016, https://arxiv.org/abs/1609.08144).

    The same texts give the same vocabulary.

    Args:
        settings: size and options of the vocabulary.
        texts: returns an iterator over all texts at each call.
    """
    # The library numbers continuation characters in the order of a hash table and breaks ties by
    # number. A first pass without merges therefore finds them, and the second gets them sorted.
    words = {word for text in texts() for word in text.split()}
    alphabet = _trained(settings, words, SPECIAL_TOKENS, vocab_size=1)
    continuing = {token for token in alphabet if token.startswith("##")}
    if not settings.split_cjk:  # without spaces any character may continue a word
        continuing |= {f"##{token}" for token in alphabet if len(token) == 1}
    known = (*SPECIAL_TOKENS, *sorted(continuing))
    vocabulary = _trained(settings, texts(), known, settings.vocab_size)
    return _with_vocabulary(settings, vocabulary, strip_accents=False)


def _trained(
    settings: ModelSettings, texts: Iterable[str], known: Sequence[str], vocab_size: int
) -> dict[str, int]:
    tokenizer = _bert_tokenizer(settings, {}, strip_accents=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=list(known)
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read a vocab.txt: a token per line, whose id is the line number from 0."""
    vocabulary = {text: number - 1 for number, text in numbered_lines(path)}
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        message = f"{path} lacks {', '.join(missing)}: not a BERT vocabulary"
        raise ConfigError(message, "expected a token per line, including the special tokens")
    return vocabulary


def _texts(source: Source) -> Iterator[str]:
    for example in source.rows():
        spans = example.entities
        yield example.text if spans is None else mark_entities(example.text, spans)[0]
        if example.text_pair is not None:
            yield example.text_pair


def _bert_tokenizer(
    settings: ModelSettings, vocabulary: dict[str, int], *, strip_accents: bool
) -> Tokenizer:
    # BERT treats words of over 100 characters as unknown. Without split_cjk, a Chinese sentence is
    # a word.
    longest = 100 if settings.split_cjk else 10_000
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=longest)  # noqa: S106
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=_lowercases(settings, vocabulary),
        handle_chinese_chars=settings.split_cjk,
        strip_accents=strip_accents,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _lowercases(settings: ModelSettings, vocabulary: dict[str, int]) -> bool:
    """Return the setting, or else whether the vocabulary lacks upper-case tokens."""
    if settings.lowercase is not None:
        return settings.lowercase
    # BERT's English cased vocabulary has 29 %, its Chinese one 2 tokens.
    cased = sum(token != token.lower() for token in vocabulary if not token.startswith("["))
    return cased <= CASED_RATE * len(vocabulary)


def _strips_accents(settings: ModelSettings, vocabulary: dict[str, int]) -> bool:
    """Return whether texts lose their marks, as in BERT's uncased vocabularies.

    Marks distinguish words in many languages: Japanese dakuten, vowel signs of Hindi, tones of Thai
    and Vietnamese. A vocabulary with marks was made from texts that kept them.
    """
    return _lowercases(settings, vocabulary) and not any(map(_has_marks, vocabulary))


def _has_marks(token: str) -> bool:
    # BERT decomposes texts before it removes marks, so Hangul syllables count, too.
    return bool(STRIP.normalize_str(token) != token)


def _with_vocabulary(
    settings: ModelSettings, vocabulary: dict[str, int], *, strip_accents: bool | None = None
) -> Tokenizer:
    if strip_accents is None:
        strip_accents = _strips_accents(settings, vocabulary)
    tokenizer = _bert_tokenizer(settings, vocabulary, strip_accents=strip_accents)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return tokenizer


def checkpoint_tokenizer(settings: ModelSettings, name: str) -> Tokenizer:
    """Return the tokenizer of a checkpoint, a folder or hub id.

    Raises:
        ConfigError: it has none, or it cannot be read.
    """
    run = Path(name).parent  # if this is the checkpoint of a run folder
    if (run / MANIFEST_FILE).is_file():
        return Tokenizer.from_file(str(run / "tokenizer.json"))
    check_openable(name)
    if legacy := _of_legacy_folder(settings, Path(name)):
        return legacy
    hint = "expected a hub id, or a folder with tokenizer.json or vocab.txt"
    if Path(name).is_dir() and not _tokenizer_files(Path(name)):
        message = f"no tokenizer found in checkpoint {name!r}"
        raise ConfigError(message, hint)
    from transformers import AutoTokenizer  # noqa: PLC0415  (slow to import)

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, trust_remote_code=False)
    except library_errors() as error:
        if is_out_of_memory(error):
            raise
        message = f"the tokenizer of checkpoint {name!r} cannot be opened: {summary(error)}"
        if "tiktoken" in message:  # the library tries it last for a file of another package
            message = f"the tokenizer of checkpoint {name!r} is a SentencePiece model"
            hint = "pip install 'pipework[sentencepiece]'"
        raise ConfigError(message, hint) from error
    if not tokenizer.is_fast:
        message = f"checkpoint {name!r} has a {type(tokenizer).__name__}, which is Python code"
        raise ConfigError(message, "expected a tokenizer that transformers saves as tokenizer.json")
    backend: Tokenizer = tokenizer.backend_tokenizer
    return backend


def _tokenizer_files(folder: Path) -> list[Path]:
    # Without any, the library builds an empty tokenizer for some families.
    names = ("tokenizer*", "vocab*", "*.model", "*.codes")
    return [path for name in names for path in folder.glob(name)]


def library_errors() -> tuple[type[Exception], ...]:
    """Return the errors of libraries that open a damaged file, or one with unexpected content."""
    from huggingface_hub.errors import StrictDataclassError  # noqa: PLC0415  (slow to import)

    usual = (AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError)
    return *usual, StrictDataclassError


def summary(error: Exception) -> str:
    """Return the first line of an error of a library, or two if the first introduces the second."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    own = isinstance(error, OSError | ValueError)  # the others do not explain themselves
    return text if own and text else f"{type(error).__name__} {text}".strip()


def check_openable(name: str) -> None:
    """Check that a checkpoint is a folder or in the cache, or that its hub can be reached.

    The library would try again for a minute and print a line for each attempt.

    Raises:
        ConfigError: none of these, or the checkpoint has a format that is not supported.
    """
    check_format(name)
    import httpx  # noqa: PLC0415  (slow to import)
    from huggingface_hub import constants, try_to_load_from_cache  # noqa: PLC0415  (as above)
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415  (as above)

    if Path(name).is_dir():
        return
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        message = f"checkpoint {name!r} is not a folder"
        raise ConfigError(message, "expected a folder with config.json, or a hub id")
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str) or constants.HF_HUB_OFFLINE:
            return
        httpx.head(constants.ENDPOINT, timeout=REACH_S)
    except HFValidationError as error:
        message = f"checkpoint {name!r} is neither a folder nor a hub id"
        raise ConfigError(message, "expected a folder with config.json, or a hub id") from error
    except httpx.HTTPError as error:
        message = f"cannot download checkpoint {name!r} from {constants.ENDPOINT}: {error}"
        raise ConfigError(message, "check the network, or name a folder") from error


def _of_legacy_folder(settings: ModelSettings, folder: Path) -> Tokenizer | None:
    """Return the WordPiece tokenizer of a folder with BERT's vocab.txt and no tokenizer.json.

    Its options are those in tokenizer_config.json, or else those of the model settings. None for
    other folders.
    """
    vocab, options_file = folder / "vocab.txt", folder / "tokenizer_config.json"
    if (folder / "tokenizer.json").is_file() or not vocab.is_file():
        return None
    vocabulary = {text: number - 1 for number, text in numbered_lines(vocab)}
    if not vocabulary.keys() >= set(SPECIAL_TOKENS):
        return None
    options = _read_options(options_file) if options_file.is_file() else WordPieceOptions()
    split_cjk = options.tokenize_chinese_chars
    if options.do_lower_case is not None:
        settings = settings.model_copy(update={"lowercase": options.do_lower_case})
    if split_cjk is not None:
        settings = settings.model_copy(update={"split_cjk": split_cjk})
    # The checkpoint was trained with BERT's rule: lower-casing also removes marks.
    strip = options.strip_accents
    strip = _lowercases(settings, vocabulary) if strip is None else strip
    return _with_vocabulary(settings, vocabulary, strip_accents=strip)


def _read_options(path: Path) -> WordPieceOptions:
    try:
        return WordPieceOptions.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
        raise ConfigError(
            message, "fix it, or delete it: the vocabulary then decides the casing"
        ) from error


def check_unknown_rate(rate: float, name: str) -> None:
    """Check that the vocabulary matches the train texts.

    Args:
        rate: the share of unknown tokens in the train texts, 0 to 1.
        name: the vocabulary as configured by the user.

    Raises:
        ConfigError: the rate is above `MAX_UNKNOWN_RATE`.
    """
    if rate > MAX_UNKNOWN_RATE:
        message = (
            f"{rate:.0%} of the train tokens are unknown in the vocabulary of {name}, "
            f"expected at most {MAX_UNKNOWN_RATE:.0%}"
        )
        raise ConfigError(message, "check its language and model.lowercase")
