"""Large requests are read and answered outside of the event loop."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as proto

from pipework.serve.config import ServeSettings
from pipework.serve.inference_protocol import service
from pipework.serve.inference_protocol.infer_request import packed
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Observers


@pytest.mark.parametrize("function", ["write_message", "read_message"])
def test_a_large_request_does_not_block_the_event_loop(
    run: Path, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    inner = getattr(service, function)

    def recorded(*given: object) -> object:
        threads.append(threading.current_thread())
        return inner(*given)

    monkeypatch.setattr(service, function, recorded)
    monkeypatch.setattr("pipework.serve.scheduling.loop_bridge.INLINE_LOGITS", 0)
    raw = packed(np.array([b"rain " * 10_000], np.object_))
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [1]}]
    context = SimpleNamespace(
        peer=lambda: "ipv4:127.0.0.1:5000",
        invocation_metadata=lambda: None,
        time_remaining=lambda: None,
        set_trailing_metadata=lambda _: None,
    )
    with open_predictor(run) as predictor:
        models = Models([predictor])
        request = proto.ModelInferRequest(
            model_name=predictor.name, inputs=inputs, raw_input_contents=[raw]
        )
        with Observers(models) as watch:
            served = service.InferenceService(models, ServeSettings(), watch)
            response = asyncio.run(served.ModelInfer(request, context))
    assert len(response.outputs) == 4
    assert len(threads) == 1
    assert threads != [threading.main_thread()]
