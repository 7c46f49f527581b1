"""The replay of mhc-c1: right, accurate, the same under every condition, and every mutant shows."""

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
import torch

from bitgate.kernels.mhc import reference, replay
from bitgate.kernels.mhc.post import MHC_POST
from bitgate.kernels.mhc.post_pre import MHC_POST_PRE
from bitgate.kernels.mhc.pre import MHC_PRE
from bitgate.kernels.spec import Kernel, Tensors
from bitgate.parity.compare import compare_tensors
from bitgate.records.types import Workload

CONSTANTS = dict(MHC_PRE.constants)
UNIT = 2.0**-24
Tensor = torch.Tensor


def inputs_at(kernel: Kernel, tokens: int, hidden: int, index: int = 0) -> Tensors:
    axes = (("hidden", hidden), ("streams", 4), ("tokens", tokens))
    return kernel.make_inputs(Workload(op=kernel.op, axes=axes, dtype="bfloat16"), index)


def run(kernel: Kernel, inputs: Tensors) -> Tensors:
    call: Callable[..., object] = getattr(replay, kernel.op)
    return kernel.named_outputs(call(**inputs, **dict(kernel.constants)))


# --- the pieces ----------------------------------------------------------------------------------


def test_exp_is_accurate_and_saturates_exactly() -> None:
    x = torch.from_numpy(np.linspace(-87, 87, 400_001).astype(np.float32))
    exact = torch.exp(x.double())
    relative = (replay.exp(x).double() - exact).abs() / exact
    assert relative.max().item() <= 1.5 * UNIT
    edge = torch.tensor([-1e30, -87.00001, 0.0, -0.0, 87.00001, 1e30, float("nan")])
    found = replay.exp(edge).tolist()
    assert found[:6] == [0.0, 0.0, 1.0, 1.0, float("inf"), float("inf")]
    assert found[6] != found[6]


def test_sigmoid_saturates_exactly() -> None:
    z = torch.tensor([-1e30, -87.1, 0.0, 18.0, 1e30])
    assert replay.sigmoid(z).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_split_products_are_exact() -> None:
    w = inputs_at(MHC_PRE, 1, 512)["fn"].flatten()
    x = inputs_at(MHC_PRE, 24, 512)["residual"].flatten().float()
    hi, lo = replay.split(w)
    assert torch.equal(hi.double() + lo.double(), w.double())
    for part in (hi, lo):
        assert torch.equal((part * x).double(), part.double() * x.double())
    assert not torch.equal((w * x).double(), w.double() * x.double())


