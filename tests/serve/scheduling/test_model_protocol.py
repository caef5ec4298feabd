import pytest

from pipework.run_folder.manifest import TrainingReadOptions, read_manifest
from pipework.serve.scheduling.model_protocol import ModelCard
from pipework.tasks.single_label import SingleLabelTask


def card(run):
    manifest = read_manifest(run)
    return ModelCard.of(manifest, manifest.engines[0])


def test_a_card_describes_a_run_with_its_engine(run):
    assert card(run) == ModelCard(
        task=SingleLabelTask(labels=("weather", "sport", "money"), metric="accuracy"),
        precision="fp32",
        reading=TrainingReadOptions(text=0, text_pair=None, label=None, format="tsv", header=False),
    )


def test_the_thresholds_are_in_the_order_of_the_labels(multi_run):
    found = card(multi_run)
    assert found.task.kind == "multi_label"
    assert found.task.label_thresholds == {"weather": 0.75, "sport": 0.75, "money": 0.25}


@pytest.mark.parametrize(("fixture", "entities"), [("entity_run", True), ("pair_run", False)])
def test_only_a_model_of_entities_needs_them(request, fixture, entities):
    assert card(request.getfixturevalue(fixture)).entities is entities


def test_the_precision_is_that_of_the_engine(run):
    manifest = read_manifest(run)
    record = manifest.engines[0].model_copy(update={"precision": "int8"})
    assert ModelCard.of(manifest, record).precision == "int8"
