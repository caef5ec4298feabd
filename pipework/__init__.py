"""What every stage of the pipeline shares: contracts, text to ids, scores to labels."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pipework")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0+unknown"
