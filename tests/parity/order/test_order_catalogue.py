"""What an order makes is identified as that order, or as one of those that nothing tells apart."""

import pytest
import torch

from bitgate.kernels import catalogue as kernels
from bitgate.kernels.data import IntegerStream, integer_tensor
from bitgate.kernels.loading import load
from bitgate.kernels.moe.roundings import VALUES
from bitgate.parity.order import scalar, sums
from bitgate.parity.order.base import replay
from bitgate.parity.order.catalogue import ORDERS, orders_of
from bitgate.parity.order.identify import identify
from bitgate.parity.order.mhc import CARRY
from bitgate.parity.order.probes import probes
from bitgate.records.errors import UsageError

BY_OP = {orders.op: orders for orders in ORDERS}
# What the probes cannot tell apart, each for its reason; elsewhere torch and the host's BLAS may
# have other orders, and fewer of these are alike.
ALIKE = (
    # Torch's bfloat16 matmul is a chain of AMX's instructions where the processor has it.
    {"even-odd-32", "torch-bf16"},
    # The host's BLAS adds the products of a tile one after the other, on some processors.
    *({f"serial-{k}", f"tile-{k}"} for k in (16, 32, 64, 128)),
    # Torch adds so few slots one after the other, and four streams by fused multiply-adds.
    {"fp32-slots", "torch-sum"},
    {"products-slots", "products-torch-sum"},
    {"x-last", "torch-einsum"},
    # Of most bfloat16 gates, silu in any form rounds to the same bfloat16.
    {"libm", "sigmoid", "fast", "torch", "replayed"},
    # What torch's bfloat16 matmul gives is a bfloat16 row already.
    {"row", "accumulator"},
    # A root in float64 and one that is rounded once differ where the sums of squares do.
    {"float64", "rsqrt"},
)
CHEAP = [
    (op, dimension.name)
    for op in ("moe_gemm", "moe_act", "moe_combine", "moe_combine_weighted", "mhc_post")
    for dimension in BY_OP[op].dimensions
]
DEAR = [
    (op, dimension.name)
    for op in ("moe_gemm", "moe_experts", "mhc_pre", "mhc_post_pre")
    for dimension in BY_OP[op].dimensions
    if dimension.name not in ("second matmul", "norm")
    and (op != "mhc_post_pre" or dimension is CARRY)
]


def round_trip(
    tools, inputs, op: str, dimension: str, *, every: int = 1, most: int | None = None
) -> None:
    """Each result of an order around the named ones leads back to the orders that give it."""
    orders, made = tools.around(BY_OP[op], dimension), inputs(op)
    groups = tools.groups(orders, made)
    place = [one.name for one in orders.dimensions].index(dimension)
    tried = {choice[place][1] for group in groups for choice in group}
    assert tried == {option.name for option in orders.dimensions[place].options} - too_short(op)
    for number, group in enumerate(groups[:most]):
        # Orders that are alike differ in options that are known to be.
        for one in group:
            for other in group:
                apart = [{a[1], b[1]} for a, b in zip(one, other, strict=True) if a != b]
                assert all(any(pair <= known for known in ALIKE) for pair in apart), apart
        if number % every:
            continue
        choice = min(group)
        (found,) = identify(orders, tools.calls(orders, choice, made), work=1 << 62)
        assert set(found.reproducing) == group
        assert found.verdict == ("one" if len(group) == 1 else "several")


def too_short(op: str) -> set[str]:
    """Lanes and blocks that 4 * 320 channels cannot be cut into, and other names of them."""
    if op not in ("mhc_pre", "mhc_post_pre"):
        return set()
    return {
        one.name
        for dimension in BY_OP[op].dimensions
        if dimension.name == "projection"
        for one in dimension.options
        if one.name.startswith("lanes-") and not fits(one.name)
    }


def fits(name: str) -> bool:
    parts = name.split("-")
    lanes = int(parts[1])
    extent = 1280 // int(parts[-1]) if "splits" in parts else 1280
    extent = int(parts[-1]) if "blocks" in parts else extent
    return extent >= lanes


@pytest.mark.parametrize(("op", "dimension"), CHEAP)
def test_round_trip(tools, inputs, op, dimension) -> None:
    # The sums of a matmul are many; the others of them are tried where time is no matter.
    round_trip(tools, inputs, op, dimension, every=4 if dimension == "first matmul" else 1)


def test_the_fused_operator_has_the_options_of_its_halves() -> None:
    options = {one.name: one.options for one in BY_OP["mhc_post_pre"].dimensions}
    for op in ("mhc_pre", "mhc_post"):
        for one in BY_OP[op].dimensions:
            assert [o.name for o in options[one.name]] == [o.name for o in one.options]


@pytest.mark.slow  # Hundreds of walks, up to a second each.
@pytest.mark.parametrize(("op", "dimension"), DEAR)
def test_round_trip_of_whole_operators(tools, inputs, op, dimension) -> None:
    round_trip(tools, inputs, op, dimension, most=15)


