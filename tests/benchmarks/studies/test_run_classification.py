from pipework.benchmarks.studies.matrix import random_encoder, random_run
from pipework.benchmarks.studies.run_classification import TrainerResult, main
from pipework.benchmarks.studies.tiny_encoders import EncoderFamily
from pipework.run_folder.manifest import read_manifest
from pipework.train.config.model import Head


def test_the_trainer_learns_the_rows_of_a_run(tmp_path, capsys):
    encoder = random_encoder(EncoderFamily.BERT, tmp_path / "encoder")
    run = random_run(encoder, Head.LINEAR, tmp_path / "run")
    out = tmp_path / "result.json"
    assert main(["--run", str(run), "--out", str(out)]) == 0
    result = TrainerResult.model_validate_json(out.read_bytes())
    assert (result.run, result.precision) == ("run", "fp32")
    accuracy = read_manifest(run).data.metrics["dev"].scores["accuracy"]
    assert result.pipework.dev_accuracy == 100 * accuracy
    assert result.trainer.dev_accuracy > 50  # of 8 classes
    assert min(result.pipework.examples_per_s, result.trainer.examples_per_s) > 0
    assert "run: Trainer: " in capsys.readouterr().out
