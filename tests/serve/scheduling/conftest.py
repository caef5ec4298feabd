from collections.abc import Callable

import pytest

from pipework.serve.models import open_models
from tests.serve.servers import Infer, wrap_engines


@pytest.fixture
def wrap(monkeypatch: pytest.MonkeyPatch) -> Callable[[Infer], None]:
    """Wrap the engines of this process until the end of the test."""
    for name in ("open_first", "open_proven"):
        monkeypatch.setattr(open_models, name, getattr(open_models, name))
    return wrap_engines
