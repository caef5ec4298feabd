"""The image of deploy/Containerfile, built once for all tests of a session."""

from collections.abc import Iterator

import pytest

from tests.deploy.image import TAG, Builder, Image, absent_component, build_debian, run
from tests.deploy.page import page_commands


@pytest.fixture(scope="session")
def builder(request, tmp_path_factory) -> Iterator[Builder]:
    """buildah with the base image, which pytest's cache keeps: it is made in two minutes."""
    if reason := absent_component():
        pytest.skip(reason)
    base = request.config.cache.mkdir("deploy") / "debian.tar"
    if not base.exists():
        build_debian(base)
    builder = Builder(tmp_path_factory.mktemp("buildah"), base)
    yield builder
    builder.close()


@pytest.fixture(scope="session")
def image(builder) -> Image:
    """The image, built by the command of deploy/README.md."""
    (command,) = page_commands("buildah")
    run("sh", "-c", command, env=builder.environment)
    return Image(builder, TAG)
