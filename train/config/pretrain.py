"""[pretrain]: what is hidden from the model, and how texts fill a row."""

from typing import Annotated

from pydantic import Field

from pipework.settings import Positive, Settings

Weight = Annotated[float, Field(ge=0)]
Weights = Annotated[tuple[Weight, ...], Field(min_length=1)]


class PretrainSettings(Settings):
    """[pretrain]: masked language modelling, and the order of two segments.

    `row_tokens` are laid side by side in a row, which `train.batch_size` counts; no row is narrower
    than `model.max_length`, the tokens that a text may have before it is cut into several.

    `mask_rate` of the tokens of a row are to be told, 80 % of them hidden by the mask token, 10 %
    by a token drawn by chance and 10 % not at all (Devlin et al. 2019,
    https://arxiv.org/abs/1810.04805). Words are hidden whole; `words` weighs runs of 1, 2, ... of
    them. In writing without spaces each token counts as a word, and `characters` weighs runs of 1,
    2, ... tokens: the default is MacBERT's (Cui et al. 2020, https://arxiv.org/abs/2004.13922).
    ALBERT has 6, 3, 2 for both, which is 1/n (Lan et al. 2020, https://arxiv.org/abs/1909.11942).

    `sentence_order`: where data.format is documents, tell whether two segments that follow one
    another were swapped (ALBERT's).
    """

    row_tokens: Positive = 128
    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    words: Weights = (1.0,)
    characters: Weights = (4.0, 3.0, 2.0, 1.0)
    sentence_order: bool = True
