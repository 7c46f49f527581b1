"""None, one or several; stage by stage; over several calls; and what is never a finding."""

from dataclasses import replace

import pytest
import torch

from bitgate.kernels.moe import MOE_EXPERTS
from bitgate.kernels.moe.experts_data import make_inputs
from bitgate.kernels.moe.staged_reference import experts_tile
from bitgate.parity.order.catalogue import ORDERS, orders_of
from bitgate.parity.order.identify import Call, identify
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

LIMIT = {"swiglu_limit": 10.0}
CHEAP = ("moe_gemm", "moe_act", "moe_combine", "moe_combine_weighted", "mhc_post")


def experts_call(tokens: int, *boundaries: str, hidden: int = 96, intermediate: int = 40) -> Call:
    """A call of the experts under moe-bf16/1."""
    axes = {"tokens": tokens, "hidden": hidden, "intermediate": intermediate}
    point = Workload(
        op=MOE_EXPERTS.op,
        axes=tuple(sorted({**axes, "experts": 6, "top_k": 2}.items())),
        dtype="bfloat16",
        case="padding",
    )
    inputs, seen = make_inputs(point, 0), {}
    out = experts_tile(**inputs, **LIMIT, tap=seen.__setitem__)
    observed = {name: seen[name] for name in boundaries} | {"out": out}
    return Call(label=f"{tokens} tokens", inputs=inputs, constants=LIMIT, observed=observed)


