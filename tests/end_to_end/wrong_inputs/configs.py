"""Wrong configs of `pipe train`."""

from tests.end_to_end.wrong_inputs.wrong_input import CONFIG, TRAIN_COMMAND, WrongInput, refused


def config(content: str | bytes, error: str, name: str = "config.toml") -> WrongInput:
    """Return a training with another config file."""
    command = TRAIN_COMMAND.replace("config.toml", name)
    return WrongInput(command=command, files={name: content}, error=error)


FILES = {
    "a folder as config": refused("train . --out out", ". is neither a config file nor a recipe"),
    "no config": refused("train --out out", "Missing argument 'config'."),
    "no run folder": refused("train config.toml", "Missing option '--out'."),
    "a config as yaml": config(
        "data:\n",
        "config.yaml: expected a settings file ending in .toml, .json, .ini",
        "config.yaml",
    ),
    "toml without value": config(
        "[data]\ntrain =\n", "config.toml is not valid TOML: Invalid value (at line 2, column 8)"
    ),
    "a list as json": config(
        "[]",
        "config.json is not valid JSON: expected an object of sections, found list",
        "config.json",
    ),
    "deep json": config(
        "[" * 5000,
        "config.json is not valid JSON: maximum recursion depth exceeded while "
        "decoding a JSON array from a unicode string",
        "config.json",
    ),
    "ini without section": config(
        "train = x\n",
        "config.ini is not valid INI: File contains no section headers.",
        "config.ini",
    ),
    "ini with a section in a value": config(
        "[data]\ntrain=a\n[data.train]\nb=1\n",
        "data.train.b: train is a value, not a section",
        "config.ini",
    ),
    "an empty config": config("", "config.toml: data: missing section"),
    "a config in UTF-16": config(
        CONFIG.encode("utf-16"), "config.toml: not UTF-8 (byte 0: invalid start byte)"
    ),
    "an unknown section": config(CONFIG + "[training]\n", "config.toml: training: unknown key"),
}
