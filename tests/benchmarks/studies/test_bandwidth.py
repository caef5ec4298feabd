from pipework.benchmarks.studies.roofs import bandwidth_gb_s


def test_the_bandwidth_is_in_gigabytes_per_second() -> None:
    assert 0.5 < bandwidth_gb_s() < 1000
