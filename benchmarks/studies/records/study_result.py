"""The base class of the stored results of studies."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.record import Record


class StudyResult(Record):
    """A result that has its own rows in a table of RESULTS.md or MATRIX.md."""

    TABLE: ClassVar[str] = ""
    HEAD: ClassVar[tuple[str, ...]] = ()
    schema_version: Literal[1] = SCHEMA_VERSION
    provenance: Provenance

    @property
    def table(self) -> str:
        """The name of the table, as its marker contains it."""
        return self.TABLE

    def head(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self.HEAD

    def table_rows(self) -> Iterable[tuple[str, ...]]:
        """Return the rows of the table."""
        raise NotImplementedError

    def title(self) -> str:
        """Return the text above the rows; a result without text shares its table with others."""
        return ""

    def notes(self) -> Sequence[str]:
        """Return the notes below the table, one for each line."""
        return ()

    def origins(self) -> tuple[Provenance, ...]:
        """Return the provenance of all values."""
        return (self.provenance,)
