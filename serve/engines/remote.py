"""Computes on a remote tritonserver: texts are tokenised here, the arrays go there by gRPC.

The protocol is that of NVIDIA's tritonclient, from its generated stubs. Arrays are int64, logits
float32, both little-endian.

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

from pipework.closeable import Closing
from pipework.errors import NotReadyError
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import Manifest
from pipework.serve.engines.base import Arrays
from pipework.serve.engines.triton import FIRST_ONLY, TENSOR_MODEL, open_behind
from pipework.text.encoding import Encoding

CALL_S = 30.0  # for one call; the model may stand in a queue there
PAUSE_S = 1.0  # after a failure, before Triton is asked again: else each request waited for it
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),  # it would else wait for two minutes
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """The model that computes behind a text model.

    Attributes:
        name: of it.
        first_only: see `Collate`.
        batch: the most texts of a call.
    """

    name: str
    first_only: bool
    batch: int

    @classmethod
    def of(cls, config: model_config_pb2.ModelConfig) -> "Behind | None":
        """Return what the config of a text model names; None where it computes by itself."""
        if TENSOR_MODEL not in config.parameters:
            return None
        named = str(config.parameters[TENSOR_MODEL].string_value)
        first_only = config.parameters[FIRST_ONLY].string_value == "true"
        return cls(name=named, first_only=first_only, batch=max(1, config.max_batch_size))


class RemoteModel(Closing):
    """A model of a tritonserver that takes arrays by name and gives logits."""

    def __init__(self, url: str, name: str, version: str) -> None:
        """Prepare; nothing is sent yet.

        Args:
            url: host:port of the server's gRPC door.
            name: of the model.
            version: of it.
        """
        self._where = f"{name} {version} on {url}"
        self._name, self._version = name, version
        self._channel = grpc.insecure_channel(url, options=OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._again_s, self._fault = 0.0, ""

    def __call__(self, arrays: Arrays) -> NDArray[np.float32]:
        """Return the logits [B, C] of one call.

        Raises:
            NotReadyError: Triton cannot be reached, has not loaded the model, does not answer in
                time, or answers an error or something else than logits.
        """
        if time.monotonic() < self._again_s:
            raise NotReadyError(self._fault)
        try:
            found = self._stub.ModelInfer(self._request(arrays), timeout=CALL_S)
        except grpc.RpcError as error:
            said = " ".join((error.details() or "").split())
            how = f"{error.code().name}: {said}"
            raise self._failed(how) from error
        return self._logits(found)

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

    def _logits(self, found: "service_pb2.ModelInferResponse") -> NDArray[np.float32]:
        outputs = [(one.name, one.datatype, [*one.shape]) for one in found.outputs]
        sizes = [len(raw) for raw in found.raw_output_contents]
        match outputs, sizes:
            case [("logits", "FP32", [rows, classes])], [size] if size == 4 * rows * classes:
                raw = found.raw_output_contents[0]
                return np.frombuffer(raw, "<f4").reshape(rows, classes)
            case _:
                how = f"expected logits, FP32 of two dimensions, found {outputs} in {sizes} bytes"
                raise self._failed(how)

    def _failed(self, how: str) -> NotReadyError:
        self._fault = f"the model {self._where} did not answer: {how}"
        self._again_s = time.monotonic() + PAUSE_S
        return NotReadyError(self._fault, "is Triton running, with the same repository?")


class RemoteEngine(Closing):
    """An Engine that a tritonserver computes. It is proven before its first answer.

    After Triton could not be asked it is proven again, since another model may stand there then.
    """

    def __init__(self, run: Path, manifest: Manifest, behind: Behind, model: RemoteModel) -> None:
        """Prepare; nothing is asked yet.

        Raises:
            RunFolderError: the rows that prove it are missing or changed.
        """
        self._model, self._batch = model, behind.batch
        self._classes = len(manifest.task.labels)
        self._proven = open_behind(
            run,
            manifest,
            model,
            first_only=behind.first_only,
            batch=behind.batch,
            beside=run.parents[1] / behind.name / run.name,
        )

    def prove(self) -> None:
        """Prove it now.

        Raises:
            NotReadyError: it cannot be asked now.
            CheckFailedError: it answers differently from the checkpoint, and is not asked again.
        """
        self._proven.prove()

    def infer(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """Return logits [N, C].

        Raises:
            NotReadyError: Triton does not answer; the next call tries again.
            CheckFailedError: the proof failed.
        """
        logits_NC = np.empty((len(encodings), self._classes), np.float32)
        with self._again_after_failure():
            for rows in _calls([len(one) for one in encodings], self._batch):
                logits_NC[rows] = self._proven.infer([encodings[row] for row in rows])
        return logits_NC

    def close(self) -> None:
        """Close the connection; the model is Triton's."""
        self._proven.close()
        self._model.close()

    @contextmanager
    def _again_after_failure(self) -> Iterator[None]:
        try:
            yield
        except NotReadyError:
            self._proven.forget()
            raise


def open_remote(run: Path, manifest: Manifest, behind: Behind, url: str) -> RemoteEngine:
    """Open the model that computes behind a text model on a remote tritonserver, and prove it.

    Args:
        run: the folder of the text model's version.
        manifest: of it.
        behind: see `Behind.of`; its version is that of the text model.
        url: host:port of the server's gRPC door.

    Raises:
        RunFolderError: a file is missing or changed.
        NotReadyError: Triton is not there, or has not loaded the model: try again later.
        CheckFailedError: the model answers differently from the checkpoint.
    """
    verify_files(run, (manifest.input.tokenizer,))
    model = RemoteModel(url, behind.name, run.name)
    try:
        engine = RemoteEngine(run, manifest, behind, model)
        engine.prove()
    except BaseException:
        model.close()
        raise
    return engine


def _calls(lengths_N: Sequence[int], batch: int) -> Iterator[list[int]]:
    """Yield the inputs of each call: at most `batch`, of like lengths."""
    order = sorted(range(len(lengths_N)), key=lengths_N.__getitem__)
    for start in range(0, len(order), batch):
        yield order[start : start + batch]
