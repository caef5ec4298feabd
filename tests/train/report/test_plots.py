import pytest

from pipework.train.report.plots import read_curves
from pipework.train.report.run_log import RunLogger


def test_logged_metrics_are_read_as_curves(tmp_path):
    with RunLogger(tmp_path) as logger:
        for step, loss in ((1, 3.0), (2, 2.0), (3, 1.5)):
            logger.scalars(step, "train", {"loss": loss, "learning_rate": 0.1})
        logger.scalars(2, "dev", {"accuracy": 0.5})
        logger.scalars(3, "dev", {"accuracy": 0.5})
    curves = read_curves(tmp_path)
    assert curves.keys() == {"train/loss", "train/learning_rate", "dev/accuracy"}
    assert curves["train/loss"].steps_S == (1, 2, 3)
    assert curves["train/loss"].values_S == (3.0, 2.0, 1.5)
    assert curves["dev/accuracy"].best == (2, 0.5)


def test_repeated_steps_count_once(tmp_path):
    lines = [(1, 3), (3, 1), (2, 2.5), (3, 2.25), (4, 1.75)]
    text = "".join(f'{{"step": {s}, "group": "train", "loss": {v}}}\n' for s, v in lines)
    (tmp_path / "log.jsonl").write_text(text + '{"step": 5, "gro')
    loss = read_curves(tmp_path)["train/loss"]
    assert loss.steps_S == (1, 2, 3, 4)
    assert loss.values_S == pytest.approx((3, 2.5, 2.25, 1.75))
