"""Options that do not go together are one clear line."""

import pytest

from pipework.benchmarks.options import check_options
from pipework.errors import ConfigError

URL = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("target", "given", "said"),
    [
        (None, "", "expected a TARGET to measure, or --compare"),
        (None, "--json", "expected a TARGET"),
        (URL, "--compare", "--compare reads two stored results .*, found a TARGET too"),
        (None, "--compare --slo", "measures nothing, found --slo too"),
        (None, "--compare --seconds", "measures nothing, found --seconds too"),
        (URL, "--file --words", "--words is of made-up texts: expected it or --file, found both"),
        (URL, "--columns", "found no --file"),
        ("run", "--rate", "--rate needs the URL of a server, found run"),
        ("run", "--slo", "--slo needs the URL of a server"),
        ("run", "--against", "--against needs the URL of a server"),
        ("run", "--concurrency", "--concurrency needs the URL of a server"),
        (URL, "--arrivals", "expected --rate or --slo too"),
        (URL, "--against --slo", "expected one of them"),
        (URL, "--trace --words", "--trace is sent as it was recorded, found --words too"),
        (URL, "--trace --against", "sent as it was recorded, found --against too"),
        ("run", "--trace", "--trace needs the URL of a server"),
        (None, "--compare --trace", "measures nothing, found --trace too"),
    ],
)
def test_what_does_not_go_together_is_told(target, given, said):
    with pytest.raises(ConfigError, match=said) as told:
        check_options(target, given.split())
    assert "\n" not in str(told.value)
    assert told.value.hint


@pytest.mark.parametrize(
    ("target", "given"),
    [
        (URL, ""),
        ("run", "--file --columns --batch --seconds --json --html"),
        (None, "--compare --json --html"),
        (URL, "--rate --slo --arrivals --price --words"),
        ("grpc://h:1/m", "--slo --arrivals"),
        (URL, "--against --rate --concurrency"),
        (URL, "--trace --rate --slo --arrivals --concurrency --price"),
    ],
)
def test_what_goes_together_is_taken(target, given):
    check_options(target, given.split())
