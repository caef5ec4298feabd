"""Which families read packed rows. Loads no torch: the command line asks it first."""

from pipework.errors import ConfigError

# Whose encoders take a bias [R, 1, T, T] and positions, and use nothing else of a row.
PACKABLE = frozenset(
    {
        *("albert", "bert", "camembert", "distilbert", "electra"),
        *("modernbert", "mpnet", "rembert", "roberta", "xlm-roberta"),
    }
)
WHY_NOT = {
    "deberta": "it multiplies its embeddings by the mask",
    "deberta-v2": "it multiplies its embeddings by the mask",
    "funnel": "it pools neighbouring tokens",
    "nystromformer": "its attention is through means over the whole row",
    "xlnet": "it counts positions over the whole row",
}


def check_packable(family: str, instead: str = "take --layout padded") -> None:
    """Check that the family's encoder can read packed rows; `instead` is the way without them.

    Raises:
        ConfigError: it cannot.
    """
    if family not in PACKABLE:
        why = WHY_NOT.get(family, "nobody has tried it")
        message = f"{family} cannot read packed rows: {why}"
        hint = f"{instead}; packed are {', '.join(sorted(PACKABLE))}"
        raise ConfigError(message, hint)
