import logging
import pickle

import pytest

from pipework.errors import ConfigError
from pipework.serve.http.auth import VARIABLE, ApiKeys, UnauthorizedError, read_keys

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
def test_a_valid_key_is_accepted(header):
    ApiKeys([OTHER, KEY]).check([("host", "a"), ("x-api-key", "wrong"), header])


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], "none"),
        ([("host", KEY)], "none"),
        ([("authorization", f"Basic {KEY}")], "none"),
        ([("authorization", KEY)], "none"),
        ([("x-api-key", "")], "an unknown key"),
        ([("x-api-key", KEY[:-1])], "an unknown key"),
        ([("x-api-key", KEY + "0")], "an unknown key"),
        ([("x-api-key", "Ü雨\udcff" * 9)], "an unknown key"),
        ([("authorization", f"Bearer {KEY},{OTHER}")], "an unknown key"),
    ],
)
def test_an_invalid_key_is_rejected_and_not_in_the_message(headers, found):
    with pytest.raises(UnauthorizedError, match=f"expected an API key, found {found}") as caught:
        ApiKeys([KEY, OTHER]).check(headers)
    assert caught.value.http_status == 401
    assert KEY[:-1] not in f"{caught.value!r} {caught.value.hint}"


def test_without_keys_every_request_is_allowed():
    assert len(ApiKeys()) == 0
    ApiKeys().check([])


def test_a_request_with_many_keys_is_rejected_before_they_are_checked():
    sent = [("x-api-key", "x"), ("x-api-key", "y"), ("x-api-key", "z"), ("x-api-key", KEY)]
    ApiKeys([KEY]).check(sent)
    with pytest.raises(UnauthorizedError, match="expected an API key, found more than 4"):
        ApiKeys([KEY]).check([sent[0], *sent])


def test_neither_the_repr_nor_a_pickle_contains_a_key():
    keys = ApiKeys([KEY])
    shown = f"{keys} {keys!r} {vars(keys)}".encode() + pickle.dumps(keys)
    assert KEY.encode() not in shown


def test_keys_are_read_from_the_file_and_the_variable(file, caplog):
    with caplog.at_level(logging.DEBUG):
        keys = read_keys(file, {VARIABLE: " one,two ,, "})
    assert len(keys) == 4
    for key in (KEY, OTHER, "one", "two"):
        keys.check([("x-api-key", key)])
    assert caplog.text == ""


def test_a_world_readable_file_causes_a_warning_without_its_keys(file, caplog):
    file.chmod(0o644)
    read_keys(file, {})
    assert f"{file} contains API keys and is readable by all users" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("value", ["", " , "])
def test_a_variable_without_keys_is_an_error(value):
    with pytest.raises(ConfigError, match=f"{VARIABLE}: expected at least one API key, found none"):
        read_keys(None, {VARIABLE: value})


def test_an_unreadable_file_is_reported(tmp_path, file):
    with pytest.raises(ConfigError, match=r"none cannot be read: No such file"):
        read_keys(tmp_path / "none", {})
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: it is not UTF-8"):
        read_keys(file, {})
