from types import SimpleNamespace

import pytest

from pipework.errors import ConfigError
from pipework.serve.config import QueueSettings, ServeSettings
from pipework.settings import load_settings
from pipework.wire.text_tensors import MAX_CHARACTERS


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (f"limits.characters={MAX_CHARACTERS + 1}", "less than or equal to 100000, found 100001"),
        ("limits.header_s=0", "greater than 0, found 0"),
        ("limits.body_s=0", "greater than 0, found 0"),
    ],
)
def test_an_invalid_limit_is_rejected(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--set {setting.partition('=')[0]}: .*{message}"):
        load_settings(ServeSettings, None, [setting])


def test_the_size_of_the_cache_has_a_unit() -> None:
    for size, expected in (("64MB", 64_000_000), ("2KiB", 2048), ("5", 5)):
        settings = load_settings(ServeSettings, None, [f"cache.bytes={size}"])
        assert settings.cache.bytes == expected
    with pytest.raises(ConfigError, match=r"cache\.bytes: could not interpret byte unit: apples"):
        load_settings(ServeSettings, None, ["cache.bytes=64 apples"])


@pytest.mark.parametrize(
    ("given", "on_gpu", "expected"), [(None, False, 1024), (None, True, 8192), (64, True, 64)]
)
def test_batches_of_an_engine_on_a_gpu_have_the_size_of_its_calls(given, on_gpu, expected) -> None:
    costs = SimpleNamespace(most_tokens=8192)
    engine = SimpleNamespace(on_gpu=on_gpu, collate=SimpleNamespace(costs=costs))
    assert QueueSettings(batch_tokens=given).for_engine(engine).batch_tokens == expected
