import pytest

from pipework.closeable import Closeable


class Connection(Closeable):
    """Counts how often it is closed."""

    closed = 0

    def close(self):
        self.closed += 1


def test_the_block_gets_the_object_and_closes_it():
    connection = Connection()
    with connection as entered:
        assert entered is connection
        assert connection.closed == 0
    assert connection.closed == 1


def test_an_error_in_the_block_closes_it_and_is_raised():
    connection = Connection()
    with pytest.raises(KeyError, match="0"), connection:
        raise KeyError(connection.closed)
    assert connection.closed == 1


def test_a_subclass_without_close_cannot_be_created():
    class Incomplete(Closeable):
        pass

    with pytest.raises(TypeError, match="close"):
        Incomplete()
