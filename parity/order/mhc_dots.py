"""Orders in which mHC adds products: how a product joins a sum, lanes, trees and splits.

A factor of these sums is float32, so a product with a bfloat16 number is not exact, and contraction
changes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from bitgate.kernels import arithmetic
from bitgate.kernels.mhc.contract import STREAMS
from bitgate.kernels.spec import Tensors
from bitgate.parity.order.base import Dimension, Option, State
from bitgate.parity.order.sums import adjacent, halving, serial

PRODUCT, POST_PRODUCT = "product", "post product"
Join = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(sum, w, x) to sum + w * x in float32."""


def _split(total: Tensor, w: Tensor, x: Tensor) -> Tensor:
    high, low = arithmetic.split(w)
    return total + high * x + low * x


def _rounded(total: Tensor, w: Tensor, x: Tensor) -> Tensor:
    return total + w * x


def _contracted(total: Tensor, w: Tensor, x: Tensor) -> Tensor:
    return arithmetic.fma(w, x, total)


# Name, text, how; a state names one of them by its number.
_JOINS: Final[tuple[tuple[str, str, Join], ...]] = (
    ("split", "both halves of the factor one after the other, exactly", _split),
    ("rounded", "rounded to float32, then added", _rounded),
    ("fma", "contracted with the addition", _contracted),
)


def _joining(number: int) -> Callable[[State], Tensors]:
    return lambda _: {"join": torch.tensor(number)}


def products(name: str, sums: str) -> Dimension:
    """How products join the sums of later dimensions; `library` is for those of torch's own.

    Where two such choices are made, they are the same: one compiler made both.
    """

    def agrees(state: State) -> bool:
        made = dict(state.choice)
        return len({made[one] for one in (PRODUCT, POST_PRODUCT) if one in made}) == 1

    return Dimension(
        name=name,
        asks=f"how does a product enter the {sums}?",
        options=(
            *(
                Option(name=one, text=text, run=_joining(n), applies=agrees)
                for n, (one, text, _) in enumerate(_JOINS)
            ),
            Option(
                name="library",
                text="as torch's own operation does it",
                run=_joining(-1),
                applies=agrees,
            ),
        ),
    )


def joined(state: State) -> Join:
    """The join that was chosen."""
    return _JOINS[int(state["join"])][2]


def uses_library(state: State) -> bool:
    """Whether torch's own operation was chosen."""
    return int(state["join"]) < 0


def joins(state: State) -> bool:
    """Whether a sum of ours was chosen."""
    return int(state["join"]) >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lanes:
    """Lane l adds k = l, l + lanes, ... of a block; a tree adds the lanes, and then the blocks."""

    lanes: int
    tree: str
    splits: int = 1
    block: int | None = None

    @property
    def name(self) -> str:
        parts = [f"lanes-{self.lanes}", *([self.tree] if self.lanes > 1 else [])]
        parts += [f"splits-{self.splits}"] if self.splits > 1 else []
        parts += [f"blocks-{self.block}"] if self.block else []
        return "-".join(parts)

    @property
    def text(self) -> str:
        lanes = f"{self.lanes} lanes, {self.tree} tree" if self.lanes > 1 else "one after the other"
        if self.splits > 1:
            return f"{lanes}, K in {self.splits} splits that are added in order"
        return f"{lanes}, K in blocks of {self.block} added in order" if self.block else lanes

    def extent(self, size: int) -> int:
        """Of a block."""
        return self.block or size // self.splits

    def fits(self, size: int) -> bool:
        """Whether K can be cut so, and this is no other line's order."""
        extent = self.extent(size)
        if size % self.splits or extent < self.lanes:
            return False
        if self.splits > 1:
            return extent not in BLOCKS
        return self.block is None or extent < size


BLOCKS: Final = (128, 256)
_TREES: Final = {"adjacent": adjacent, "halving": halving, "serial": serial}
_CUTS: Final[tuple[dict[str, int], ...]] = (
    {},
    *({"splits": splits} for splits in (4, 8, 32)),
    *({"block": block} for block in BLOCKS),
)
LANES: Final = tuple(
    _Lanes(lanes=lanes, tree=tree, **cut)
    for cut in _CUTS
    for lanes in (1, 16, 32, 64, 256, 1024)
    for tree in _TREES
    if lanes > 1 or tree == "serial"
)


def _fitting(order: _Lanes) -> Callable[[State], bool]:
    return lambda state: joins(state) and order.fits(state["fn"].shape[1])


