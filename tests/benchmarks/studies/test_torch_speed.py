import numpy as np
import pytest
import torch
from torch.nn import functional

from pipework.benchmarks.studies import torch_speed
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.tiny_encoders import sample_examples
from pipework.benchmarks.studies.torch_speed import STAGES, engines, main
from pipework.run_folder.engine_record import Layout
from pipework.run_folder.manifest import read_classifier
from pipework.text.encoding import open_encoder
from pipework.train.model.checkpoint_engine import open_reference


@pytest.fixture
def varlen_attention(monkeypatch):
    """Replace torch's varlen attention by the same function for the CPU."""

    def attend(query_TAD, key_TAD, value_TAD, start_N, end_N, longest, _):
        assert longest == int(start_N.diff().max())
        assert torch.equal(start_N, end_N)
        texts = [
            functional.scaled_dot_product_attention(*(states.transpose(0, 1) for states in text))
            for text in zip(
                *(
                    states.split(start_N.diff().tolist())
                    for states in (query_TAD, key_TAD, value_TAD)
                ),
                strict=True,
            )
        ]
        return torch.cat([states_ATD.transpose(0, 1) for states_ATD in texts])

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", attend)
    monkeypatch.setattr(torch_speed, "has_varlen_attention", lambda _: True)


@pytest.mark.usefixtures("varlen_attention")
def test_both_layouts_compute_the_logits_of_the_checkpoint(trained_run):
    manifest = read_classifier(trained_run)
    encodings = open_encoder(trained_run, manifest).encode(sample_examples()[:12])
    expected = open_reference(trained_run, manifest).infer(encodings).values
    found = dict(engines(trained_run, manifest, "eager"))
    assert [*found] == [*STAGES.values()]
    for engine in found.values():
        np.testing.assert_allclose(engine.infer(encodings).values, expected, atol=1e-5)


def test_each_file_has_a_result(trained_run, tmp_path, capsys):
    files = [tmp_path / "short.tsv", tmp_path / "long.tsv"]
    for words, file in enumerate(files, start=1):
        file.write_text(
            "\n".join(["text\tlabel", *["rain\tweather" for _ in range(4 * words)], ""])
        )
    options = ("--batch", "2", "--seconds", "0.05", "--backend", "eager", "--out", str(tmp_path))
    assert main(["--run", str(trained_run), *options, *map(str, files)]) == 0
    for file in files:
        result = read_stored(tmp_path / f"torch-{trained_run.name}-{file.stem}.json")
        assert result.workload.source == file.name
        assert [level.stage for level in result.offline] == [STAGES[Layout.PADDED]]
    assert (
        "not measured: torch, compiled, varlen attention: it needs CUDA" in capsys.readouterr().out
    )
