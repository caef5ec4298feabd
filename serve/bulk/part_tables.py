"""The table of a part, and the numbers of its rows."""

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any

from pipework.serve.bulk.ledger import RowCounts
from pipework.serve.bulk.records import RowWindow
from pipework.tasks.predictions import (
    LABEL,
    TRUNCATED,
    ColumnType,
    PredictedColumn,
    PredictedColumns,
)

ROW = "source_row"


def part_table(window: RowWindow, predicted: PredictedColumns, metadata: Mapping[str, str]) -> Any:  # noqa: ANN401  (no types)
    """Return the rows of a window as an arrow table: copied columns, row, predictions."""
    import pyarrow as pa  # noqa: PLC0415  (optional)

    types = {
        ColumnType.TEXT: pa.string(),
        ColumnType.NUMBER: pa.float32(),
        ColumnType.FLAG: pa.bool_(),
    }
    columns = dict(zip(window.kept.schema.names, window.kept.columns, strict=True))
    columns[ROW] = pa.array(window.rows, pa.int64())
    for name, column in predicted.items():
        item = types[column.type]
        columns[name] = pa.array(column.values, pa.list_(item) if column.many else item)
    return pa.table(columns, metadata=metadata)


def row_counts(window: RowWindow, predicted: PredictedColumns) -> RowCounts:
    """Return the numbers of rows; a regression has no labels."""
    labels = predicted.get(LABEL, PredictedColumn(type=ColumnType.TEXT, values=()))
    return RowCounts(
        rows=len(window.rows),
        rejected=len(window.rejects),
        truncated=sum(predicted[TRUNCATED].values),
        labels=Counter(chain.from_iterable(labels.values) if labels.many else labels.values),
    )