def test_tree_adds_adjacent_pairs() -> None:
    values = inputs_at(MHC_PRE, 1, 64)["fn"][0]

    def pairs(part: Tensor) -> Tensor:
        half = part.shape[0] // 2
        return part[0] if half == 0 else pairs(part[:half]) + pairs(part[half:])

    assert torch.equal(replay.tree(values), pairs(values))
    halves = values
    while halves.shape[0] > 1:
        halves = halves[: halves.shape[0] // 2] + halves[halves.shape[0] // 2 :]
    assert not torch.equal(replay.tree(values), halves[0])


def test_sqrt_is_correctly_rounded() -> None:
    x = inputs_at(MHC_PRE, 1, 512)["fn"].abs().flatten()
    assert np.array_equal(replay.sqrt(x).numpy(), np.sqrt(x.numpy()))


def test_rounding_is_to_nearest_even_with_one_nan() -> None:
    bits = [0x3F808000, 0x3F818000, 0x3F808001, -0x407F8000, 0x7F7FFFFF, 0x7F800001, -1, 0x7F800000]
    x = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    found = replay.round_bf16(x).view(torch.int16).tolist()
    negative_tie = 0xBF80 - 0x10000
    assert found == [0x3F80, 0x3F82, 0x3F81, negative_tie, 0x7F80, 0x7FC0, 0x7FC0, 0x7F80]
    sweep = (torch.arange(1 << 17) * 32749 % (1 << 31)).to(torch.int32).view(torch.float32)
    sweep = sweep[~sweep.isnan()]
    assert torch.equal(replay.round_bf16(sweep), sweep.to(torch.bfloat16))


# --- accuracy ------------------------------------------------------------------------------------


def test_mhc_pre_is_close_to_float64() -> None:
    inputs = inputs_at(MHC_PRE, 64, 512)
    oracle = reference.mhc_pre_f64(**inputs, **CONSTANTS)
    dot, sq = replay.dot_sq(inputs["residual"], inputs["fn"])
    x, size = inputs["residual"].flatten(1).double(), 2048
    # An error of at most one unit for each addition that a product goes through.
    depth = 2 * size // 256 + 8
    magnitude = x.abs() @ inputs["fn"].double().abs().T
    assert ((dot - oracle.dot).abs() <= depth * UNIT * magnitude).all()
    assert ((sq - oracle.sq).abs() <= depth * UNIT * oracle.sq).all()
    post, comb, layer_input = replay.mhc_pre(**inputs, **CONSTANTS)
    assert (post - oracle.post).abs().max() <= 8 * UNIT
    assert (comb - oracle.comb).abs().max() <= 4 * UNIT
    # Only values next to a tie of bfloat16 may round the other way.
    assert (layer_input != oracle.layer_input).float().mean() <= 1e-3


def test_mhc_post_is_close_to_float64() -> None:
    inputs = inputs_at(MHC_POST, 16, 512)
    exact = reference.mhc_post_f64(**inputs)
    assert (replay.mhc_post(**inputs) != exact).float().mean() <= 1e-3


# --- the same bits under every condition ---------------------------------------------------------


@pytest.mark.parametrize("kernel", [MHC_PRE, MHC_POST, MHC_POST_PRE], ids=lambda k: k.op)
def test_a_row_does_not_depend_on_its_batch(kernel: Kernel) -> None:
    inputs = inputs_at(kernel, 7, 320)
    rows = {spec.name for spec in kernel.tensors if "tokens" in spec.axes}
    together = run(kernel, inputs)
    order = torch.tensor([3, 1, 6, 0, 2, 5, 4])
    moved = run(kernel, {n: v[order] if n in rows else v for n, v in inputs.items()})
    expected = {name: value[order] for name, value in together.items()}
    assert compare_tensors("permuted", expected, moved).equal
    for row in range(7):
        alone = run(kernel, {n: v[row : row + 1] if n in rows else v for n, v in inputs.items()})
        part = {name: value[row : row + 1] for name, value in together.items()}
        assert compare_tensors(f"row {row}", part, alone).equal


@pytest.mark.parametrize("kernel", [MHC_PRE, MHC_POST, MHC_POST_PRE], ids=lambda k: k.op)
def test_threads_change_no_bit(kernel: Kernel) -> None:
    inputs = inputs_at(kernel, 64, 512)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(run(kernel, inputs))
    finally:
        torch.set_num_threads(before)
    assert compare_tensors("threads", *results).equal


# SHA-256 over the outputs' bytes in name order. Golden on every machine: inputs are made from
# integers, and the contract leaves no bit to the machine.
GOLDEN = {
    "mhc_pre": "766b9d1bcb4e83742649b8741b62966652bfa40a131e4a799138946d16c4bba2",
    "mhc_post": "763fb02a7712ada7a84ef229fafc9512347da5b6b87c10adda5be1e9f08326df",
    "mhc_post_pre": "efe198ad8972bae37391f066d974a5d187e33c0f839a3ba1046072137459ac74",
}


@pytest.mark.parametrize("kernel", [MHC_PRE, MHC_POST, MHC_POST_PRE], ids=lambda k: k.op)
def test_golden_bits(kernel: Kernel) -> None:
    content = hashlib.sha256()
    for _, value in sorted(run(kernel, inputs_at(kernel, 5, 320, 1)).items()):
        content.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    assert content.hexdigest() == GOLDEN[kernel.op]


# --- mutants: each must change bits --------------------------------------------------------------


@pytest.fixture(scope="module")
def projected() -> Tensors:
    """Projections of 4,096 tokens: few tokens hide a changed last bit."""
    workload = MHC_PRE.suites["finish4096"][0]
    inputs = MHC_PRE.make_inputs(workload, 0)
    dot, sq = replay.dot_sq(inputs["residual"], inputs["fn"])
    return {"dot": dot, "sq": sq, "scale": inputs["scale"], "base": inputs["base"]}


def finish(projected: Tensors, **changes: float) -> Tensors:
    constants = {**CONSTANTS, "size": 256, **changes}
    values = replay.finish(**projected, **constants)
    return dict(zip(("pre", "post", "comb"), values, strict=True))


def fma(a: Tensor, b: Tensor, c: Tensor | float) -> Tensor:
    """A multiply-add with one rounding, as a contracting compiler would make it."""
    return (a.double() * b.double() + c).float()


def contracted_exp(x: Tensor) -> Tensor:
    original = replay.contract
    shifted = fma(x, torch.tensor(original.LOG2_E), original.ROUND_MAGIC)
    n = shifted - original.ROUND_MAGIC
    r = fma(-n, torch.tensor(original.LN2_LOW), (x - n * original.LN2_HIGH).double())
    q = torch.full_like(r, original.EXP_Q[5])
    for coefficient in original.EXP_Q[4::-1]:
        q = fma(q, r, coefficient)
    return torch.ldexp(fma(q, r * r, r.double()) + 1.0, n)


def contracted_affine(mixes: Tensor, scale: Tensor, base: Tensor) -> Tensor:
    return fma(mixes, scale.repeat_interleave(torch.tensor([4, 4, 16])), base.double())


NORMALISE, SUM = replay.normalise, replay.sum_of_four
FINISH_MUTANTS: dict[str, tuple[str, Callable[..., Tensor], set[str]]] = {
    "torch.sqrt": ("sqrt", torch.sqrt, {"pre", "post", "comb"}),
    "rsqrt": ("sqrt", lambda x: x * torch.rsqrt(x), {"pre", "post", "comb"}),
    "torch.sigmoid": ("sigmoid", torch.sigmoid, {"pre", "post"}),
    "torch.exp": ("exp", torch.exp, {"pre", "post", "comb"}),
    "contracted exp": ("exp", contracted_exp, {"pre", "post", "comb"}),
    "contracted logits": ("affine", contracted_affine, {"pre", "post", "comb"}),
    "reciprocal": ("normalise", lambda c, d, e: c * (1.0 / (SUM(c, d) + e)), {"comb"}),
    "no eps inside": ("normalise", lambda c, d, e: NORMALISE(c, d, 0.0), {"comb"}),
    "library sum": ("sum_of_four", lambda a, d: a.flip(d).sum(d, keepdim=True), {"comb"}),
    "columns first": ("normalise", lambda c, d, e: NORMALISE(c, -3 - d, e), {"comb"}),
}


@pytest.mark.parametrize("name", FINISH_MUTANTS)
def test_mutants_of_the_finish_stage_show(
    name: str, projected: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, mutant, touched = FINISH_MUTANTS[name]
    expected = finish(projected)
    values = (projected["sq"] / 256.0 + CONSTANTS["rms_eps"]).contiguous()
    if name == "torch.sqrt" and torch.equal(torch.sqrt(values), replay.sqrt(values)):
        pytest.skip("this build of torch rounds torch.sqrt correctly: the mutant is no mutant")
    monkeypatch.setattr(replay, place, mutant)
    result = compare_tensors(name, expected, finish(projected))
    assert {mismatch.tensor for mismatch in result.mismatches} == touched


@pytest.mark.parametrize(
    ("changes", "touched"),
    [
        ({"sinkhorn_iters": 19}, {"comb"}),
        ({"hc_eps": 0.0}, {"pre", "comb"}),
        ({"sink_eps": 0.0}, {"comb"}),
        ({"rms_eps": 0.0}, {"pre", "post", "comb"}),
        ({"size": 64}, {"pre", "post", "comb"}),
        ({"post_mult": 1.0}, {"post"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_constants_show(
    changes: dict[str, float], touched: set[str], projected: Tensors
) -> None:
    result = compare_tensors("constants", finish(projected), finish(projected, **changes))
    assert {mismatch.tensor for mismatch in result.mismatches} == touched


def test_a_transposed_comb_shows(projected: Tensors) -> None:
    expected = finish(projected)
    swapped = {**expected, "comb": expected["comb"].mT}
    result = compare_tensors("transposed", expected, swapped)
    assert [mismatch.tensor for mismatch in result.mismatches] == ["comb"]
    assert result.mismatches[0].differing > 40_000


def test_few_tokens_hide_a_mutant(projected: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the finish stage is compared at 4,096 tokens."""
    few = {name: value[:1] if name in {"dot", "sq"} else value for name, value in projected.items()}
    expected = finish(few)
    monkeypatch.setattr(replay, "sigmoid", torch.sigmoid)
    assert compare_tensors("one token", expected, finish(few)).equal


DOT_MUTANTS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "library product": lambda x, fn: (x @ fn.T, (x * x).sum(-1)),
    "correctly rounded": lambda x, fn: (
        (x.double() @ fn.double().T).float(),
        (x.double() ** 2).sum(-1).float(),
    ),
    "truncated mapping": lambda x, fn: replay.dot_sq(
        x.reshape(-1, 4, x.shape[1] // 4).to(torch.bfloat16), replay.split(fn)[0]
    ),
}


@pytest.mark.parametrize("name", DOT_MUTANTS)
def test_mutants_of_the_projection_show(name: str) -> None:
    inputs = inputs_at(MHC_PRE, 16, 512)
    dot, sq = replay.dot_sq(inputs["residual"], inputs["fn"])
    changed, square = DOT_MUTANTS[name](inputs["residual"].flatten(1).float(), inputs["fn"])
    result = compare_tensors(name, {"dot": dot, "sq": sq}, {"dot": changed, "sq": square})
    assert "dot" in {mismatch.tensor for mismatch in result.mismatches}


def weighted(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, order: str) -> Tensor:
    """mhc_post in float32 with another order or with products that are not split."""
    terms = [post[:, :, None] * x[:, None].float()]
    terms += [comb[:, i, :, None] * residual[:, i, None].float() for i in range(4)]
    if order == "x last":
        terms = terms[1:] + terms[:1]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


@pytest.mark.parametrize("order", ["x first, not split", "x last"])
def test_mutants_of_the_mixing_show(order: str) -> None:
    inputs = inputs_at(MHC_POST, 16, 512)
    expected = replay.post_sum(**inputs)
    assert not torch.equal(expected, weighted(**inputs, order=order))


def test_a_truncating_rounding_shows() -> None:
    total = replay.post_sum(**inputs_at(MHC_POST, 3, 64))
    truncated = (total.view(torch.int32) >> 16).to(torch.int16)
    differing = replay.round_bf16(total).view(torch.int16) != truncated
    assert 0.3 < differing.float().mean() < 0.7


def test_an_unrounded_carry_shows() -> None:
    inputs = inputs_at(MHC_POST_PRE, 3, 256)
    names = ("x", "residual", "post", "comb")
    total = replay.post_sum(**{name: inputs[name] for name in names})
    rounded = replay.round_bf16(total)
    flat = total.flatten(1)
    hi, lo = replay.split(inputs["fn"])
    carried = flat @ (hi + lo).T
    dot, _ = replay.dot_sq(rounded, inputs["fn"])
    assert (dot - carried).abs().max() > 100 * UNIT * dot.abs().max()
