"""The rows that are kept beside an engine, with the checkpoint's answers, to prove it again.

They are token ids and logits, not texts. A file is NumPy's npz without pickled objects.

Shapes: N inputs, T tokens of one of them, S tokens of all, C classes.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pipework.errors import RunFolderError
from pipework.text.encoding import Encoding

FILE_NAME = "rows.npz"
# What NumPy and zipfile raise over a file that is torn, or holds other arrays than these.
UNREADABLE = (OSError, EOFError, ValueError, LookupError, BadZipFile, zlib.error)


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptRows:
    """Inputs and the logits [N, C] that the checkpoint gives them, float32."""

    encodings: Sequence[Encoding]
    logits_NC: NDArray[np.float32]

    def write(self, path: Path) -> None:
        """Write the file."""
        rows = self.encodings
        arrays = {
            "lengths_N": np.array([len(row) for row in rows], np.int64),
            "ids_S": np.concatenate([row.ids for row in rows]),
            "logits_NC": self.logits_NC,
        }
        types = [row.type_ids for row in rows if row.type_ids is not None]
        spans = [row.entity_spans for row in rows if row.entity_spans is not None]
        if types:
            arrays["type_ids_S"] = np.concatenate(types)
        if spans:
            arrays["spans_N22"] = np.array(spans, np.int64)
        with path.open("wb") as stream:
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]

    @classmethod
    def read(cls, path: Path) -> "KeptRows":
        """Read the file.

        Raises:
            RunFolderError: it is missing or not such a file.
        """
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                return cls(encodings=_encodings(dict(arrays)), logits_NC=arrays["logits_NC"])
        except UNREADABLE as error:
            message = f"{path} does not hold the rows that prove an engine: {error}"
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
            entity_spans=None if two is None else ((two[0][0], two[0][1]), (two[1][0], two[1][1])),
        )
        for ids_T, type_ids_T, two in zip(ids, types, spans, strict=True)
    ]
