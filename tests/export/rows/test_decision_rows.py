"""The labelled rows of a decision."""

from pathlib import Path

import pytest

from pipework.errors import CheckFailedError, ConfigError
from pipework.run_folder.manifest import read_manifest
from tests.export.test_decision import decided


def test_rows_that_chose_the_checkpoint_are_left_out(run, tmp_path, noting):
    dev = Path(read_manifest(run).data.splits["dev"].path)
    with pytest.raises(ConfigError, match="have trained the model or chosen its checkpoint"):
        decided(run, noting, max_error=0.1, rows=dev)
    mixed = tmp_path / f"mixed{dev.suffix}"
    mixed.write_text("".join(dev.read_text().splitlines(keepends=True)[:100]) + "new\tsports\n")
    with pytest.raises(CheckFailedError, match="1 row cannot show"):
        decided(run, noting, max_error=0.1, rows=mixed)
    assert noting.lines[-1] == "decision: 99 rows left out: also in train or dev"
    with pytest.raises(ConfigError, match=r"has no labelled rows for the decision"):
        decided(run, noting, max_error=0.1)
