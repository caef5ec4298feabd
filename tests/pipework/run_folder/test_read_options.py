from pathlib import Path

from pipework.data.examples import Source
from pipework.run_folder.read_options import Reading, ReadOptions


def test_a_source_is_restored_from_the_read_options_of_a_manifest():
    reading = Reading(text=1, label=0, kind="multi_label", separator=";", marked=True)
    options = Source(path=Path("a.tsv"), reading=reading).read_options()
    restored = ReadOptions.model_validate_json(options.model_dump_json())
    assert dict(restored) == {
        **dict(reading),
        "format": "tsv",
        "header": False,
        "group": None,
    }
    assert Source(path=Path("other"), reading=restored).read_options() == options
