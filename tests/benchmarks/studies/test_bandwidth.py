from pipework.benchmarks.studies.roofs import bandwidth_gb_s


def test_copies_are_measured_in_10_9_bytes_a_second() -> None:
    assert 0.5 < bandwidth_gb_s() < 1000
