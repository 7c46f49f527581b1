"""A model's numbers, and what follows from them for the experts of one rank."""

from dataclasses import dataclass
from typing import Literal

from bitgate.records.base import Value, require, require_decimal
from bitgate.records.errors import UsageError

Score = Literal["softmax", "softmax-of-chosen", "sigmoid", "sqrt-softplus", "sparse-mixer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing(Value):
    """How experts are chosen and weighted.

    `groups` are ranked and `keep_groups` of them kept; `scale` is a decimal string; `renormalise`
    is None where it was not read; the first `hash_layers` layers look experts up by token id.
    """

    score: Score
    groups: int = 1
    keep_groups: int = 1
    bias: bool = False
    scale: str = "1"
    renormalise: bool | None = None
    weight_on_input: bool = False
    hash_layers: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.keep_groups <= self.groups, "Routing: keep_groups of 1 to groups")
        require_decimal(self.scale, "Routing.scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent(Value):
    """Multi-head latent attention: widths of a head's parts, and the ranks, in elements."""

    nope: int
    rope: int
    value: int
    kv_rank: int
    q_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnections(Value):
    """Manifold-constrained hyper-connections: residual streams and normalisation rounds."""

    streams: int
    sinkhorn_iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Value):
    """How the experts' weights are stored; `block` is (columns, summed elements) of one scale."""

    experts: Literal["bf16", "fp8", "fp4", "mxfp4", "int4"]
    block: tuple[int, int] | None = None
    scale: Literal["ue8m0"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape(Value):
    """One model. Optional numbers are None where they were not read.

    Attributes:
        source: where the numbers are from; `other_sources` names those from elsewhere.
        unverified: the numbers that nobody has checked.
        hidden: elements of a token's row.
        intermediate: of one routed expert.
        shared_intermediate: of the shared expert, where the configuration gives a width.
        layers: all of them; the first `dense_first` have no experts, of the rest every
            `moe_every`th has.
        dense_intermediate: of the layers without experts; 0 where there are none or none was read.
        swiglu_limit: a decimal string; None clamps nothing.
    """

    name: str
    source: str
    other_sources: dict[str, str]
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    layers: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    dense_first: int = 0
    moe_every: int = 1
    dense_intermediate: int = 0
    shared_experts: int = 0
    shared_intermediate: int | None = None
    swiglu_limit: str | None = None
    latent: Latent | None = None
    routing: Routing | None = None
    hyper_connections: HyperConnections | None = None
    checkpoint: Checkpoint | None = None
    unverified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        extents = ("hidden", "intermediate", "experts", "top_k", "layers", "heads", "moe_every")
        for name in extents:
            require(getattr(self, name) > 0, f"{self.name}: expected {name} above 0")
        require(self.top_k <= self.experts, f"{self.name}: expected top_k of at most experts")
        require(0 <= self.dense_first <= self.layers, f"{self.name}: dense_first beyond layers")

    @property
    def moe_layers(self) -> int:
        """How many layers have experts."""
        return sum(
            (layer + 1) % self.moe_every == 0 for layer in range(self.dense_first, self.layers)
        )

    @property
    def first_overflow_tokens(self) -> int:
        """The first number of tokens whose rows a 32-bit offset cannot reach; see the function."""
        return first_overflow_tokens(self.top_k, self.hidden, self.intermediate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(Value):
    """One rank of a model whose experts are shared out over `ep` ranks and cut into `tp` parts.

    Raises:
        UsageError: the experts or their intermediate size cannot be divided so.
    """

    model: ModelShape
    ep: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        parts = (("ep", self.ep, "experts"), ("tp", self.tp, "intermediate"))
        for kind, ranks, what in parts:
            whole = getattr(self.model, what)
            if ranks < 1 or whole % ranks:
                raise UsageError(
                    f"{self.model.name}@{kind}{ranks}: {what} {whole} cannot be divided into "
                    f"{ranks} equal parts; expected a number that divides it, such as "
                    f"{_divisors(whole)}"
                )

    @property
    def experts(self) -> int:
        """The experts of this rank."""
        return self.model.experts // self.ep

    @property
    def intermediate(self) -> int:
        """Elements of one expert's intermediate row on this rank."""
        return self.model.intermediate // self.tp

    @property
    def first_overflow_tokens(self) -> int:
        """As of the model, for the rows of this rank, which hold its part of the intermediate."""
        return first_overflow_tokens(self.model.top_k, self.model.hidden, self.intermediate)

    def experts_axes(self, tokens: int) -> tuple[tuple[str, int], ...]:
        """The axes of `moe_experts` for this rank's weights, in the order of their names.

        Every pair of such a workload is local. With experts shared out, a rank computes 1 / ep of
        the tokens' pairs on average, so its load is that of tokens / ep tokens, rather than tokens.

        Raises:
            UsageError: the rank has fewer experts than a token chooses.
        """
        if self.experts < self.model.top_k:
            raise UsageError(
                f"{self.model.name}@ep{self.ep}: {self.experts} local experts, expected at least "
                f"the {self.model.top_k} that a token chooses; choose fewer ranks"
            )
        axes = {
            "experts": self.experts,
            "hidden": self.model.hidden,
            "intermediate": self.intermediate,
            "tokens": tokens,
            "top_k": self.model.top_k,
        }
        return tuple(sorted(axes.items()))


def first_overflow_tokens(top_k: int, hidden: int, intermediate: int) -> int:
    """The first number of tokens for which tokens * top_k * max(2 * intermediate, hidden) >= 2**31.

    From there on an offset of 32 bits does not reach the last rows of the first matmul's output,
    or of the second's: address arithmetic that uses one wraps, silently or with an illegal access.
    """
    row = top_k * max(2 * intermediate, hidden)
    return -(-(1 << 31) // row)


def _divisors(whole: int) -> str:
    powers = [1 << power for power in range(8) if not whole % (1 << power)]
    return ", ".join(map(str, powers))
