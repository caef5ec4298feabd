"""Print the hashed requirements of what pip would install: hashed.py REPORT HASHES.

REPORT is written by `pip install --dry-run --report`. Packages without hashes are left out.
"""

import json
import re
import sys
from pathlib import Path

report, hashes = map(Path, sys.argv[1:])
packages = json.loads(report.read_text())["install"]
names = {re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower() for package in packages}
for requirement in re.split(r"\n(?=\S)", hashes.read_text()):
    if requirement.partition("==")[0] in names:
        sys.stdout.write(f"{requirement}\n")
