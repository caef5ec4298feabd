from pipework.errors import DeadlineError, NotReadyError, PipeError, TooBusyError
from pipework.serve.http.errors import error_response
from pipework.serve.http.request_parser import TransferCodingError


def test_only_server_errors_are_logged(caplog):
    expected = NotReadyError("stopped"), DeadlineError("late"), TransferCodingError("gzip")
    for error in (*expected, TooBusyError("full", 3)):
        error_response(error)
    assert not caplog.records  # clients can cause any number of them
    assert error_response(PipeError("broken")).status_code == 500
    assert [record.message for record in caplog.records] == ["500 broken"]
