"""Runs that cannot be the first stage of a cascade."""

import pytest

from pipework.errors import ConfigError
from pipework.run_folder.manifest import read_manifest, write_manifest
from tests.export.cascades import cascaded


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("task", {"labels": tuple("abcdefgh")}, "has other labels"),
        ("input", {"max_length": 9}, "another tokenizer or max_length"),
    ],
)
def test_a_first_stage_of_another_model_is_refused(cascade_run, part, change, message):
    manifest = read_manifest(cascade_run / "linear")
    changed = getattr(manifest, part).model_copy(update=change)
    write_manifest(cascade_run / "linear", manifest.model_copy(update={part: changed}))
    with pytest.raises(ConfigError, match=message):
        cascaded(cascade_run, max_difference=0.3)
    with pytest.raises(ConfigError, match="is not a run folder, so there is no first stage"):
        cascaded(cascade_run, cascade_run / "none", max_difference=0.3)


def test_a_model_that_gives_no_label_for_low_scores_is_refused(cascade_run):
    manifest = read_manifest(cascade_run)
    task = manifest.task.model_copy(update={"min_scores": (0.5,)})
    write_manifest(cascade_run, manifest.model_copy(update={"task": task}))
    with pytest.raises(ConfigError, match="gives no label for low scores"):
        cascaded(cascade_run, max_difference=0.3)
