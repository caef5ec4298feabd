import argparse
from pathlib import Path

import pytest

from pipework.benchmarks.studies.script import command


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.some")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    return parser


def recorded(parser, *words):
    return " ".join(command(parser, parser.parse_args(words)))


def test_paths_are_replaced_by_option_names(parser, tmp_path):
    words = ("--data", str(tmp_path / "none"), "--model", str(tmp_path), "--seeds", "3", "4")
    assert recorded(parser, *words) == (
        "python -m benchmarks.some --data DATA --model MODEL --seeds 3 4"
    )
    hub = ("--data", "d", "--model", "some/hub-id")
    assert recorded(parser, *hub).endswith("--model some/hub-id")


def test_default_values_are_omitted(parser):
    words = ("--data", "d", "--seeds", "1", "2", "--jobs", "1")
    assert recorded(parser, *words) == "python -m benchmarks.some --data DATA"
