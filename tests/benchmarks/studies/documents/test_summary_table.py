"""The short table of README.md compares pipework with the best alternatives."""

from pipework.benchmarks.studies.documents.readme import fill


def test_the_summary_compares_with_the_best_baseline_and_the_fastest_engine(
    trained, proven_engines
):
    accuracy = trained.model_copy(update={"dataset": "SST-2 (a model)"})
    engines = proven_engines.model_copy(update={"dataset": "SST-2 (a model)"})
    other = trained.model_copy(update={"dataset": "another"})
    text = fill("<!-- table:summary -->\n<!-- /table:summary -->", [engines, other, accuracy])
    rows = [line for line in text.splitlines() if line.startswith("| SST-2")]
    assert rows == [
        "| SST-2 (a model): accuracy, % | **91.27** | TF-IDF + SVM 90.36 |",
        (
            "| SST-2 (a model): engine onnx-int8-static-packed, texts/s | **300** "
            "| onnxruntime fp32, padded: 100 (speedup 3.0) |"
        ),
    ]
    assert "another" not in text
