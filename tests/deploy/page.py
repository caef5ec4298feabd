"""The commands of deploy/README.md."""

import re

from tests.deploy.image import ROOT


def page_commands(program: str = "") -> list[str]:
    """Return the commands of the page's shell blocks, all or those with a program in them."""
    text = (ROOT / "deploy" / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if program in line.split() or not program]
