"""Checks for `pipe bench` options that cannot be combined."""

from collections.abc import Collection

from pipework.errors import ConfigError

COMPARE, AGAINST, SLO, RATE = "--compare", "--against", "--slo", "--rate"
TRACE = "--trace"
SERVER_OPTIONS = (AGAINST, "--concurrency", RATE, "--arrivals", TRACE, SLO, "--price", "--template")
# A trace defines its own texts; a comparison would have to replay it in slices.
NOT_WITH_TRACE = ("--file", "--words", "--batch", AGAINST)
# Options of a measurement; --compare reads stored results and takes only output options.
MEASUREMENT_OPTIONS = ("--file", "--columns", "--words", "--batch", "--seconds", *SERVER_OPTIONS)
URLS = ("http://", "https://", "grpc://", "grpcs://")


def check_options(target: str | None, options: Collection[str]) -> None:
    """Check the target and the names of the given options.

    Raises:
        ConfigError: two options exclude each other, or an option lacks another that it needs.
    """
    if COMPARE in options:
        _check_compare(target, options)
        return
    if target is None:
        message = "expected a TARGET to measure, or --compare A.json B.json"
        raise ConfigError(message, "for example pipe bench http://127.0.0.1:8000")
    _check_texts(options)
    _check_server(target, options)
    if AGAINST in options and SLO in options:
        message = "--against cannot be combined with --slo: expected one of them"
        raise ConfigError(message, "run --slo once per server, or compare both at a --rate")


def _check_compare(target: str | None, options: Collection[str]) -> None:
    others = ["a TARGET"] if target is not None else []
    others += [name for name in MEASUREMENT_OPTIONS if name in options]
    if others:
        message = f"--compare reads two stored results: it cannot be combined with {others[0]}"
        raise ConfigError(message, "pipe bench --compare A.json B.json [--json F] [--html F]")


def _check_texts(options: Collection[str]) -> None:
    if "--file" in options and "--words" in options:
        message = "--words is for synthetic texts: it cannot be combined with --file"
        raise ConfigError(message, "leave out one of them")
    if "--columns" in options and "--file" not in options:
        message = "--columns names the columns of --file: expected --file, found none"
        raise ConfigError(message, "for example --file rows.tsv --columns text=0")


def _check_server(target: str, options: Collection[str]) -> None:
    server_options = [name for name in SERVER_OPTIONS if name in options]
    if server_options and not target.startswith(URLS):
        message = f"{server_options[0]} needs the URL of a server, found {target}"
        raise ConfigError(message, f"start one first: pipe serve {target}")
    clashing = [name for name in NOT_WITH_TRACE if name in options]
    if TRACE in options and clashing:
        message = f"--trace cannot be combined with {clashing[0]}"
        raise ConfigError(message, "leave out one of them")
    if "--arrivals" in options and not {RATE, SLO, TRACE} & set(options):
        message = "--arrivals applies to open-loop requests: expected --rate or --slo"
        raise ConfigError(message, "for example --rate 100 --arrivals constant")
