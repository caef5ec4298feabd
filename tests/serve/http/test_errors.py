from pipework.errors import DeadlineError, NotReadyError, PipeError, TooBusyError
from pipework.serve.http.errors import failure


def test_only_faults_of_the_server_are_logged(caplog):
    for error in (NotReadyError("dead"), DeadlineError("late"), TooBusyError("full", 3)):
        failure(error)
    assert not caplog.records  # anybody can cause as many as they like
    assert failure(PipeError("broken")).status_code == 500
    assert [one.message for one in caplog.records] == ["500 broken"]
