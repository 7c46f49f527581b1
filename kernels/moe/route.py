"""The definition of `moe_route`: each token's experts and their weights, from the router's logits.

    score[e] = softmax(logits)[e]  or  sigmoid(logits[e])  or  sqrt(softplus(logits[e]))
    ids = the top_k largest of score + correction_bias, largest first; of equal ones the lower id
    weight[j] = score[ids[j]] (/ (((score[ids[0]] + score[ids[1]]) + ...) if renormalize) * scale

All of it is float32, and the weights come from the scores without the bias. softmax divides
exp(logit - largest logit) by the sum over the experts, which is a tree of adjacent pairs of as many
lanes as the next power of two, in the order of the ids, the lanes beyond the experts +0. A score
that is NaN or infinite counts as 0: after softmax those are all scores of a token that has a NaN or
+inf among its logits, or nothing but -inf. A sum of weights that is 0 divides as 1. A model without
a bias passes zeros, which change no score.

exp, sigmoid, softplus and the square root are those of `kernels.arithmetic`, quotients are
correctly rounded, and no multiply is contracted with an add: the same bits on every device. A token
gets distinct ids of experts, whatever is in its logits. The bias must be finite.
"""

import math

import torch

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe import route_data
from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec
from bitgate.records.errors import UsageError

SCORES = ("softmax", "sigmoid", "sqrt-softplus")

MOE_ROUTE = Kernel(
    op="moe_route",
    summary="the experts of each token by their scores, and the weights of the chosen ones",
    definition=str(__doc__),
    tensors=(
        TensorSpec(name="logits", dtype="float32", axes=("tokens", "experts")),
        TensorSpec(name="correction_bias", dtype="float32", axes=("experts",), role="param"),
        TensorSpec(name="topk_weights", dtype="float32", axes=("tokens", "top_k"), role="out"),
        TensorSpec(name="topk_ids", dtype="int64", axes=("tokens", "top_k"), role="out"),
    ),
    constants=(
        ("renormalize", 1),
        ("scale", 1.0),
        ("score", "softmax"),
        ("top_k", route_data.TOP_K),
    ),
    make_inputs=route_data.make_inputs,
    integer_cases=route_data.integer_cases,
    implementations=(
        Implementation(
            name="moe_route-replay",
            op="moe_route",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.route_reference:moe_route",
            summary="one stable sort, and the order in plain torch; the truth",
        ),
        Implementation(
            name="moe_route-triton",
            op="moe_route",
            contract=MOE_BF16_1.name,
            tier="canonical",
            devices=("cpu", "cuda", "xpu"),
            target="bitgate.kernels.moe.route_triton:moe_route",
            summary="one Triton kernel, top_k rounds of the largest with the lowest id",
        ),
    ),
    references={MOE_BF16_1.name: "moe_route-replay"},
    suites=route_data.SUITES,
)


def check(
    tensors: dict[str, torch.Tensor], top_k: int, renormalize: int, scale: float, score: str
) -> None:
    """Check the arguments of moe_route.

    Raises:
        UsageError: a tensor is not as MOE_ROUTE says, top_k is no int from 1 to the number of
            experts, renormalize is neither 0 nor 1, scale is not positive and finite, or score is
            unknown.
    """
    if type(top_k) is not int or top_k < 1:
        raise UsageError(f"moe_route: expected top_k of at least 1, an int, got {top_k!r}")
    axes = bind("moe_route", MOE_ROUTE.tensors, tensors, fixed={"top_k": top_k})
    if top_k > axes["experts"]:
        raise UsageError(
            f"moe_route: expected top_k of at most the {axes['experts']} experts, got {top_k}; a "
            "token cannot have more distinct experts than there are"
        )
    if renormalize not in (0, 1):
        raise UsageError(f"moe_route: expected renormalize of 0 or 1, got {renormalize!r}")
    if type(scale) not in (int, float) or not 0 < scale < math.inf:
        raise UsageError(f"moe_route: expected a positive, finite scale, got {scale!r}")
    if score not in SCORES:
        raise UsageError(f"moe_route: expected score of {', '.join(SCORES)}, got {score!r}")
