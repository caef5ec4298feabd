"""Names of graph nodes and tensors."""


def strip_model_prefix(path: str) -> str:
    """Return a module path without the leading wrappers, which are all named `model`."""
    while path == "model" or path.startswith("model."):
        path = path.removeprefix("model").removeprefix(".")
    return path
