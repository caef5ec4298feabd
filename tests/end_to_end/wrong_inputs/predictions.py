"""Wrong inputs and options of `pipe predict`."""

from tests.end_to_end.wrong_inputs.run_folders import flipped, pretrained, run
from tests.end_to_end.wrong_inputs.wrong_input import WrongInput, refused

PREDICT = {
    "an output URL without --in": refused(
        "predict RUN rain --out s3://bucket/rows.csv",
        "--out s3://bucket/rows.csv: expected a path, found a URL",
    ),
    "a prediction without run": refused("predict", "expected a run folder or --url, found neither"),
    "a prediction of an absent run": refused(
        "predict absent rain",
        "absent is not a folder; expected a run folder of `pipe train` or `import`",
    ),
    "a pair for a model of texts": refused(
        'predict RUN "a\tb"', "input 1: found a text_pair, but this model classifies single texts"
    ),
    "texts and a file": refused(
        "predict RUN rain --file dev.tsv", "expected texts or --file, found both"
    ),
    "an absent file to predict": refused(
        "predict RUN --file absent.tsv", "absent.tsv cannot be read: No such file or directory"
    ),
    "a file of other columns": WrongInput(
        command="predict RUN --file x.tsv",
        files={"x.tsv": "sentence\na\n"},
        error="x.tsv:1: no column 'text' (the default name); found sentence",
    ),
    "an output as xls": refused(
        "predict RUN rain --out out.xls", "out.xls: expected a file ending in .tsv, .csv or .jsonl"
    ),
    "an output in an absent folder": refused(
        "predict RUN rain --out no/out.tsv",
        "no/out.tsv cannot be written: expected a file path in an existing folder",
    ),
    "a folder as output": WrongInput(
        command="predict RUN rain --out out.tsv",
        error="out.tsv cannot be written: expected a file path in an existing folder",
        change=lambda folder: (folder / "out.tsv").mkdir(),
    ),
    "columns without a file": refused(
        "predict RUN rain --columns text=text", "--columns needs --file"
    ),
    "a second column for a model of texts": refused(
        "predict RUN --file dev.tsv --columns text=text,text_pair=label",
        "columns 'text=text,text_pair=label': found text_pair, but this model classifies single "
        "texts",
    ),
    "a column with the name of a predicted one": WrongInput(
        command="predict RUN --file x.csv --out out.csv",
        files={"x.csv": "text,predicted_label\na,b\n"},
        error="x.csv: column 'predicted_label' has the name of a predicted one",
    ),
    "a step that was not kept": refused(
        "predict RUN rain --engine step-7", "RUN has no checkpoint 'step-7'; it keeps none"
    ),
    "an engine of a server": refused(
        "predict --url http://127.0.0.1:9 --engine a rain",
        "expected a run folder with --engine, found --url",
    ),
    "a run and a server": refused(
        "predict RUN rain --url http://127.0.0.1:9",
        "expected a run folder or --url, found both: RUN and http://127.0.0.1:9",
    ),
    "a server without scheme": refused(
        "predict --url localhost:8000 rain",
        "localhost:8000: expected http://, https://, grpc:// or grpcs:// and HOST:PORT",
    ),
    "a server that does not listen": refused(
        "predict --url http://127.0.0.1:9 rain",
        "http://127.0.0.1:9 cannot be reached: [Errno 111] Connection refused",
    ),
    "a gRPC server that does not listen": refused(
        "predict --url grpc://127.0.0.1:9 rain",
        "grpc://127.0.0.1:9 cannot be reached: Failed to connect to remote host: "
        "Connection refused",
    ),
    "a server with a port of words": refused(
        "predict --url http://127.0.0.1:port rain",
        "http://127.0.0.1:port: expected http://, https://, grpc:// or grpcs:// and HOST:PORT",
    ),
    "columns without names": refused(
        "predict --url http://127.0.0.1:9 --file dev.tsv --columns text",
        "columns 'text': expected text=COLUMN or text_pair=COLUMN",
    ),
    "a prediction of a pretraining": run(
        "predict RUN rain", pretrained, "RUN is of pretraining: it has an encoder and no classifier"
    ),
    "a prediction with a changed engine": run(
        "predict ENGINE rain",
        flipped("model.onnx"),
        "ENGINE/engines/onnx-fp32/DIGEST/model.onnx changed: sha256 DIGEST, expected "
        "DIGEST as in manifest.json",
        3,
    ),
    "a prediction with an unknown engine": refused(
        "predict ENGINE rain --engine onnx",
        "run trained has no engine 'onnx'; its engines: onnx-fp32",
    ),
}
