"""Wrong configs of `pipe train`."""

from tests.end_to_end.wrong_inputs.wrong_input import CONFIG, TRAIN_COMMAND, WrongInput, refused


def config(content: str | bytes, error: str, name: str = "config.toml") -> WrongInput:
    """Return a training with another config file."""
    command = TRAIN_COMMAND.replace("config.toml", name)
    return WrongInput(command=command, files={name: content}, error=error)


FILES = {
    "an absent config": refused(
        "train absent.toml --out out", "config file absent.toml does not exist"
    ),
    "a misspelled recipe": refused(
        "train smaple --out out", "smaple is neither a config file nor a recipe"
    ),
    "a folder as config": refused("train . --out out", ". is neither a config file nor a recipe"),
    "no config": refused("train --out out", "Missing argument 'config'."),
    "no run folder": refused("train config.toml", "Missing option '--out'."),
    "a config of the Trainer": config(
        '{"data_dir": "data", "fp16": true, "mine": 1}',
        "config.json has keys of other programs, here: data_dir -> data.root, "
        'fp16 -> train.precision = "fp16", mine -> (unknown)',
        "config.json",
    ),
    "a recipe without data": refused(
        "train thucnews --out out", "this recipe reads your own data files: data.root is not set"
    ),
    "a config as yaml": config(
        "data:\n",
        "config.yaml: expected a settings file ending in .toml, .json, .ini",
        "config.yaml",
    ),
    "toml without value": config(
        "[data]\ntrain =\n", "config.toml is not valid TOML: Invalid value (at line 2, column 8)"
    ),
    "toml with a key twice": config(
        CONFIG + "report = true\n",
        "config.toml is not valid TOML: Cannot overwrite a value (at line 15, column 14)",
    ),
    "broken json": config(
        "{",
        "config.json is not valid JSON: Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1)",
        "config.json",
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
    "ini with a key twice": config(
        "[data]\ntrain = a\ntrain = b\n",
        "config.ini is not valid INI: While reading from '<string>' [line  3]: option "
        "'train' in section 'data' already exists",
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
    "a config with a NUL": config(
        CONFIG + "\0", "config.toml is not valid TOML: Invalid statement (at line 15, column 1)"
    ),
    "an unknown section": config(CONFIG + "[training]\n", "config.toml: training: unknown key"),
    "a misspelled key": config(
        CONFIG.replace("epochs", "epoch"), "config.toml: train.epoch: unknown key"
    ),
    "a section as value": config(
        "data = 1\n" + CONFIG.replace("[data]", "[model.cnn]"),
        "config.toml: data: Input should be a valid dictionary or instance of "
        "DataSettings, found 1",
    ),
}
