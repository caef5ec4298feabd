"""Manifests for tests, as an export would write them."""

from pipework.run_folder.manifest import Manifest


def as_checked(manifest: Manifest) -> Manifest:
    """Return a manifest whose engines were checked with its model."""
    subject = manifest.subject
    engines = (engine.model_copy(update={"subject": subject}) for engine in manifest.engines)
    return manifest.model_copy(update={"engines": tuple(engines)})
