"""The short table of README.md compares pipework with the best alternatives."""

from pipework.benchmarks.studies.documents.readme import fill
from pipework.benchmarks.studies.records.experiment_results import Arm, ExperimentResult


def test_the_summary_compares_with_the_best_baseline_and_the_fastest_engine(
    trained, proven_engines
):
    accuracy = trained.model_copy(update={"dataset": "SST-2 (a model)"})
    engines = proven_engines.model_copy(update={"dataset": "SST-2 (a model)"})
    other = trained.model_copy(update={"dataset": "another"})
    processor = engines.provenance.machine.cpu
    text = fill("<!-- table:summary -->\n<!-- /table:summary -->", [engines, other, accuracy])
    rows = [line for line in text.splitlines() if line.startswith("| SST-2")]
    assert rows == [
        f"| SST-2 (a model): accuracy, % | **91.27** | TF-IDF + SVM 90.36 | {processor} |",
        (
            "| SST-2 (a model): fastest engine, onnx-int8-static-packed, texts/s | **300** "
            f"| onnxruntime fp32, padded: 100 (speedup 3.0) | {processor} |"
        ),
    ]
    assert "another" not in text


def test_the_default_engine_has_a_row_and_a_score_below_the_baseline_is_not_bold(
    trained, proven_engines
):
    low = {"dataset": "SST-2", "floors": {"linear": 99.0}}
    *others, last = proven_engines.engines
    engines = (*others, last.model_copy(update={"default": True}))
    engines = proven_engines.model_copy(update={"dataset": "SST-2", "engines": engines})
    results = [engines, trained.model_copy(update=low)]
    text = fill("<!-- table:summary -->\n<!-- /table:summary -->", results)
    assert "| 91.27 | linear 99.00 |" in text
    assert f"| SST-2: default engine, {last.name}, texts/s |" in text


def test_the_arm_that_is_best_on_dev_stands_for_an_experiment(trained):
    def arm(name, dev, test):
        return Arm(
            name=name,
            seeds=(1, 2),
            dev=(dev, dev),
            test=(test, test + 1),
            minutes=1,
            minutes_before=0,
            parameters=1,
            difference=None,
            settings={},
        )

    result = ExperimentResult(
        experiment="scratch",
        dataset="THUCNews headlines, from scratch",
        metric="accuracy",
        train_rows=9,
        test_rows=9,
        arms=(arm("worse", 80, 95), arm("better", 81, 90)),
        floors={"SVM": 90.0},
        command=("a",),
        provenance=trained.provenance,
    )
    text = fill("<!-- table:summary -->\n<!-- /table:summary -->", [result])
    name = "THUCNews headlines, from scratch (better, 2 seeds): test accuracy, %"
    assert f"| {name} | **90.50** | SVM 90.00 |" in text


def test_a_cascade_is_compared_with_its_engine_at_one_limit(cascades):
    text = fill("<!-- table:summary -->\n<!-- /table:summary -->", [cascades])
    (row,) = [line for line in text.splitlines() if line.startswith("| THUCNews")]
    assert "at most 1% other labels, 8 clients, texts/s | **1,078** |" in row
    assert "onnx-fp32 alone: 539 (speedup 2.0)" in row
