import pytest

from pipework.train.report.plots import read_curves
from pipework.train.report.run_log import Journal


def test_what_a_run_logged_is_read_as_curves(tmp_path):
    with Journal(tmp_path) as journal:
        for step, loss in ((1, 3.0), (2, 2.0), (3, 1.5)):
            journal.scalars(step, "train", {"loss": loss, "learning_rate": 0.1})
        journal.scalars(2, "dev", {"accuracy": 0.5})
        journal.scalars(3, "dev", {"accuracy": 0.5})
    found = read_curves(tmp_path)
    assert found.keys() == {"train/loss", "train/learning_rate", "dev/accuracy"}
    assert found["train/loss"].steps_S == (1, 2, 3)
    assert found["train/loss"].values_S == (3.0, 2.0, 1.5)
    assert found["dev/accuracy"].best == (2, 0.5)


def test_steps_that_were_taken_again_count_once(tmp_path):
    lines = [(1, 3), (3, 1), (2, 2.5), (3, 2.25), (4, 1.75)]
    text = "".join(f'{{"step": {s}, "group": "train", "loss": {v}}}\n' for s, v in lines)
    (tmp_path / "log.jsonl").write_text(text + '{"step": 5, "gro')
    loss = read_curves(tmp_path)["train/loss"]
    assert loss.steps_S == (1, 2, 3, 4)
    assert loss.values_S == pytest.approx((3, 2.5, 2.25, 1.75))
