"""What the program knows about a runtime of engines; each runtime has a module with a subclass."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from pipework.errors import MissingDependencyError
from pipework.machine import sums_int8
from pipework.run_folder.engine_record import (
    EngineBuild,
    EngineRecord,
    Layout,
    Precision,
    Scaling,
    Variant,
)
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.collate import Collate


class Usability(StrEnum):
    """Whether a part can be used on this machine."""

    YES = "yes"
    SLOW = "slow"  # it works, without the instructions that make it fast
    BUILD_ONLY = "build only"  # engines for another machine
    NO = "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class TritonForm:
    """How a backend of Triton reads an engine: its name and platform, and the name of the file.

    Attributes:
        cuda_options: options of the backend's CUDA provider, for an engine that runs on a GPU.
    """

    backend: str
    platform: str
    model_file: str
    cuda_options: Mapping[str, str] = field(default_factory=dict)


class Runtime(ABC):
    """Opens engines of a format. Loads its packages only in the methods that need them.

    Attributes:
        format: the format of its engines, a value of `pipe export --to`.
        converter: module and class of the building half, which the server never imports.
        model_file: name of an engine's main file.
        extra: extra of pipework that installs its packages.
        precisions: supported precisions.
        layouts: supported layouts.
        scalings: supported scalings of int8.
        hub_files: paths in a published folder by precision; engines of other layouts have none.
        triton: form for the backend of Triton that runs its engines, if there is one.
    """

    format: ClassVar[str]
    converter: ClassVar[str]
    model_file: ClassVar[str]
    extra: ClassVar[str]
    precisions: ClassVar[tuple[Precision, ...]]
    layouts: ClassVar[tuple[Layout, ...]] = (Layout.PADDED, Layout.PACKED)
    scalings: ClassVar[tuple[Scaling, ...]] = (Scaling.STATIC,)
    hub_files: ClassVar[Mapping[Precision, str]] = MappingProxyType({})
    triton: ClassVar[TritonForm | None] = None

    @abstractmethod
    def examine(self, precision: Precision) -> tuple[Usability, str]:
        """Return whether engines of a precision can be used here, with versions or the reason.

        Raises:
            MissingDependencyError, ImportError, OSError: a package is missing or damaged.
        """

    def supports(self, precision: Precision, layout: Layout) -> bool:
        """Return whether there are engines of a precision in a layout."""
        return precision in self.precisions and layout in self.layouts

    def needs_gpu(self, variant: Variant) -> bool:
        """Return whether an engine computes on a GPU only."""
        del variant
        return False

    @abstractmethod
    def local_precisions(self) -> tuple[Precision, ...]:
        """Return the precisions that are worth building on this machine; none without packages."""

    def local_scalings(self) -> tuple[Scaling, ...]:
        """Return the scalings of int8 that are worth building on this machine."""
        return self.scalings

    @abstractmethod
    def open(
        self,
        path: Path,
        variant: Variant,
        collate: Collate,
        built: EngineBuild | None,
        threads: int,
    ) -> CollatedEngine:
        """Open the main file of an engine.

        Args:
            path: the file; other files of the engine are in the same folder.
            variant: layout and precision of the engine.
            collate: cuts batches into calls.
            built: the build record; None for a graph that is being converted.
            threads: threads of a runtime that computes on the CPU.

        Raises:
            RunFolderError: the file is not an engine that fits the model's input.
            MissingDependencyError: the runtime or the GPU of the engine is missing.
        """

    def version(self) -> str:
        """Return name and version of the installed runtime; "" if versions do not matter."""
        return ""

    def fits_here(self, built: EngineBuild) -> bool:
        """Return whether an engine was built for a machine like this."""
        del built
        return True

    def check_converter(self) -> None:  # noqa: B027  (some runtimes need no check)
        """Check that engines can be built here.

        Raises:
            MissingDependencyError: a package is missing.
        """

    def check_triton(self, record: EngineRecord) -> None:  # noqa: B027
        """Check that the backend of `triton` reads an engine.

        Raises:
            ConfigError: it does not.
        """


def check_installed(package: str, extra: str) -> None:
    """Check that the package of a runtime is installed.

    Raises:
        MissingDependencyError: it is not.
    """
    if importlib.util.find_spec(package) is None:
        message = f"{package} is not installed; the engine needs it"
        raise MissingDependencyError(message, f"pip install 'pipework[{extra}]'")


def cpu_usability(precision: Precision, where: str) -> tuple[Usability, str]:
    """Return whether a runtime on the CPU is fast with a precision, as `Runtime.examine` does."""
    if precision is Precision.INT8 and not sums_int8():
        return Usability.SLOW, f"{where}, which has no instructions for int8 sums (VNNI or AMX)"
    return Usability.YES, where
