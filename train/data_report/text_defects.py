"""Find texts that the program which wrote or read the file has damaged."""

import re
from collections import Counter
from collections.abc import Sequence

# Each kind of defect with what to do about it.
DEFECTS = {
    "HTML entities, such as &amp;": (
        re.compile(r"&(?:[A-Za-z]{2,8}|#[0-9]{2,6}|#x[0-9A-Fa-f]{2,5});"),
        "decode them, here and in requests (html.unescape)",
    ),
    # The bytes of UTF-8 start with these characters in Windows-1252.
    "UTF-8 that was decoded as Windows-1252, such as Ã© for é": (
        re.compile(r"[ÂÃÐÑ][\u0080-\u00bf]|â€|ðŸ"),
        "remove data.encoding, or write the file again from its source, as UTF-8",
    ),
    "control characters, such as U+0085": (
        re.compile(r"[\u0080-\u009f]"),
        'the file may be of Windows: set data.encoding = "cp1252" instead of latin-1',
    ),
    'doubled quotes, such as ""word""': (
        re.compile(r'\w""(?!")|(?<!")""\w'),
        "set data.quoting = true if the fields of the file are quoted",
    ),
}


def count_defects(texts: Sequence[str]) -> Counter[str]:
    """Return the number of texts with each kind of defect of `DEFECTS`."""
    joined = "\n".join(texts)
    found = Counter[str]()
    for name, (pattern, _) in DEFECTS.items():
        if pattern.search(joined):  # most files have none
            found[name] = sum(pattern.search(text) is not None for text in texts)
    return found
