"""Records of text files as bytes; tests/serve/bulk has their use in work items."""

import pytest

from pipework.data.readers import Format
from pipework.data.records import numbered_records, parse_record
from pipework.errors import InputError


def test_a_record_is_decoded_alone():
    assert parse_record(b"\xef\xbb\xbfid,text\r\n", Format.CSV) == ["id", "text"]
    with pytest.raises(InputError, match=r"not CSV: unexpected end of data"):
        parse_record(b'"rain', Format.CSV)


def test_only_a_line_feed_ends_a_record_without_quotes():
    data = b"a\rb\n\n c\x0bd\x85\r\n e"
    assert list(numbered_records(data, 5, Format.TSV)) == [
        (5, b"a\rb\n"),
        (7, b" c\x0bd\x85\r\n"),
        (8, b" e"),
    ]
