"""The columns of parts."""

import pyarrow as pa
import pyarrow.parquet as pq

from tests.serve.bulk.test_job import score


def test_labels_of_a_multi_label_task_are_lists(multi_run, regression_run, tmp_path):
    (tmp_path / "in.txt").write_text("rain goal\nbank\n")
    score(multi_run, tmp_path / "in.txt", tmp_path / "multi")
    table = pq.read_table(tmp_path / "multi" / "parts")
    assert table["predicted_label"].type == pa.list_(pa.string())
    lengths = [len(scores) for scores in table["predicted_score"].to_pylist()]
    assert lengths == [len(labels) for labels in table["predicted_label"].to_pylist()]
    score(regression_run, tmp_path / "in.txt", tmp_path / "value")
    table = pq.read_table(tmp_path / "value" / "parts")
    assert table.column_names == [
        "column_0",
        "source_file",
        "source_row",
        "predicted_score",
        "truncated",
    ]
