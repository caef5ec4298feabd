import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pipework.serve.inference_protocol.grpc_codec import message
from pipework.serve.inference_protocol.metadata import config
from pipework.serve.models.repository import Policy


class Named:
    name = "topics"
    inputs = ("text",)
    classes = 3
    rows_per_token = False


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(), {"all": {}}),
        (Policy(latest=3), {"latest": {"num_versions": 3}}),
        (Policy(specific=(1, 4)), {"specific": {"versions": [1, 4]}}),
    ],
)
def test_the_versions_that_are_served_are_said_as_triton_says_them(policy, expected):
    described = config(Named(), 9, policy)
    assert described.model_dump(mode="json")["version_policy"] == expected
    said = message(described, ModelConfig)
    assert Policy.of(said) == policy
