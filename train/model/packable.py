"""The families that support packed rows. Imports no torch, because the command line uses it."""

from pipework.errors import ConfigError

# Their encoders accept an attention bias [R, 1, T, T] and position ids, and need no other state.
PACKABLE = frozenset(
    {
        *("albert", "bert", "camembert", "distilbert", "electra"),
        *("modernbert", "mpnet", "rembert", "roberta", "xlm-roberta"),
    }
)
REASONS = {
    "deberta": "it multiplies its embeddings by the mask",
    "deberta-v2": "it multiplies its embeddings by the mask",
    "funnel": "it pools neighbouring tokens",
    "nystromformer": "its attention uses means over the whole row",
    "xlnet": "its positions are relative to the whole row",
}


def check_packable(family: str, instead: str = "use --layout padded") -> None:
    """Check that a family supports packed rows; `instead` is the alternative in the hint.

    Raises:
        ConfigError: it does not.
    """
    if family not in PACKABLE:
        reason = REASONS.get(family, "not tested")
        message = f"{family} does not support packed rows: {reason}"
        hint = f"{instead}; supported: {', '.join(sorted(PACKABLE))}"
        raise ConfigError(message, hint)
