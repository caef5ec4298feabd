"""Our own door: `/v1/predict`."""

from http import HTTPStatus

from pipework.closeable import Closing
from pipework.errors import PipeError
from pipework.scoring.predictions import Prediction
from pipework.serve.client.address import Address
from pipework.serve.client.web import Web, read
from pipework.serve.schemas import PREDICT_PATH, READY_PATH, PredictRequest, PredictResponse


class RestDoor(Closing):
    """A Door to `pipe serve` by its simple protocol."""

    def __init__(self, web: Web, address: Address) -> None:
        """Take over connections."""
        self._web, self._address = web, address

    def ask(self, request: PredictRequest) -> list[Prediction]:
        """Return the answers to one request."""
        named = {"model": self._address.model, "version": self._address.version}
        asked = request.model_copy(update=named)
        answer = self._web.post(PREDICT_PATH, asked.model_dump_json(exclude_none=True))
        return read(PredictResponse, answer).predictions

    def ready(self) -> bool:
        """Whether the server takes requests."""
        try:
            return self._web.get(READY_PATH).status_code == HTTPStatus.OK
        except PipeError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._web.close()
