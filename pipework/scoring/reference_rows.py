"""Rows stored with an engine to check its parity again: token ids and the checkpoint's outputs.

Texts are not stored. The file is NumPy's npz without pickled objects.

Shapes: N inputs, T tokens of an input, S tokens of all inputs, C logits.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pipework.errors import RunFolderError
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding

REFERENCE_ROWS_FILE = "rows.npz"
# Errors of NumPy and zipfile for a truncated or corrupt file, or for unexpected arrays.
READ_ERRORS = (OSError, EOFError, ValueError, LookupError, BadZipFile, zlib.error)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceRows:
    """Inputs and the checkpoint's outputs for them."""

    encodings: Sequence[Encoding]
    outputs: Outputs

    def write(self, path: Path) -> None:
        """Write the file."""
        rows = self.encodings
        arrays = {
            "lengths_N": np.array([len(row) for row in rows], np.int64),
            "ids_S": np.concatenate([row.ids for row in rows]),
            "logits_NC": self.outputs.values,
        }
        if not self.outputs.one_each:
            arrays["offsets"] = self.outputs.offsets
        types = [row.type_ids for row in rows if row.type_ids is not None]
        spans = [row.entity_spans for row in rows if row.entity_spans is not None]
        if types:
            arrays["type_ids_S"] = np.concatenate(types)
        if spans:
            arrays["spans_N22"] = np.array(spans, np.int64)
        with path.open("wb") as stream:
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]

    @classmethod
    def read(cls, path: Path) -> "ReferenceRows":
        """Read the file.

        Raises:
            RunFolderError: the file is missing or invalid.
        """
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                outputs = Outputs.of(arrays["logits_NC"])
                if "offsets" in arrays:
                    outputs = Outputs(outputs.values, arrays["offsets"])
                return cls(encodings=_encodings(dict(arrays)), outputs=outputs)
        except READ_ERRORS as error:
            message = f"{path} does not hold the reference rows of an engine: {error}"
            raise RunFolderError(message, "export again: pipe export RUN") from error


def _encodings(arrays: dict[str, NDArray[np.generic]]) -> list[Encoding]:
    ends_N = np.cumsum(np.asarray(arrays["lengths_N"], np.int64))[:-1]
    ids = np.split(np.asarray(arrays["ids_S"], np.int32), ends_N)
    types: Sequence[NDArray[np.int8] | None] = [None] * len(ids)
    if "type_ids_S" in arrays:
        types = np.split(np.asarray(arrays["type_ids_S"], np.int8), ends_N)
    spans: Sequence[list[list[int]] | None] = [None] * len(ids)
    if "spans_N22" in arrays:
        spans = arrays["spans_N22"].tolist()
    return [
        Encoding(
            ids=ids_T,
            type_ids=type_ids_T,
            entity_spans=None
            if pair is None
            else ((pair[0][0], pair[0][1]), (pair[1][0], pair[1][1])),
        )
        for ids_T, type_ids_T, pair in zip(ids, types, spans, strict=True)
    ]
