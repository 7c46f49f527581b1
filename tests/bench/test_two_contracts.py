"""Both sides of a pair give the bits of one contract, and a refusal says why."""

from types import SimpleNamespace

import pytest

from bitgate.bench import resolve
from bitgate.records.errors import UsageError


def side(contract: str) -> SimpleNamespace:
    return SimpleNamespace(name=f"of {contract}", contract=contract, config=(), switches=())


def test_a_pair_of_two_contracts_is_refused_with_what_differs() -> None:
    resolve._require_same_conditions(side("moe-bf16/1"), side("moe-bf16/1"))
    with pytest.raises(UsageError) as refused:
        resolve._require_same_conditions(side("moe-torch/1"), side("moe-bf16/1"))
    told = str(refused.value)
    assert "the baseline of moe-bf16/1 has another contract: moe-bf16/1" in told
    assert "weight: the float32 weight multiplies the bfloat16 row" in told
    assert "experts_oracle.experts_float64" in told