def flipped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with one bit of its middle element changed."""
    words = tensor.clone()
    flat = words.view(torch.int16 if tensor.element_size() == 2 else torch.int32).view(-1)
    flat[len(flat) // 2] ^= 1
    return words


@pytest.mark.parametrize("op", CHEAP)
def test_one_flipped_bit_is_nobodys(tools, inputs, op) -> None:
    orders = orders_of(op)
    calls = tools.calls(orders, orders.named[0][1], inputs(op))
    (clean,) = identify(orders, calls)
    assert clean.verdict in ("one", "several")
    assert orders.named[0][0] in clean.named
    observed = {name: flipped(one) for name, one in calls[-1].observed.items()}
    (found,) = identify(orders, [*calls[:-1], replace(calls[-1], observed=observed)])
    assert (found.verdict, found.reproducing, found.named) == ("none", (), ())
    nearest = found.nearest[0]
    assert (nearest.differing, abs(nearest.max_ulp or 0)) == (1, 1)
    assert found.label == calls[-1].label


def test_each_stage_is_identified_alone_from_what_was_observed_before() -> None:
    names = ("gate_up_acc", "gate_up", "activated", "weighted_acc", "weighted")
    call = experts_call(17, *names)
    orders = orders_of("moe_experts")
    found = identify(orders, [call])
    assert [one.stage for one in found] == [
        "inputs -> gate_up_acc",
        "gate_up_acc -> gate_up",
        "gate_up -> activated",
        "activated -> weighted_acc",
        "weighted_acc -> weighted",
        "weighted -> out",
    ]
    assert all("moe-bf16/1" in one.named for one in found)
    assert found[0].possible["first matmul"] == ("serial-64", "tile-64")
    assert found[4].possible == {"weight": ("accumulator",)}
    # A fault in one stage is that stage's alone.
    observed = call.observed | {"activated": flipped(call.observed["activated"])}
    again = identify(orders, [replace(call, observed=observed)])
    assert [one.verdict == "none" for one in again] == [False, False, True, True, False, False]


def test_without_boundaries_whole_orders_are_tried() -> None:
    orders = orders_of("moe_experts")
    (found,) = identify(orders, [experts_call(5, hidden=64, intermediate=32)])
    assert found.stage == "inputs -> out"
    assert found.verdict == "several"
    assert "moe-bf16/1" in found.named
    assert found.tried > 1000
    assert 1 < found.distinct < found.tried // 10
    assert found.possible["gate_up"] == ("bf16",)
    assert found.possible["weight"] == ("accumulator",)
    assert "torch" in found.possible["silu"]


def test_a_second_call_leaves_fewer_orders(tools, inputs) -> None:
    orders = orders_of("moe_gemm")
    first, second = tools.calls(orders, orders.named[0][1], inputs("moe_gemm"))
    (weak,) = identify(orders, [second])
    (both,) = identify(orders, [second, first])
    assert set(both.reproducing) < set(weak.reproducing)
    assert both.compared == weak.compared + first.observed["out"].numel()
    # What one order made cannot be told with what another one made.
    other = tuple(
        (name, "row" if name == "weight" else option) for name, option in orders.named[0][1]
    )
    mixed = tools.calls(orders, other, inputs("moe_gemm"))[1]
    (none,) = identify(orders, [second, mixed])
    assert (none.verdict, none.calls, none.label) == ("none", 2, mixed.label)
    assert none.nearest[0].differing > 10


@pytest.mark.parametrize("op", CHEAP)
def test_nothing_compared_is_no_finding(tools, inputs, op) -> None:
    orders = orders_of(op)
    calls = tools.calls(orders, orders.named[0][1], inputs(op))[:1]
    empty = {name: one[:0] for name, one in calls[0].observed.items()}
    if orders.shorten is not None:
        few = orders.shorten(calls[0].inputs, calls[0].observed, 0)
        (found,) = identify(orders, [replace(calls[0], inputs=few[0], observed=few[1])])
        assert (found.verdict, found.compared, found.tried) == ("nothing", 0, 0)
    # An empty result of a call that has elements is no result of it.
    (found,) = identify(orders, [replace(calls[0], observed=empty)])
    assert found.verdict == "nothing"
    assert found.reproducing == ()


def test_another_dtype_is_told(tools, inputs) -> None:
    orders = orders_of("moe_combine")
    (call,) = tools.calls(orders, orders.named[0][1], inputs("moe_combine"))
    wide = replace(call, observed={"out": call.observed["out"].float()})
    (found,) = identify(orders, [wide])
    assert found.verdict == "none"
    assert "bfloat16" in found.nearest[0].detail
    assert found.nearest[0].differing == wide.observed["out"].numel()


def test_a_call_too_large_is_cut_and_the_librarys_orders_left_out(tools) -> None:
    orders = tools.around(orders_of("moe_experts"), "first matmul")
    call = experts_call(9, hidden=64, intermediate=32)
    (found,) = identify(orders, [call], tokens=2)
    assert found.label == "9 tokens, 2 of 9 tokens"
    assert found.compared == 2 * 64
    assert "moe-bf16/1" in found.named
    assert [one.partition(":")[0] for one in found.left_out] == [
        "first matmul torch-bf16",
        "first matmul torch-fp32",
        "second matmul torch-bf16",
        "second matmul torch-fp32",
        "silu torch",
    ]
    assert not any(option == "torch-bf16" for one in found.reproducing for _, option in one)
    (least,) = identify(orders, [call], work=1)
    assert least.label == "9 tokens, 1 of 9 tokens"
    staged = experts_call(9, "activated", "weighted", hidden=64, intermediate=32)
    assert [one.compared for one in identify(orders, [staged], tokens=3)] == [192, 384, 192]


def test_what_cannot_be_identified_is_refused(tools, inputs) -> None:
    orders = orders_of("moe_gemm")
    first, second = tools.calls(orders, orders.named[0][1], inputs("moe_gemm"))
    for calls, message in (
        ([], "expected calls that observed the same tensors"),
        ([first, replace(second, observed={})], "expected calls that observed the same tensors"),
        ([replace(first, observed={})], "expected at least one observed tensor of acc, out"),
    ):
        with pytest.raises(UsageError, match=message):
            identify(orders, calls)
    with pytest.raises(UsageError, match="cannot be cut to fewer tokens"):
        identify(orders, [first], work=1)
    with pytest.raises(UsageError, match="cannot be cut to fewer tokens"):
        identify(orders, [first], tokens=1)


def test_calls_that_can_be_cut_are_all_but_those_with_an_alignment() -> None:
    assert {one.op for one in ORDERS if one.shorten is None} == {"moe_gemm", "moe_act"}
