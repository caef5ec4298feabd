"""Wrong inputs and options of `pipe predict`."""

from tests.end_to_end.wrong_inputs.run_folders import flipped, pretrained, run
from tests.end_to_end.wrong_inputs.wrong_input import WrongInput

PREDICT = {
    "an output URL without --in": WrongInput(
        command="predict RUN rain --out s3://bucket/rows.csv",
        error="--out s3://bucket/rows.csv: expected a path, found a URL",
    ),
    "a prediction without run": WrongInput(
        command="predict", error="expected a run folder or --url, found neither"
    ),
    "a prediction of an absent run": WrongInput(
        command="predict absent rain",
        error="absent is not a folder; expected a run folder of `pipe train` or `import`",
    ),
    "a prediction of a text as run": WrongInput(
        command='predict "rain all week"',
        error="rain all week is not a folder; expected a run folder of `pipe train` or `import`",
    ),
    "a pair for a model of texts": run(
        'predict RUN "a\tb"',
        None,
        "input 1: found a text_pair, but this model classifies single texts",
    ),
    "texts and a file": run(
        "predict RUN rain --file dev.tsv", None, "expected texts or --file, found both"
    ),
    "an absent file to predict": run(
        "predict RUN --file absent.tsv",
        None,
        "absent.tsv cannot be read: No such file or directory",
    ),
    "a file of other columns": WrongInput(
        command="predict RUN --file x.tsv",
        files={"x.tsv": "sentence\na\n"},
        error="x.tsv:1: no column 'text' (the default name); found sentence",
    ),
    "an output as xls": run(
        "predict RUN rain --out out.xls",
        None,
        "out.xls: expected a file ending in .tsv, .csv or .jsonl",
    ),
    "an output in an absent folder": run(
        "predict RUN rain --out no/out.tsv",
        None,
        "no/out.tsv cannot be written: expected a file path in an existing folder",
    ),
    "a folder as output": WrongInput(
        command="predict RUN rain --out out.tsv",
        error="out.tsv cannot be written: expected a file path in an existing folder",
        change=lambda folder: (folder / "out.tsv").mkdir(),
    ),
    "columns without a file": run(
        "predict RUN rain --columns text=text", None, "--columns needs --file"
    ),
    "columns that the file lacks": run(
        "predict RUN --file dev.tsv --columns text=body",
        None,
        "dev.tsv:1: no column 'body'; found text, label",
    ),
    "a second column for a model of texts": run(
        "predict RUN --file dev.tsv --columns text=text,text_pair=label",
        None,
        "columns 'text=text,text_pair=label': found text_pair, but this model classifies single "
        "texts",
    ),
    "a column with the name of a predicted one": WrongInput(
        command="predict RUN --file x.csv --out out.csv",
        files={"x.csv": "text,predicted_label\na,b\n"},
        error="x.csv: column 'predicted_label' has the name of a predicted one",
    ),
    "a step that was not kept": run(
        "predict RUN rain --engine step-7", None, "RUN has no checkpoint 'step-7'; it keeps none"
    ),
    "an engine of a server": WrongInput(
        command="predict --url http://127.0.0.1:9 --engine a rain",
        error="expected a run folder with --engine, found --url",
    ),
    "a run and a server": run(
        "predict RUN rain --url http://127.0.0.1:9",
        None,
        "expected a run folder or --url, found both: RUN and http://127.0.0.1:9",
    ),
    "a server without scheme": WrongInput(
        command="predict --url localhost:8000 rain",
        error="localhost:8000: expected http://, https://, grpc:// or grpcs:// and HOST:PORT",
    ),
    "a server of another scheme": WrongInput(
        command="predict --url ftp://127.0.0.1 rain",
        error="ftp://127.0.0.1: expected http://, https://, grpc:// or grpcs:// and HOST:PORT",
    ),
    "a server that does not listen": WrongInput(
        command="predict --url http://127.0.0.1:9 rain",
        error="http://127.0.0.1:9 cannot be reached: [Errno 111] Connection refused",
    ),
    "a gRPC server that does not listen": WrongInput(
        command="predict --url grpc://127.0.0.1:9 rain",
        error="grpc://127.0.0.1:9 cannot be reached: Failed to connect to remote host: "
        "Connection refused",
    ),
    "a server with a port of words": WrongInput(
        command="predict --url http://127.0.0.1:port rain",
        error="http://127.0.0.1:port: expected http://, https://, grpc:// or grpcs:// and "
        "HOST:PORT",
    ),
    "columns without names": WrongInput(
        command="predict --url http://127.0.0.1:9 --file dev.tsv --columns text",
        error="columns 'text': expected text=COLUMN or text_pair=COLUMN",
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
    "a prediction with an unknown engine": run(
        "predict ENGINE rain --engine onnx",
        None,
        "run trained has no engine 'onnx'; its engines: onnx-fp32",
    ),
}
