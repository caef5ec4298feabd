import tomli_w

from pipework.progress import NullProgress
from pipework.train.run_folder import CONFIG, is_complete
from pipework.train.tune.final_runs import compare, train_final_runs
from pipework.train.tune.report import UNCHANGED, WINNER


def test_a_winner_with_the_values_of_the_config_is_trained_once(small_space, tmp_path):
    space = small_space("train.batch_size=4")
    out = tmp_path / "out"
    out.mkdir()
    sections = space.config.model_dump(mode="json", exclude_none=True)
    (out / CONFIG).write_text(tomli_w.dumps(sections | {"tune": {"seeds": 1}}))
    values = {"train.learning_rate": "0.001", "train.batch_size": "4"}
    assert space.current() == values
    runs = train_final_runs(out, values, NullProgress())
    assert runs == {WINNER: [out / "config" / "seed-1"], UNCHANGED: [out / "config" / "seed-1"]}
    assert is_complete(out / "config" / "seed-1")
    comparison = compare(runs, "dev", space.config.sources()["dev"], NullProgress())
    assert comparison.winner == comparison.unchanged
    assert (comparison.low, comparison.high) == (0, 0)
