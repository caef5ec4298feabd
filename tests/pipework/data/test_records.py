"""Records of text files as bytes; tests/serve/bulk has their use in work items."""

import pytest

from pipework.data.records import Records
from pipework.errors import InputError
from pipework.run_folder.manifest import TrainingReadOptions
from pipework.run_folder.read_options import Format


def records(file_format):
    options = TrainingReadOptions.of_inputs(("text",))
    return Records(options.model_copy(update={"format": Format(file_format)}))


def test_a_record_is_decoded_alone():
    assert records("csv").parse(b"\xef\xbb\xbfid,text\r\n") == ["id", "text"]
    with pytest.raises(InputError, match=r"not CSV: unexpected end of data"):
        records("csv").parse(b'"rain')


def test_only_a_line_feed_ends_a_record_without_quotes():
    data = b"a\rb\n\n c\x0bd\x85\r\n e"
    assert list(records("tsv").numbered(data, 5)) == [
        (5, b"a\rb\n"),
        (7, b" c\x0bd\x85\r\n"),
        (8, b" e"),
    ]
