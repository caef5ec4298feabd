"""What `pipe predict` answers, and what answers it: a run folder here, or a server."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipework.data.examples import Example, Source, parse_columns, split_pair
from pipework.data.readers import decoded_lines
from pipework.errors import ConfigError, DataError
from pipework.export.inference import predict_run, unlabelled
from pipework.progress import Progress, Silent
from pipework.run_folder.files import FILE_NAME as MANIFEST
from pipework.scoring.predictions import Prediction
from pipework.serve.client import Client
from pipework.serve.client.stream import answer_all

RETRIES = 8  # of a request that a server has no room for
Answers = Iterator[tuple[Example, Prediction]]


def answers(
    words: Sequence[str],
    file: Path | None,
    url: str | None,
    columns: str | None,
    *,
    progress: Progress,
) -> Answers:
    """Return the inputs with their answers, in order.

    Args:
        words: the run folder, if there is no URL, and then texts; without texts or file they are
            lines of standard input.
        file: a data file; for a run folder with the columns of its training.
        url: of a server.
        columns: of the file, for a server; by the header if not given.
        progress: hears how far the file is, where a server answers it.

    Raises:
        ConfigError: neither a run folder nor a URL is given, or both, or texts and a file.
    """
    texts = words if url is not None else words[1:]
    if url is None and not words:
        message = "expected a run folder or --url, found neither"
        raise ConfigError(message, "pipe predict RUN TEXT, or pipe predict --url URL TEXT")
    if url is not None and words and (Path(words[0]) / MANIFEST).is_file():
        message = f"expected a run folder or --url, found both: {words[0]} and {url}"
        raise ConfigError(message, "leave one of them out")
    if texts and file is not None:
        message = "expected texts or --file, found both"
        raise ConfigError(message)
    if columns is not None and (url is None or file is None):
        message = "--columns is for a --file that a server answers (--url)"
        raise ConfigError(message, "a run folder knows the columns of its training")
    if url is None:
        run = Path(words[0])
        return predict_run(run, _given(texts) if file is None else unlabelled(run, file))
    return _asked(url, texts, None if file is None else _source(file, columns), progress)


def _asked(url: str, texts: Sequence[str], source: Source | None, progress: Progress) -> Answers:
    with Client(url, retries=RETRIES, bulk=source is not None) as client:
        if source is None:
            yield from answer_all(client, _given(texts), Silent())
            return
        progress.begin(f"asking {url}", sum(1 for _ in source.rows()), "rows")
        yield from answer_all(client, source.rows(), progress)
        progress.end()


def _given(texts: Sequence[str]) -> Iterator[Example]:
    lines = texts or (line for _, line in decoded_lines(sys.stdin.buffer, "standard input"))
    return (split_pair(line) for line in lines)


def _source(file: Path, columns: str | None) -> Source:
    """Return a file's texts; without columns those of the header: text, and text_pair if there."""
    given = ["text=text,text_pair=text_pair", "text=text"] if columns is None else [columns]
    sources = [Source(path=file, columns=parse_columns(one)) for one in given]
    for source in sources[:-1]:
        try:
            next(source.rows(), None)
        except DataError:
            continue
        return source
    return sources[-1]