def _in_lanes(order: _Lanes) -> Callable[[State], Tensors]:
    def run(state: State) -> Tensors:
        x, fn = state["flat"], state["fn"]
        blocks = -(-x.shape[1] // order.extent(x.shape[1]))
        xs, ws = _cut(x, order), _cut(fn, order)
        join = joined(state)
        acc = x.new_zeros(len(x), len(fn), blocks, order.lanes)
        square = x.new_zeros(len(x), blocks, order.lanes)
        for step in range(xs.shape[2]):
            acc = join(acc, ws[None, :, :, step], xs[:, None, :, step])
            # Of bfloat16 numbers exact, so that all joins agree.
            square = _rounded(square, xs[:, :, step], xs[:, :, step])
        tree = _TREES[order.tree]
        squares = tree(square)
        return {"dot": serial(tree(acc)), "sq": serial(squares), "squares": squares}

    return run


def _cut(rows: Tensor, order: _Lanes) -> Tensor:
    """[rows, k] as [rows, blocks, steps, lanes], filled up with +0."""
    extent = order.extent(rows.shape[1])
    rows = functional.pad(rows, (0, -rows.shape[1] % extent)).view(len(rows), -1, extent)
    return functional.pad(rows, (0, -extent % order.lanes)).view(*rows.shape[:2], -1, order.lanes)


def _torch_product(state: State) -> Tensors:
    return {"dot": state["flat"] @ state["fn"].T}


def _torch_normalised(state: State) -> Tensors:
    flat = state["flat"]
    flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + state.constant("rms_eps"))
    return {"dot": functional.linear(flat, state["fn"].contiguous())}


PROJECTION: Final = Dimension(
    name="projection",
    asks="in which order are the 24 projections added?",
    options=(
        *(
            Option(
                name=one.name,
                text=one.text,
                run=_in_lanes(one),
                applies=_fitting(one),
            )
            for one in LANES
        ),
        Option(
            name="torch-matmul",
            text="torch's matmul",
            run=_torch_product,
            applies=uses_library,
            needs_all_rows=True,
        ),
        Option(
            name="torch-normalised",
            text="torch's linear of the normalised residual (transformers)",
            run=_torch_normalised,
            applies=uses_library,
            needs_all_rows=True,
        ),
    ),
    reads=("join", "flat"),
)


def _after(inverse: Callable[[State], Tensor]) -> Callable[[State], Tensors]:
    return lambda state: {"mixes": state["dot"] * inverse(state)[:, None]}


def _mean(state: State, squares: Tensor) -> Tensor:
    return squares / float(state["fn"].shape[1]) + state.constant("rms_eps")


def _double(state: State) -> Tensor:
    mean = state["squares"].double().sum(-1) / state["fn"].shape[1]
    # The constant is the engine's float32, widened.
    eps = float(torch.tensor(state.constant("rms_eps"), dtype=torch.float32))
    return (1.0 / torch.sqrt(mean + eps)).float()


def _library_sum(state: State) -> Tensor:
    flat = state["flat"]
    return torch.rsqrt(
        flat.square().sum(-1) / (STREAMS * (flat.shape[1] // STREAMS)) + state.constant("rms_eps")
    )


NORM: Final = Dimension(
    name="norm",
    asks="how is the root mean square computed and applied?",
    options=(
        Option(
            name="divided",
            text="1 / sqrt(sq / K + eps), each step rounded; sq in the projection's order",
            run=_after(lambda s: 1.0 / arithmetic.sqrt(_mean(s, s["sq"]))),
            applies=joins,
        ),
        Option(
            name="rsqrt",
            text="rsqrt(sq / K + eps), rounded once; sq in the projection's order",
            run=_after(lambda s: (1.0 / _mean(s, s["sq"]).double().sqrt()).float()),
            applies=joins,
        ),
        Option(
            name="float64",
            text="the blocks' squares added in float64, and the root there, too",
            run=_after(_double),
            applies=joins,
        ),
        Option(
            name="torch-sum",
            text="torch's sum of squares and rsqrt, after the projection",
            run=_after(_library_sum),
            applies=lambda s: s.chosen("projection") == "torch-matmul",
            needs_all_rows=True,
        ),
        Option(
            name="before",
            text="torch's, before the projection",
            run=lambda s: {"mixes": s["dot"]},
            applies=lambda s: s.chosen("projection") == "torch-normalised",
            needs_all_rows=True,
        ),
    ),
    reads=("dot", "sq", "squares", "join"),
)
