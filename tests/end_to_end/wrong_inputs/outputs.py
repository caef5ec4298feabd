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
    "no processes": refused(
        "train config.toml --out out --nproc 0",
        "Invalid value for '--nproc': Input should be greater than or equal to 1",
    ),
    "a run with damaged weights": WrongInput(
        command="train config.toml --out out --resume",
        change=damaged_state,
        error="out/state/step-00000001 is damaged: Error while deserializing: header too small",
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
