"""Data reports of small files."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pipework.data.examples import Source
from pipework.progress import NullProgress
from pipework.text.encoding import TextEncoder
from pipework.train.data_report.data_report import data_report


def report_of(files, encoder=None, labels=None):
    return data_report(files, encoder, labels, NullProgress())


def sources(tmp_path, **splits):
    result = {}
    for name, rows in splits.items():
        path = tmp_path / f"{name}.tsv"
        path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
        result[name] = Source(path=path)
    return result


def encoder_of(path, words):
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(["[UNK]", *words])}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path))
    return TextEncoder(tokenizer, max_length=8, type_ids=False)
