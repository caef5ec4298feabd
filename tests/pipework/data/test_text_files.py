import pytest

from pipework.data.text_files import decoded_lines, numbered_lines
from pipework.errors import DataError


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\u2028still one\x0b\x85\r\n\ntwo".encode())
    assert list(numbered_lines(path)) == [(1, "one\u2028still one\x0b\x85"), (2, ""), (3, "two")]


def test_bytes_that_are_not_utf_8_are_reported_with_their_line():
    with pytest.raises(DataError, match=r"here:2: not UTF-8 \(byte 1"):
        list(decoded_lines([b"fine\n", b"a\xff\n"], "here"))
