"""Which options of `pipe bench` go together. One clear line for those that do not."""

from collections.abc import Collection

from pipework.errors import ConfigError

COMPARE, AGAINST, SLO, RATE = "--compare", "--against", "--slo", "--rate"
TRACE = "--trace"
OF_A_SERVER = (AGAINST, "--concurrency", RATE, "--arrivals", TRACE, SLO, "--price", "--template")
# What a trace says itself; two servers in turns would have to be sent it in slices.
OF_NO_TRACE = ("--file", "--words", "--batch", AGAINST)
# What measures; a comparison of stored results takes nothing but where to write its own.
OF_A_MEASUREMENT = ("--file", "--columns", "--words", "--batch", "--seconds", *OF_A_SERVER)
URLS = ("http://", "https://", "grpc://", "grpcs://")


def check_options(target: str | None, given: Collection[str]) -> None:
    """Check the target and the names of the options that were given.

    Raises:
        ConfigError: two that exclude each other, or one without what it needs.
    """
    if COMPARE in given:
        _check_compare(target, given)
        return
    if target is None:
        message = "expected a TARGET to measure, or --compare A.json B.json"
        raise ConfigError(message, "for example pipe bench http://127.0.0.1:8000")
    _check_texts(given)
    _check_server(target, given)
    if AGAINST in given and SLO in given:
        message = "--against compares two targets and --slo judges one: expected one of them"
        raise ConfigError(message, "search for each by itself, or compare at a --rate")


def _check_compare(target: str | None, given: Collection[str]) -> None:
    others = ["a TARGET"] if target is not None else []
    others += [name for name in OF_A_MEASUREMENT if name in given]
    if others:
        message = f"--compare reads two stored results and measures nothing, found {others[0]} too"
        raise ConfigError(message, "pipe bench --compare A.json B.json [--json F] [--html F]")


def _check_texts(given: Collection[str]) -> None:
    if "--file" in given and "--words" in given:
        message = "--words is of made-up texts: expected it or --file, found both"
        raise ConfigError(message, "leave out the one that is not wanted")
    if "--columns" in given and "--file" not in given:
        message = "--columns says where the texts of a --file lie, found no --file"
        raise ConfigError(message, "for example --file rows.tsv --columns text=0")


def _check_server(target: str, given: Collection[str]) -> None:
    needing = [name for name in OF_A_SERVER if name in given]
    if needing and not target.startswith(URLS):
        message = f"{needing[0]} needs the URL of a server, found {target}"
        raise ConfigError(message, f"start one first: pipe serve {target}")
    clashing = [name for name in OF_NO_TRACE if name in given]
    if TRACE in given and clashing:
        message = f"--trace is sent as it was recorded, found {clashing[0]} too"
        raise ConfigError(message, "leave out the one that is not wanted")
    if "--arrivals" in given and not {RATE, SLO, TRACE} & set(given):
        message = (
            "--arrivals says when the requests of a rate are sent: expected --rate or --slo too"
        )
        raise ConfigError(message, "for example --rate 100 --arrivals constant")
