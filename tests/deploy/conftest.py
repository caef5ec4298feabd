"""The image of deploy/Containerfile, built once for all tests of a session."""

import re
from collections.abc import Iterator

import pytest

from tests.deploy.image import ROOT, TAG, Builder, Image, absent_component, build_debian, run


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


def page_commands() -> list[str]:
    """Return the commands of the shell blocks of deploy/README.md."""
    text = (ROOT / "deploy" / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


@pytest.fixture(scope="session")
def image(builder) -> Image:
    """The image, built by the command of deploy/README.md."""
    (command,) = [line for line in page_commands() if line.startswith("buildah ")]
    run("sh", "-c", command, env=builder.environment)
    return Image(builder, TAG)
