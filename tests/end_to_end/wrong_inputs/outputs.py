"""Wrong folders for the result of `pipe train`, also of a run to resume."""

from pathlib import Path

from pipework.settings import dump_settings
from pipework.train.config.run_config import load_config
from tests.end_to_end.wrong_inputs.wrong_input import CONFIG, WrongInput, refused


def damaged_state(folder: Path) -> None:
    """Write an unfinished run whose checkpoint is not one."""
    config = load_config(str(folder / "config.toml"), [])
    step = folder / "out" / "state" / "step-00000001"
    step.mkdir(parents=True)
    (folder / "out" / "train.log").touch()
    (folder / "out" / "config.toml").write_text(dump_settings(config))
    (step / "train_state.json").write_text("{}")
    for name in ("model.safetensors", "optimizer.safetensors", "optimizer.json"):
        (step / name).write_text("damaged")


TRAINS = {
    "a finished run as --out": refused(
        "train config.toml --out RUN", "RUN already contains a finished run"
    ),
    "a folder of files as --out": refused(
        "train config.toml --out .", ". contains files that no run wrote: dev.tsv, train.tsv"
    ),
    "a file as --out": refused(
        "train config.toml --out train.tsv", "cannot create train.tsv: File exists"
    ),
    "an --out below a file": refused(
        "train config.toml --out train.tsv/run", "cannot create train.tsv/run: Not a directory"
    ),
    "an --out where no folder can be": refused(
        "train config.toml --out /proc/run", "cannot create /proc/run: No such file or directory"
    ),
    "no processes": refused(
        "train config.toml --out out --nproc 0",
        "Invalid value for '--nproc': Input should be greater than or equal to 1",
    ),
    "processes as a word": refused(
        "train config.toml --out out --nproc two",
        "Invalid value for '--nproc': Input should be a valid integer, unable to parse "
        "string as an integer",
    ),
    "a resumed run of another kind": refused(
        "train config.toml --out RUN --resume --set task.kind=regression",
        "RUN is complete with task.kind = single_label, found regression",
    ),
    "a run with a damaged checkpoint": WrongInput(
        command="train config.toml --out out --resume",
        files={
            "out/train.log": "",
            "out/config.toml": CONFIG,
            "out/state/step-00000001/train_state.json": "{",
        },
        error="out/state/step-00000001 was not written by this version: Invalid JSON: EOF "
        "while parsing an object at line 1 column 1",
    ),
    "a run with an empty checkpoint": WrongInput(
        command="train config.toml --out out --resume",
        files={
            "out/train.log": "",
            "out/config.toml": CONFIG,
            "out/state/step-00000001/model.safetensors": "",
        },
        error="out/state/step-00000001/train_state.json: No such file or directory",
    ),
    "a run with damaged weights": WrongInput(
        command="train config.toml --out out --resume",
        change=damaged_state,
        error="out/state/step-00000001 is damaged: Error while deserializing: header too small",
    ),
    "a resumed run without config": WrongInput(
        command="train config.toml --out out --resume",
        files={"out/train.log": "", "out/state/step-00000001/train_state.json": "{}"},
        error="out/config.toml cannot be read: No such file or directory",
    ),
    "a resumed run with other settings": WrongInput(
        command="train config.toml --out out --resume",
        files={
            "out/train.log": "",
            "out/config.toml": CONFIG.replace("epochs = 1", "epochs = 2"),
            "out/state/step-00000001/train_state.json": "{}",
        },
        error="out was started with data.root = None, found '.'",
    ),
}
