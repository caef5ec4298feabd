"""The base class of the records in files: manifests, ledgers and plans."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen group of fields; unknown fields are errors, and so are inf and nan."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
