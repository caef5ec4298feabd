"""Wrong options and run folders of `pipe export`."""

from tests.end_to_end.wrong_inputs.run_folders import flipped, locked, manifest, pretrained, run
from tests.end_to_end.wrong_inputs.wrong_input import refused

EXPORT = "export RUN --to onnx"

EXPORTS = {
    "an export without format": refused("export RUN", "Missing option '--to'."),
    "an export to an unknown format": refused(
        "export RUN --to tflite", "unknown target --to tflite"
    ),
    "an unknown precision of an export": refused(
        f"{EXPORT} --precision int4",
        "Invalid value for '--precision': 'int4' is not one of 'fp32', 'fp16', 'bf16', 'int8'.",
    ),
    "an unknown key of an export": refused(f"{EXPORT} --set sped_s=1", "--set sped_s: unknown key"),
    "a negative time": refused(
        f"{EXPORT} --set speed_s=-1",
        "--set speed_s: Input should be greater than or equal to 0, found -1",
    ),
    "an unknown tolerance": refused(
        f"{EXPORT} --set tolerances.fp64.max_abs=1", "--set tolerances.fp64: unknown key"
    ),
    "a compute capability of 0": refused(
        "export RUN --to tensorrt --set capabilities=[0]",
        "--set capabilities.0: Input should be greater than or equal to 1, found 0",
    ),
    "a compute capability that no GPU has": refused(
        "export RUN --to tensorrt --set capabilities=[42]",
        "this TensorRT-RTX cannot build for compute capability 4.2",
    ),
    "an export with a changed checkpoint": run(
        EXPORT,
        flipped("checkpoint/model.safetensors"),
        "RUN/checkpoint/model.safetensors changed: sha256 DIGEST, expected DIGEST as "
        "in manifest.json",
        3,
    ),
    "an export without dev rows": run(
        EXPORT,
        manifest(data__splits__dev__path="/nowhere/dev.tsv", data__splits__dev__kept=None),
        "/nowhere/dev.tsv is missing: the dev file that RUN was trained with",
    ),
    "an export with changed rows": run(
        EXPORT,
        lambda folder: [
            manifest(data__splits__dev__path="/nowhere/dev.tsv")(folder),
            flipped("dev*.jsonl*")(folder),
        ],
        "RUN/rows/dev.jsonl changed: sha256 DIGEST, expected DIGEST as in manifest.json",
        3,
    ),
    "an export of a locked run": run(
        EXPORT, locked, "RUN is being written by another pipe train or pipe export"
    ),
    "an export of a pretraining": run(
        EXPORT, pretrained, "RUN is of pretraining: it has an encoder and no classifier"
    ),
    "a repository without Triton": refused(
        f"{EXPORT} --repository models",
        "--to triton and --repository must be used together, found one of them",
    ),
    "a file as repository": refused(
        "export ENGINE --to triton --repository train.tsv", "train.tsv: File exists"
    ),
    "a precision that the run lacks": refused(
        "export ENGINE --to triton --repository models --precision int8",
        "ENGINE has no proven engine for Triton (python, int8); its engines: onnx-fp32",
    ),
    "a backend of another format": refused(
        "export ENGINE --to triton --repository models --set triton.backend=tensorrt",
        "ENGINE has no proven engine for Triton (tensorrt); its engines: onnx-fp32",
    ),
}
