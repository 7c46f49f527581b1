"""Shapes of models that people serve, as data with sources, and what follows from them.

`shape("Qwen3-30B-A3B")` is a model, `split_shape("Qwen3-30B-A3B@ep2")` one with its parallel split.
The numbers lie in the TOML files beside this one; a number that is not there was not read.
"""

from bitgate.records.models.load import names, shape, split_shape
from bitgate.records.models.types import ModelShape, Split, first_overflow_tokens

__all__ = ["ModelShape", "Split", "first_overflow_tokens", "names", "shape", "split_shape"]
