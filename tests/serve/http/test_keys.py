import logging
import pickle

import pytest

from pipework.errors import ConfigError
from pipework.serve.http.auth import VARIABLE, ApiKeys, KeyNeededError, read_keys

KEY, OTHER = "a-long-key-of-0123456789", "another-key-98765"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# of the first team\n{KEY}\n\n  {OTHER}  \n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "header",
    [("authorization", f"Bearer {KEY}"), ("authorization", f"bearer  {KEY}"), ("x-api-key", KEY)],
)
def test_a_known_key_is_let_in(header):
    ApiKeys([OTHER, KEY]).check([("host", "a"), ("x-api-key", "wrong"), header])


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], "none"),
        ([("host", KEY)], "none"),
        ([("authorization", f"Basic {KEY}")], "none"),
        ([("authorization", KEY)], "none"),
        ([("x-api-key", "")], "one that is not known"),
        ([("x-api-key", KEY[:-1])], "one that is not known"),
        ([("x-api-key", KEY + "0")], "one that is not known"),
        ([("x-api-key", "Ü雨\udcff" * 9)], "one that is not known"),
        ([("authorization", f"Bearer {KEY},{OTHER}")], "one that is not known"),
    ],
)
def test_others_are_not_and_the_error_repeats_no_key(headers, found):
    with pytest.raises(KeyNeededError, match=f"expected an API key, found {found}") as caught:
        ApiKeys([KEY, OTHER]).check(headers)
    assert caught.value.http_status == 401
    assert KEY[:-1] not in f"{caught.value!r} {caught.value.hint}"


def test_without_keys_anybody_may_ask():
    assert len(ApiKeys()) == 0
    ApiKeys().check([])


def test_every_key_is_compared_whole_wherever_the_right_one_stands(monkeypatch):
    compared = []

    def note(one, two):
        compared.append((len(one), len(two)))
        return one == two

    keys = [f"key-{number}" * (number + 1) for number in range(5)]
    known = ApiKeys(keys)
    monkeypatch.setattr("pipework.serve.http.auth.hmac.compare_digest", note)
    for given in keys:
        known.check([("x-api-key", given)])
    with pytest.raises(KeyNeededError):
        known.check([("x-api-key", "x")])
    assert compared == [(32, 32)] * 5 * 6


def test_neither_a_view_nor_a_dump_shows_a_key():
    keys = ApiKeys([KEY])
    shown = f"{keys} {keys!r} {vars(keys)}".encode() + pickle.dumps(keys)
    assert KEY.encode() not in shown


def test_the_file_and_the_variable_are_read(file, caplog):
    with caplog.at_level(logging.DEBUG):
        keys = read_keys(file, {VARIABLE: " one,two ,, "})
    assert len(keys) == 4
    for key in (KEY, OTHER, "one", "two"):
        keys.check([("x-api-key", key)])
    assert caplog.text == ""


def test_a_file_that_all_may_read_is_warned_of_without_its_keys(file, caplog):
    file.chmod(0o644)
    read_keys(file, {})
    assert f"{file} holds API keys and is readable by all users" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("text", ["", "\n# none\n  \n"])
def test_an_empty_file_is_an_error_and_not_an_open_door(file, text):
    file.write_text(text)
    with pytest.raises(ConfigError, match="expected at least one API key, found none"):
        read_keys(file, {})


@pytest.mark.parametrize("value", ["", " , "])
def test_an_empty_variable_too(value):
    with pytest.raises(ConfigError, match=f"{VARIABLE}: expected at least one API key, found none"):
        read_keys(None, {VARIABLE: value})


def test_a_key_that_no_header_carries_is_told_by_its_line(file):
    file.write_text(f"{KEY}\ntwo words\n")
    with pytest.raises(ConfigError, match=r"keys:2: expected an API key of printable ASCII") as it:
        read_keys(file, {})
    assert "two words" not in str(it.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path, file):
    with pytest.raises(ConfigError, match=r"none cannot be read: No such file"):
        read_keys(tmp_path / "none", {})
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: it is not UTF-8"):
        read_keys(file, {})
