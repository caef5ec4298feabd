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
    parser.add_argument("--set", action="append", default=[])
    return parser


def recorded(parser, *words):
    return " ".join(command(parser, parser.parse_args(words)))


def test_paths_are_replaced_by_option_names(parser, tmp_path):
    words = ("--data", str(tmp_path / "none"), "--model", str(tmp_path), "--seeds", "3", "4")
    assert recorded(parser, *words) == (
        "python -m benchmarks.some --data DATA --model MODEL --seeds 3 4"
    )


def test_default_values_are_omitted(parser):
    words = ("--data", "d", "--seeds", "1", "2", "--jobs", "1")
    assert recorded(parser, *words) == "python -m benchmarks.some --data DATA"


def test_a_repeated_option_is_recorded_for_each_value(parser):
    words = ("--data", "d", "--set", "a=1", "--set", "b=2", "--model", "some/hub-id")
    assert recorded(parser, *words) == (
        "python -m benchmarks.some --data DATA --model some/hub-id --set a=1 --set b=2"
    )


def test_a_path_after_a_key_is_replaced(parser, tmp_path):
    words = ("--data", "d", "--set", f"data.root={tmp_path}", "--set", "model.name=some/hub-id")
    assert recorded(parser, *words) == (
        "python -m benchmarks.some --data DATA --set data.root=PLACE --set model.name=some/hub-id"
    )
