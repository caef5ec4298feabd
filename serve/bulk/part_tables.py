"""The table of a part, and the numbers of its rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from pipework.errors import ConfigError
from pipework.serve.bulk.ledger import RowCounts
from pipework.serve.bulk.records import RowWindow
from pipework.tasks.predictions import (
    LABEL,
    SPAN_FIELDS,
    SPANS,
    TRUNCATED,
    ColumnType,
    PredictedColumn,
    PredictedColumns,
)

FILE, ROW = "source_file", "source_row"


def output_types(files: Mapping[str, Any], keep: Sequence[str]) -> dict[str, Any]:
    """Return the types of copied columns in all parts, which are read as one table.

    Types are widened: integers, floats, times and decimals to the largest of their kind, null to
    any type. Dictionaries and the other types of texts become strings.

    Args:
        files: the arrow schema of each file.
        keep: the columns that are copied.

    Raises:
        ConfigError: the types of a column have no common type without loss.
    """
    import pyarrow as pa  # noqa: PLC0415  (optional)

    return {
        name: _common_type(
            pa, name, {file: schema.field(name).type for file, schema in files.items()}
        )
        for name in keep
    }


def _common_type(pa: Any, name: str, types: Mapping[str, Any]) -> Any:  # noqa: ANN401  (no types)
    plain = {_plain_type(pa, kind) for kind in types.values()}
    with suppress(pa.ArrowTypeError):
        fields = [pa.schema([(name, kind)]) for kind in sorted(plain, key=str)]
        common = pa.unify_schemas(fields, promote_options="permissive").field(name).type
        numbers = {pa.types.is_floating(kind) for kind in plain if not pa.types.is_null(kind)}
        if len(numbers) < 2:  # noqa: PLR2004  (a large integer is no exact float)
            return common
    files = {str(kind): file for file, kind in reversed([*types.items()])}
    found = ", ".join(f"{kind} in {file}" for kind, file in sorted(files.items()))
    message = f"column {name!r} has several types: {found}"
    raise ConfigError(message, "choose the columns to copy: --keep NAME,NAME")


def _plain_type(pa: Any, kind: Any) -> Any:  # noqa: ANN401  (no types)
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = (pa.string(), pa.large_string(), pa.string_view())
    return pa.string() if value in texts else value


def part_table(
    window: RowWindow, predicted: PredictedColumns, file: str, metadata: Mapping[str, str]
) -> Any:  # noqa: ANN401  (no types)
    """Return the rows of a window as an arrow table: copied columns, file, row, predictions."""
    import pyarrow as pa  # noqa: PLC0415  (optional)

    types = {
        ColumnType.TEXT: pa.string(),
        ColumnType.NUMBER: pa.float32(),
        ColumnType.COUNT: pa.int32(),
        ColumnType.FLAG: pa.bool_(),
    }
    types[ColumnType.SPAN] = pa.struct({name: types[kind] for name, kind in SPAN_FIELDS.items()})
    columns = dict(zip(window.kept.schema.names, window.kept.columns, strict=True))
    columns[FILE] = pa.array([file] * len(window.rows), pa.string())
    columns[ROW] = pa.array(window.rows, pa.int64())
    for name, column in predicted.items():
        item = types[column.type]
        columns[name] = pa.array(column.values, pa.list_(item) if column.many else item)
    return pa.table(columns, metadata=metadata)


def row_counts(window: RowWindow, predicted: PredictedColumns) -> RowCounts:
    """Return the numbers of rows; a regression has no labels, "" counts rows without a label."""
    labels = predicted.get(LABEL, PredictedColumn(type=ColumnType.TEXT, values=()))
    if SPANS in predicted:
        found = [[span["label"] for span in spans] for spans in predicted[SPANS].values]
        labels = PredictedColumn(type=ColumnType.TEXT, many=True, values=found)
    reasons = (f"{reject.file}:{reject.row}: {reject.reason}" for reject in window.rejects)
    return RowCounts(
        rows=len(window.rows),
        reason=next(reasons, ""),
        rejected=len(window.rejects),
        truncated=sum(predicted[TRUNCATED].values),
        labels=Counter(
            chain.from_iterable(labels.values)
            if labels.many
            else (label or "" for label in labels.values)
        ),
    )
