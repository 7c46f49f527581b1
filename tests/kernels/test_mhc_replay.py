"""The replay of mhc-c1: right, accurate, the same under every condition, and every mutant shows."""

import hashlib
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from bitgate.kernels import arithmetic
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
    original = arithmetic
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
FINISH_MUTANTS: dict[str, tuple[ModuleType, str, Callable[..., Tensor], set[str]]] = {
    "torch.sqrt": (arithmetic, "sqrt", torch.sqrt, {"pre", "post", "comb"}),
    "rsqrt": (arithmetic, "sqrt", lambda x: x * torch.rsqrt(x), {"pre", "post", "comb"}),
    "torch.sigmoid": (arithmetic, "sigmoid", torch.sigmoid, {"pre", "post"}),
    "torch.exp": (arithmetic, "exp", torch.exp, {"pre", "post", "comb"}),
    "contracted exp": (arithmetic, "exp", contracted_exp, {"pre", "post", "comb"}),
    "contracted logits": (replay, "affine", contracted_affine, {"pre", "post", "comb"}),
    "reciprocal": (replay, "normalise", lambda c, d, e: c * (1.0 / (SUM(c, d) + e)), {"comb"}),
    "no eps inside": (replay, "normalise", lambda c, d, e: NORMALISE(c, d, 0.0), {"comb"}),
    "library sum": (replay, "sum_of_four", lambda a, d: a.flip(d).sum(d, keepdim=True), {"comb"}),
    "columns first": (replay, "normalise", lambda c, d, e: NORMALISE(c, -3 - d, e), {"comb"}),
}


@pytest.mark.parametrize("name", FINISH_MUTANTS)
def test_mutants_of_the_finish_stage_show(
    name: str, projected: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, place, mutant, touched = FINISH_MUTANTS[name]
    expected = finish(projected)
    values = (projected["sq"] / 256.0 + CONSTANTS["rms_eps"]).contiguous()
    if name == "torch.sqrt" and torch.equal(torch.sqrt(values), arithmetic.sqrt(values)):
        pytest.skip("this build of torch rounds torch.sqrt correctly: the mutant is no mutant")
    monkeypatch.setattr(module, place, mutant)
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
    monkeypatch.setattr(arithmetic, "sigmoid", torch.sigmoid)
    assert compare_tensors("one token", expected, finish(few)).equal


DOT_MUTANTS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "library product": lambda x, fn: (x @ fn.T, (x * x).sum(-1)),
    "correctly rounded": lambda x, fn: (
        (x.double() @ fn.double().T).float(),
        (x.double() ** 2).sum(-1).float(),
    ),
    "truncated mapping": lambda x, fn: replay.dot_sq(
        x.reshape(-1, 4, x.shape[1] // 4).to(torch.bfloat16), arithmetic.split(fn)[0]
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
    differing = arithmetic.round_bf16(total).view(torch.int16) != truncated
    assert 0.3 < differing.float().mean() < 0.7


def test_an_unrounded_carry_shows() -> None:
    inputs = inputs_at(MHC_POST_PRE, 3, 256)
    names = ("x", "residual", "post", "comb")
    total = replay.post_sum(**{name: inputs[name] for name in names})
    rounded = arithmetic.round_bf16(total)
    flat = total.flatten(1)
    hi, lo = arithmetic.split(inputs["fn"])
    carried = flat @ (hi + lo).T
    dot, _ = replay.dot_sq(rounded, inputs["fn"])
    assert (dot - carried).abs().max() > 100 * UNIT * dot.abs().max()
