"""The definition of `moe_route_hash`: experts that the token itself decides, and their weights.

    ids = table[token_ids]
    weight[j] = score[ids[j]] (/ (((score[ids[0]] + score[ids[1]]) + ...) if renormalize) * scale

The first layers of DeepSeek-V4 route so (three of them, with the score sqrt-softplus). Scores, the
order of the sum and the rules for NaN and for a sum of 0 are those of `moe_route`. The table comes
with the model and is not looked into: it may name an expert twice.

A token id that is not in the table, and an entry that is no expert, are errors. On a device nobody
waits for the values, and there the rule is: of such a slot the id is -1, which the alignment drops,
and the weight is 0; it adds nothing to the sum.
"""

import torch

from bitgate.kernels.arguments import bind, shown
from bitgate.kernels.moe import route_hash_data
from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.moe.route_rules import RouteRules
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

MOE_ROUTE_HASH = Kernel(
    op="moe_route_hash",
    summary="the experts that a table has for each token, and the weights of their scores",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="logits", dtype="float32", axes=("tokens", "experts")),
        TensorSpec(name="table", dtype="int64", axes=("vocab", "top_k"), role="param"),
        TensorSpec(name="token_ids", dtype="int64", axes=("tokens",)),
        TensorSpec(name="topk_weights", dtype="float32", axes=("tokens", "top_k"), role="out"),
        TensorSpec(name="topk_ids", dtype="int64", axes=("tokens", "top_k"), role="out"),
    ),
    constants=(
        ("renormalize", 1),
        ("scale", 1.5),
        ("score", "sqrt-softplus"),
        ("top_k", route_hash_data.TOP_K),
    ),
    make_inputs=route_hash_data.make_inputs,
    integer_cases=route_hash_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_route_hash-replay",
            op="moe_route_hash",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.route_hash_reference:moe_route_hash",
            summary="one look into the table, and the order in plain torch; the truth",
        ),
        Implementation(
            name="moe_route_hash-triton",
            op="moe_route_hash",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.route_hash_triton:moe_route_hash",
            summary="one Triton kernel; on a CPU through Triton's interpreter",
        ),
    ),
    references={MOE_BF16_1.name: "moe_route_hash-replay"},
    suites=route_hash_data.SUITES,
)


def check(tensors: dict[str, torch.Tensor], rules: RouteRules) -> None:
    """Check what can be seen of moe_route_hash's arguments without values.

    Raises:
        UsageError: a tensor is not as MOE_ROUTE_HASH says, or top_k is not the table's.
    """
    axes = bind("moe_route_hash", MOE_ROUTE_HASH.inputs, tensors)
    if rules.top_k != axes["top_k"]:
        raise UsageError(
            f"moe_route_hash: expected top_k of {axes['top_k']}, as the table has columns, got "
            f"{shown(rules.top_k)}"
        )
    bind("moe_route_hash", MOE_ROUTE_HASH.tensors, tensors)


def check_values(logits: torch.Tensor, table: torch.Tensor, token_ids: torch.Tensor) -> None:
    """Check token ids and the entries that they name, which waits for a device to have made them.

    Raises:
        UsageError: a token id is not in the table, or an entry is no expert.
    """
    _check_range("token_ids", token_ids, len(table))
    _check_range("entries of the table", table[token_ids], logits.shape[1])


def _check_range(what: str, values: torch.Tensor, limit: int) -> None:
    if values.numel():
        low, high = (int(value) for value in torch.aminmax(values))
        if low < 0 or high >= limit:
            raise UsageError(
                f"moe_route_hash: expected {what} of 0 to {limit - 1}, got {low} to {high}"
            )
