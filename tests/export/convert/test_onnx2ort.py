from pipework.export.convert.onnx2ort import as_graph
from pipework.run_folder.engine_record import Layout, Precision, Variant


def test_the_graph_of_an_engine_has_its_precision_and_layout():
    engine = Variant(format="tensorrt", precision=Precision.FP16, layout=Layout.PACKED)
    assert as_graph(engine).label == "onnx-fp16-packed"
