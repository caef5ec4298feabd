"""Wrong options of `pipe serve` and `pipe bench`, and of the command line in general."""

from tests.end_to_end.wrong_inputs.run_folders import flipped, manifest, pretrained, removed, run
from tests.end_to_end.wrong_inputs.wrong_input import WrongInput, refused

SERVE = "serve ENGINE --port 0 --grpc-port 0"
URL = "http://127.0.0.1:9"


def bench(options: str, error: str, **files: str) -> WrongInput:
    """Return a measurement with options that are refused."""
    return WrongInput(command=f"bench {options}", files=files, error=error)


def serve(options: str, error: str, **files: str) -> WrongInput:
    """Return a server of a proven run with options that are refused."""
    return WrongInput(command=f"{SERVE} {options}", files=files, error=error)


GENERAL = {
    "an unknown command": refused(
        "tarin config.toml", "No such command 'tarin'. Did you mean 'train'?"
    ),
    "an unknown option": refused(
        "train config.toml --output out", "No such option: --output (Possible options: --out)"
    ),
    "an evaluation without run": refused("eval", "Missing argument 'run'."),
    "a diagnosis of a run": refused("doctor RUN", "Got unexpected extra argument(s) (RUN)"),
    "a flag with a value": refused("show . --json=yes", "Option '--json' does not take a value."),
}
SERVERS = {
    "a server of a run without engine": refused(
        "serve RUN --port 0 --grpc-port 0", "run trained has no engine; its engines: none"
    ),
    "a server of a pretraining": run(
        "serve RUN --port 0 --grpc-port 0",
        pretrained,
        "RUN is of pretraining: it has an encoder and no classifier",
    ),
    "a server with a changed engine": run(
        SERVE,
        flipped("model.onnx"),
        "ENGINE/engines/onnx-fp32/DIGEST/model.onnx changed: sha256 DIGEST, expected "
        "DIGEST as in manifest.json",
        3,
    ),
    "a server with a removed tokenizer": run(
        SERVE,
        removed("tokenizer.json"),
        "ENGINE/tokenizer.json is missing, but manifest.json lists it",
        3,
    ),
    "a server with a refused engine": run(
        SERVE,
        manifest(engines__0__parity__passed=False),
        "engine onnx-fp32 did not pass parity, so it is not served",
    ),
    "a server with an unknown engine": serve(
        "--engine onnx", "run trained has no engine 'onnx'; its engines: onnx-fp32"
    ),
    "a port of words": refused(
        "serve ENGINE --port http",
        "Invalid value for '--port': Input should be a valid integer, unable to parse "
        "string as an integer",
    ),
    "a port of 70000": refused(
        "serve ENGINE --port 70000",
        "cannot listen on 127.0.0.1:70000: bind(): port must be 0-65535.",
    ),
    "an address of another machine": serve(
        "--host 192.0.2.1", "cannot listen on 192.0.2.1:0: Cannot assign requested address"
    ),
    "an unknown backend": serve(
        "--backend torchserve",
        "Invalid value for '--backend': 'torchserve' is not one of 'builtin', 'triton'.",
    ),
    "a run for Triton": serve(
        "--backend triton", "ENGINE is a run folder, but tritonserver needs a model repository"
    ),
    "an unknown setting of the server": serve(
        "--set queue.batch=8", "--set queue.batch: unknown key"
    ),
    "a queue of 0 requests": serve(
        "--set queue.requests=0",
        "--set queue.requests: Input should be greater than or equal to 1, found 0",
    ),
    "texts longer than the limit": serve(
        "--set limits.characters=1000001",
        "--set limits.characters: Input should be less than or equal to 100000, found 1000001",
    ),
    "a grace of 0 s": serve(
        "--set grace_s=0", "--set grace_s: Input should be greater than or equal to 1, found 0"
    ),
    "an unknown format of logs": serve(
        "--set logs.format=xml", "--set logs.format: Input should be 'text' or 'json', found 'xml'"
    ),
    "an absent file of keys": serve(
        "--set security.keys_file=keys.txt",
        "security.keys_file: keys.txt cannot be read: No such file or directory",
    ),
    "a key with a space": serve(
        "--set security.keys_file=keys.txt",
        "keys.txt:1: expected an API key of printable ASCII characters without spaces",
        **{"keys.txt": "a b\n"},
    ),
    "an absent certificate": serve(
        "--set security.certificate=a.pem --set security.private_key=b.pem",
        "security.certificate: a.pem cannot be read: No such file or directory",
    ),
    "a certificate that is text": serve(
        "--set security.certificate=train.tsv --set security.private_key=dev.tsv",
        "security.certificate: train.tsv with dev.tsv: expected PEM, found something else",
    ),
}
BENCHES = {
    "a measurement without target": bench("", "Missing argument 'target'."),
    "a measurement of a run without engines": refused("bench RUN", "RUN has no proven engine"),
    "a measurement of a server that does not listen": bench(
        URL, "no response from http://127.0.0.1:9: no connection"
    ),
    "a measurement of an unknown endpoint": bench(
        f"{URL}/unknown", "http://127.0.0.1:9/unknown: unknown endpoint /unknown"
    ),
    "clients as a word": bench(
        f"{URL} --concurrency many", "--concurrency many: expected numbers separated by commas"
    ),
    "no clients": bench(f"{URL} --concurrency 0", "--concurrency: expected 1 to 256, found 0"),
    "an empty list of clients": bench(
        f'{URL} --concurrency ","', "--concurrency: expected at least one number of clients"
    ),
    "a million clients": bench(
        f"{URL} --concurrency 1000000", "--concurrency: expected 1 to 256, found 1e+06"
    ),
    "a rate of 0": bench(f"{URL} --rate 0", "--rate: expected 0.1 to 100000, found 0"),
    "rates of a run": bench(". --rate 5", "--rate needs the URL of a server, found ."),
    "levels of 0 s": bench(f"{URL} --seconds 0", "--seconds: expected 0.1 to 600, found 0"),
    "batches of 0 texts": bench(f"{URL} --batch 0", "--batch: expected 1 to 1024, found 0"),
    "texts of 0 words": bench(f"{URL} --words 0", "--words: expected 1 to 200, found 0"),
    "words and a file": bench(
        f"{URL} --words 5 --file dev.tsv",
        "--words is for synthetic texts: it cannot be combined with --file",
    ),
    "columns without file": bench(
        f"{URL} --columns text=0",
        "--columns names the columns of --file: expected --file, found none",
    ),
    "an empty file of texts": bench(
        f"{URL} --file x.tsv", "x.tsv contains no rows", **{"x.tsv": "text\n"}
    ),
    "an objective twice": bench(f"{URL} --slo p99=1s --slo p99=2s", "--slo limits p99 twice"),
    "an objective and a comparison": bench(
        f"{URL} --slo p99=1s --against {URL}",
        "--against cannot be combined with --slo: expected one of them",
    ),
    "arrivals without rate": bench(
        f"{URL} --arrivals constant",
        "--arrivals applies to open-loop requests: expected --rate or --slo",
    ),
    "a trace without file": bench(
        f"{URL} --rate 5 --arrivals trace", "--arrivals trace: expected --trace FILE, found none"
    ),
    "an absent trace": bench(
        f"{URL} --trace absent.jsonl", "absent.jsonl cannot be read: No such file or directory"
    ),
    "a trace that is not JSON": bench(
        f"{URL} --trace dev.tsv",
        "dev.tsv:1: body: expected JSON in UTF-8: expected ident at line 1 column 2",
    ),
    "a price too many": bench(
        f"{URL} --price 1 --price 2", "--price: expected at most 1 (one per server), found 2"
    ),
    "a negative price": bench(f"{URL} --price -1", "--price: expected 0 to 1e+06, found -1"),
    "a template that is not JSON": bench(
        f"{URL}/x --template x", "x is not JSON: Expecting value: line 1 column 1 (char 0)"
    ),
    "a template without texts": bench(
        f"{URL}/x --template '{{}}'", '{} has no placeholder: expected "$TEXTS" or "$TEXT"'
    ),
    "a template for one text": bench(
        f'{URL}/x --batch 4 --template \'{{"a": "$TEXT"}}\'',
        '{"a": "$TEXT"} takes one text per request, found 4',
    ),
    "a result in an absent folder": bench(
        f"{URL} --json no/such/f.json",
        "no/such/f.json cannot be written: expected a file path in an existing folder",
    ),
    "a page as a folder": bench(
        f"{URL} --html .", ". cannot be written: expected a file path in an existing folder"
    ),
}