@pytest.mark.parametrize(
    ("op", "named"),
    [
        (op, name)
        for op in BY_OP
        for name, _ in BY_OP[op].named
        # Those of an engine are compared with it by the tests marked vllm.
        if name in kernels.kernel(op).references
    ],
)
def test_a_named_order_has_the_bits_of_what_it_names(tools, inputs, op, named) -> None:
    kernel = kernels.kernel(op)
    run = load(kernels.implementation(kernel.references[named]).target)
    choice = dict(BY_OP[op].named)[named]
    for probe in inputs(op):
        expected = kernel.named_outputs(run(**probe.inputs, **probe.constants))
        actual = replay(BY_OP[op], choice, probe.inputs, probe.constants)
        for name in tools.seen(BY_OP[op]):
            assert torch.equal(expected[name].view(torch.int16), actual[name].view(torch.int16))


def test_every_option_is_described_and_named_once() -> None:
    for orders in ORDERS:
        names = [one.name for one in orders.dimensions]
        assert len(set(names)) == len(names)
        for dimension in orders.dimensions:
            assert dimension.asks.endswith("?")
            options = [one.name for one in dimension.options]
            assert len(set(options)) == len(options)
            assert all(one.text for one in dimension.options)
        assert orders.boundaries <= set(orders.gives)
        for _, choice in orders.named:
            for (name, option), dimension in zip(choice, orders.dimensions, strict=True):
                assert name == dimension.name
                assert option in {one.name for one in dimension.options}


def test_options_have_the_names_of_the_roundings() -> None:
    options = {one.name: {o.name for o in one.options} for one in BY_OP["moe_experts"].dimensions}
    assert options["gate_up"] == set(VALUES["gemm1_out"])
    assert options["activation"] == set(VALUES["activation"])
    assert set(VALUES["weight"]) <= options["weight"]
    assert {"fp32-slots", "fma-slots", "bf16-slots", "bf16-experts", "torch-sum"} <= (
        options["combine"] & set(VALUES["combine"])
    )


def test_every_operator_of_the_catalogue_has_probes() -> None:
    for orders in ORDERS:
        for probe in probes(orders.op):
            kernel = kernels.kernel(orders.op)
            assert set(probe.inputs) == {spec.name for spec in kernel.inputs}
    with pytest.raises(UsageError, match="no probes for 'moe_route'"):
        probes("moe_route")


def test_an_unknown_operator_or_order_is_refused() -> None:
    with pytest.raises(UsageError, match="no orders are known for 'moe_route'; known: moe_experts"):
        orders_of("moe_route")
    (probe,) = probes("mhc_post")
    orders = orders_of("mhc_post")
    # Torch's einsum does not take a product of ours.
    for option in ("torch-einsum", "x-middle"):
        choice = (("post product", "fma"), ("terms", option))
        with pytest.raises(UsageError, match=f"'terms' that fits the others, got '{option}'"):
            replay(orders, choice, probe.inputs, probe.constants)
    constants = {**dict(kernels.kernel("moe_act").constants), "kind": "swiglu-oai"}
    with pytest.raises(UsageError, match="expected kind silu, got swiglu-oai"):
        orders_of("moe_act").prepare({"gate_up": torch.zeros(1, 2)}, constants)


@pytest.mark.parametrize("one", sums.SUMS, ids=lambda one: one.name)
def test_every_sum_of_integers_is_exact(one) -> None:
    products = integer_tensor(IntegerStream(1), (3, 77), high=200, dtype=torch.float32)
    assert torch.equal(one.of(products), products.long().sum(-1).float())


def test_each_sum_adds_in_the_order_that_it_says() -> None:
    by_name = {one.name: one for one in sums.SUMS}
    big = 2.0**24
    # Behind a big number small ones are lost one by one, but not in a pair.
    for values, expected in {
        (1.0, 1.0, big): {"serial": big + 2, "serial-descending": big, "pairwise": big + 2},
        (big, 1.0, 1.0): {"serial": big, "serial-descending": big + 2, "pairwise": big},
        (1.0, big, 1.0): {"serial": big, "serial-descending": big, "even-odd-32": big + 2},
    }.items():
        for name, total in expected.items():
            assert float(by_name[name].of(torch.tensor(values))) == total, (name, values)
    chunks = torch.zeros(32)
    chunks[0], chunks[16], chunks[17] = big, 1.0, 1.0
    assert float(by_name["serial"].of(chunks)) == big
    assert float(by_name["serial-16"].of(chunks)) == big + 2


def test_the_exps_are_exps() -> None:
    x = torch.linspace(-86.0, 86.0, 40_001)
    exact = x.double().exp()
    assert float(((scalar.libm_exp(x).double() - exact) / exact).abs().max()) <= 2.0**-24
    # A short polynomial, and one constant of ln 2: a few units in the last place.
    assert 2.0**-22 < float(((scalar.fast_exp(x).double() - exact) / exact).abs().max()) < 2.0**-20
    assert scalar.fast_exp(torch.tensor([-88.0])).item() == 0.0
