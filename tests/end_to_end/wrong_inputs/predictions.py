"""Wrong inputs and options of `pipe predict`."""

from tests.end_to_end.wrong_inputs.run_folders import pretrained, run
from tests.end_to_end.wrong_inputs.wrong_input import refused

PREDICT = {
    "an output URL without --in": refused(
        "predict RUN rain --out s3://bucket/rows.csv",
        "--out s3://bucket/rows.csv: expected a path, found a URL",
    ),
    "a prediction without run": refused("predict", "expected a run folder or --url, found neither"),
    "texts and a file": refused(
        "predict RUN rain --file dev.tsv", "expected texts or --file, found both"
    ),
    "an absent file to predict": refused(
        "predict RUN --file absent.tsv", "absent.tsv cannot be read: No such file or directory"
    ),
    "an output as xls": refused(
        "predict RUN rain --out out.xls", "out.xls: expected a file ending in .tsv, .csv or .jsonl"
    ),
    "an output in an absent folder": refused(
        "predict RUN rain --out no/out.tsv",
        "no/out.tsv cannot be written: expected a file path in an existing folder",
    ),
    "a step that was not kept": refused(
        "predict RUN rain --engine step-7", "RUN has no checkpoint 'step-7'; it keeps none"
    ),
    "an engine of a server": refused(
        "predict --url http://127.0.0.1:9 --engine a rain",
        "expected a run folder with --engine, found --url",
    ),
    "a server without scheme": refused(
        "predict --url localhost:8000 rain",
        "localhost:8000: expected http://, https://, grpc:// or grpcs:// and HOST:PORT",
    ),
    "a server that does not listen": refused(
        "predict --url http://127.0.0.1:9 rain",
        "http://127.0.0.1:9 cannot be reached: [Errno 111] Connection refused",
    ),
    "columns without names": refused(
        "predict --url http://127.0.0.1:9 --file dev.tsv --columns text",
        "columns 'text': expected text=COLUMN or text_pair=COLUMN",
    ),
    "a prediction of a pretraining": run(
        "predict RUN rain", pretrained, "RUN is of pretraining: it has an encoder and no classifier"
    ),
}
