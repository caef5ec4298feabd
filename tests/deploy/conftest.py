"""The images of deploy/Containerfile, each built once for all tests of a session."""

from collections.abc import Iterator

import pytest

from tests.deploy.image import Builder, Image, absent_component, build_debian
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


def page_image(builder: Builder, name: str) -> Image:
    """Build an image by the command of deploy/README.md."""
    (command,) = [line for line in page_commands("buildah") if f"-t {name}:" in line]
    return builder.run(command, name)


@pytest.fixture(scope="session")
def image(builder) -> Image:
    """The server on CPUs."""
    return page_image(builder, "pipework")


@pytest.fixture(scope="session")
def s3_image(builder) -> Image:
    """The image of bulk jobs that read and write a bucket."""
    return page_image(builder, "pipework-s3")


@pytest.fixture(scope="session")
def cuda_image(builder) -> Image:
    """The server with CUDA: 1.6 GB are downloaded."""
    return page_image(builder, "pipework-cuda")


@pytest.fixture(scope="session")
def train_image(builder) -> Image:
    """The image of training jobs."""
    return page_image(builder, "pipework-train")
