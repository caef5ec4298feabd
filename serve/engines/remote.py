"""Engine for a tensor model of a remote tritonserver: the arrays of each call are sent by gRPC.

The gRPC stubs are those of NVIDIA's tritonclient. Arrays are int64, logits float32, both
little-endian.

Shapes: N inputs, B of one call, C classes.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from pipework.closeable import Closeable
from pipework.errors import NotReadyError
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines.base import Arrays
from pipework.serve.engines.triton import FIRST_ONLY, TENSOR_MODEL, open_tensor_model
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding

CALL_S = 30.0  # timeout of one call, which includes Triton's own queue
PAUSE_S = 1.0  # after a failure: requests fail at once instead of each waiting for a timeout
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),  # the default is two minutes
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorModel:
    """The tensor model that computes the logits of a text model.

    Attributes:
        name: name of the tensor model.
        first_only: see `Collate`.
        batch: most texts of a call.
    """

    name: str
    first_only: bool
    batch: int

    @classmethod
    def of(cls, config: model_config_pb2.ModelConfig) -> "TensorModel | None":
        """Return the tensor model that a text model's config names; None if it names none."""
        if TENSOR_MODEL not in config.parameters:
            return None
        name = str(config.parameters[TENSOR_MODEL].string_value)
        first_only = config.parameters[FIRST_ONLY].string_value == "true"
        return cls(name=name, first_only=first_only, batch=max(1, config.max_batch_size))


class RemoteModel(Closeable):
    """Client of a tensor model on a tritonserver: takes arrays by name and returns logits."""

    def __init__(self, url: str, name: str, version: str) -> None:
        """Create the channel; no request is sent yet.

        Args:
            url: host:port of the server's gRPC port.
            name: name of the model.
            version: version of the model.
        """
        self._label = f"{name} {version} on {url}"
        self._name, self._version = name, version
        self._channel = grpc.insecure_channel(url, options=OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._retry_at_s, self._fault = 0.0, ""

    def __call__(self, arrays: Arrays) -> NDArray[np.float32]:
        """Return the logits [B, C] of one call.

        Raises:
            NotReadyError: Triton cannot be reached, has not loaded the model, times out, or
                returns an error or a response without logits.
        """
        if time.monotonic() < self._retry_at_s:
            raise NotReadyError(self._fault)
        try:
            response = self._stub.ModelInfer(self._request(arrays), timeout=CALL_S)
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {' '.join((error.details() or '').split())}"
            raise self._failure(reason) from error
        return self._logits(response)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _request(self, arrays: Arrays) -> object:
        return service_pb2.ModelInferRequest(
            model_name=self._name,
            model_version=self._version,
            inputs=[
                service_pb2.ModelInferRequest.InferInputTensor(
                    name=name, datatype="INT64", shape=array.shape
                )
                for name, array in arrays.items()
            ],
            outputs=[service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="logits")],
            raw_input_contents=[
                np.ascontiguousarray(array, "<i8").tobytes() for array in arrays.values()
            ],
        )

    def _logits(self, response: "service_pb2.ModelInferResponse") -> NDArray[np.float32]:
        outputs = [(output.name, output.datatype, [*output.shape]) for output in response.outputs]
        sizes = [len(raw) for raw in response.raw_output_contents]
        match outputs, sizes:
            case [("logits", "FP32", [rows, classes])], [size] if size == 4 * rows * classes:
                raw = response.raw_output_contents[0]
                return np.frombuffer(raw, "<f4").reshape(rows, classes)
            case _:
                expected = "expected logits, FP32 of two dimensions"
                reason = f"{expected}, found {outputs} in {sizes} bytes"
                raise self._failure(reason)

    def _failure(self, reason: str) -> NotReadyError:
        self._fault = f"the model {self._label} failed: {reason}"
        self._retry_at_s = time.monotonic() + PAUSE_S
        return NotReadyError(self._fault, "is Triton running, with the same repository?")


class RemoteEngine(Closeable):
    """Engine for a tensor model of a tritonserver, with a parity check before its first call.

    After a failed call parity is checked again, since Triton may have loaded another model.
    """

    def __init__(
        self, run: Path, manifest: Manifest, tensor_model: TensorModel, model: RemoteModel
    ) -> None:
        """Open the stored rows; no request is sent yet.

        Raises:
            RunFolderError: the reference rows are missing or changed.
        """
        self._model, self._batch = model, tensor_model.batch
        self._classes = len(manifest.task.labels)
        self._proven = open_tensor_model(
            run,
            manifest,
            model,
            first_only=tensor_model.first_only,
            batch=tensor_model.batch,
            model_folder=run.parents[1] / tensor_model.name / run.name,
        )

    def prove(self) -> None:
        """Check parity now.

        Raises:
            NotReadyError: Triton does not respond.
            CheckFailedError: the logits differ from the checkpoint's; further calls fail.
        """
        self._proven.prove()

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        """Return the outputs of N inputs.

        Raises:
            NotReadyError: Triton does not respond; the next call tries again.
            CheckFailedError: the parity check failed.
        """
        parts = [Outputs.of(np.empty((0, self._classes), np.float32))]
        order = list[int]()
        with self._recheck_after_failure():
            for rows in _calls(list(map(len, encodings)), self._batch):
                parts.append(self._proven.infer([encodings[row] for row in rows]))
                order += rows
        return Outputs.concatenate(parts).take(np.argsort(order))

    def close(self) -> None:
        """Close the connection; the model is Triton's."""
        self._proven.close()
        self._model.close()

    @contextmanager
    def _recheck_after_failure(self) -> Iterator[None]:
        try:
            yield
        except NotReadyError:
            self._proven.invalidate()
            raise


def open_remote(run: Path, manifest: Manifest, tensor_model: TensorModel, url: str) -> RemoteEngine:
    """Open the tensor model of a text model on a remote tritonserver and check its parity.

    Args:
        run: the folder of the text model's version.
        manifest: its manifest.
        tensor_model: see `TensorModel.of`; its version is that of the text model.
        url: host:port of the server's gRPC port.

    Raises:
        RunFolderError: a file is missing or changed.
        NotReadyError: Triton does not respond or has not loaded the model; a retry may succeed.
        CheckFailedError: the logits differ from those of the checkpoint.
    """
    verify_files(run, (manifest.input.tokenizer,))
    model = RemoteModel(url, tensor_model.name, run.name)
    try:
        engine = RemoteEngine(run, manifest, tensor_model, model)
        engine.prove()
    except BaseException:
        model.close()
        raise
    return engine


def _calls(lengths_N: Sequence[int], batch: int) -> Iterator[list[int]]:
    """Yield the inputs of each call: at most `batch`, of similar lengths."""
    order = sorted(range(len(lengths_N)), key=lengths_N.__getitem__)
    for start in range(0, len(order), batch):
        yield order[start : start + batch]
