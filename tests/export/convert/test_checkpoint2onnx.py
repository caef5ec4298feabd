import numpy as np
import pytest
import torch

from pipework.export.convert.checkpoint2onnx import trace
from pipework.run_folder.engine_record import Layout
from pipework.serve.engines.collate import Collate
from pipework.serve.engines.onnxruntime import OnnxRuntimeEngine
from pipework.text.encoding import Encoding
from pipework.text.padding import Padding


class Bag(torch.nn.Module):
    """A model with all inputs that a classifier may have."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(10, 8)
        self.kinds = torch.nn.Embedding(2, 8)
        self.head = torch.nn.Linear(8, 3)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, input_ids, attention_mask, token_type_ids=None, entity_spans=None):
        hidden = self.words(input_ids) * attention_mask[:, :, None]
        if token_type_ids is not None:
            hidden = hidden + self.kinds(token_type_ids) * attention_mask[:, :, None]
        if entity_spans is not None:
            places = torch.arange(input_ids.shape[1])
            inside = (places >= entity_spans[:, 2:3]) & (places < entity_spans[:, 3:4])
            hidden = hidden * inside[:, :, None]
        return self.head(self.dropout(hidden.sum(1)))


def encodings():
    for n in (2, 5, 9, 3):
        ids = np.arange(n, dtype=np.int32) % 10
        yield Encoding(
            ids=ids,
            type_ids=(ids % 2).astype(np.int8),
            entity_spans=((0, 1), (n // 2, n)),
        )


@pytest.mark.parametrize("type_ids", [False, True])
@pytest.mark.parametrize("spans", [False, True])
def test_a_graph_has_the_inputs_and_logits_of_its_model(tmp_path, type_ids, spans):
    model, path = Bag(), tmp_path / "model.onnx"
    trace(model, path, type_ids=type_ids, spans=spans)
    padding = Padding(pad_id=0, type_ids=type_ids)
    rows = list(encodings())
    expected = [
        model.eval()(
            *(torch.tensor(one.ids[None]).long(), torch.ones(1, len(one)).long()),
            token_type_ids=torch.tensor(one.type_ids[None]).long() if type_ids else None,
            entity_spans=torch.tensor(one.entity_spans).reshape(1, 4) if spans else None,
        )
        for one in rows
    ]
    collate = Collate(layout=Layout.PADDED, padding=padding, spans=spans, whole=True)
    with OnnxRuntimeEngine(path, collate) as engine:
        found = engine.infer(rows).values
    np.testing.assert_allclose(found, torch.cat(expected).detach().numpy(), atol=1e-5)
