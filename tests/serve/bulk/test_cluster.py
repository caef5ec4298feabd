"""The examples of serve/README.md for Ray, Spark and Dask, each in an environment of its own.

    RAY_PYTHON=DIR/bin/python pytest tests/serve/bulk/test_cluster.py

The environment has pipework with the extras `cpu` and `bulk`, and `ray[data]`; SPARK_PYTHON has
pyspark, pandas and a Java runtime, DASK_PYTHON `dask[dataframe]`.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipework.progress import NullProgress
from pipework.serve.bulk.job import BulkOptions, score_files
from tests.serve.bulk.test_job import GROUPS, part_files, write_parquet

ROOT = Path(__file__).parents[3]
SCHEMA = "id long, text string, when date, predicted_label string, predicted_score float"
PROGRAMS = {
    "ray": """
import ray
ray.init(num_cpus=4, include_dashboard=False)
ray_rows = ray.data.read_parquet("in")
scored = EXAMPLE
rows = scored.select_columns(["id", "predicted_label", "error"]).take_all()
""",
    "spark": f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark_rows = spark.read.parquet("in")
schema = "{SCHEMA}, truncated boolean, error string"
scored = EXAMPLE
rows = [row.asDict() for row in scored.select("id", "predicted_label", "error").collect()]
""",
    "dask": """
import dask.dataframe
dask_rows = dask.dataframe.read_parquet("in")
scored = EXAMPLE
rows = scored[["id", "predicted_label", "error"]].compute().to_dict("records")
""",
}


def example(name: str) -> str:
    """Return the line of the README for a program."""
    (line,) = re.findall(
        rf"^{name}_rows\..*$", (ROOT / "serve/README.md").read_text(), re.MULTILINE
    )
    return line


@pytest.mark.cluster
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_example_predicts_as_a_bulk_job(run, tmp_path, name):
    python = os.environ.get(f"{name.upper()}_PYTHON")
    if python is None:
        pytest.skip(f"{name} is absent: set {name.upper()}_PYTHON to a Python that has it")
    (tmp_path / "in").mkdir()
    write_parquet(tmp_path / "in" / "rows.parquet", GROUPS)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").symlink_to(run)
    program = PROGRAMS[name].replace("EXAMPLE", example(name))
    (tmp_path / "program.py").write_text(
        "import json\n"
        "from pathlib import Path\n"
        "from pipework.serve.bulk.scorer import Scorer\n"
        'if __name__ == "__main__":\n'
        + "".join(f"    {line}\n" for line in program.splitlines())
        + '    Path("rows.json").write_text(json.dumps(rows, default=str))\n'
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python}
    subprocess.run([python, "program.py"], cwd=tmp_path, env=environment, check=True, timeout=240)
    rows = json.loads((tmp_path / "rows.json").read_text())
    options = BulkOptions(pattern=str(tmp_path / "in"), out=tmp_path / "out", keep=["id"])
    score_files(run, options, NullProgress())
    parts = (pq.read_table(path) for path in part_files(tmp_path / "out"))
    expected = {row["id"]: row["predicted_label"] for part in parts for row in part.to_pylist()}
    assert {row["id"]: row["predicted_label"] for row in rows} == expected
    assert len(rows) == len(expected) == sum(GROUPS)
    assert {row["error"] for row in rows} <= {None, "None"}
