"""The definition of `moe_route`: each token's experts and their weights, from the router's logits.

    score[e] = softmax(logits)[e]  or  sigmoid(logits[e])  or  sqrt(softplus(logits[e]))
    key[e] = score[e] + correction_bias[e]
    rank[g] = the largest key of group g  or  the sum of its two largest;  the keys of all but the
              keep_groups groups of largest rank, of equal ones the lower, are minus infinity
    ids = the top_k largest keys, largest first; of equal ones the lower id
    weight[j] = score[ids[j]] (/ (((score[ids[0]] + score[ids[1]]) + ...) if renormalize) * scale

All of it is float32, and the weights come from the scores without the bias. softmax divides
exp(logit - largest logit) by the sum over the experts, which is a tree of adjacent pairs of as many
lanes as the next power of two, in the order of the ids, the lanes beyond the experts +0. A score
that is NaN or infinite counts as 0: after softmax those are all scores of a token that has a NaN or
+inf among its logits, or nothing but -inf. A sum of weights that is 0 divides as 1. A model without
a bias passes zeros, which change no score.

With the score `softmax-selected` the keys are made from the logits, the score of a chosen expert is
exp(its logit - the largest chosen one), and renormalize, which must be 1, makes the softmax over
the chosen ones of it. A logit of -inf has the weight 0; a token that has a NaN or +inf among its
logits, or nothing but -inf, has no weight but 0, and the first experts of the first groups.

The experts form `groups` groups of equal size, in the order of their ids. `group_rank` names how
groups are ranked: `max` where a model has no correction bias (DeepSeek-V2), `top2` where it has one
(DeepSeek-V3), `none` for one group. The models in these terms:

    Mixtral, Qwen3       softmax, renormalize 1
    DeepSeek-V2          softmax, groups, group_rank max, scale
    DeepSeek-V3          sigmoid, groups 8, keep_groups 4, group_rank top2, renormalize 1, scale 2.5
    Kimi-K2, GLM-4.5     sigmoid, a bias, renormalize 1, scale
    DeepSeek-V4          sqrt-softplus, a bias, renormalize 1, scale; see `moe_route_hash`, too
    gpt-oss              softmax-selected, renormalize 1
    Llama-4              sigmoid, top_k 1, renormalize 0

exp, sigmoid, softplus and the square root are those of `kernels.arithmetic`, quotients are
correctly rounded, and no multiply is contracted with an add: the same bits on every device. A token
gets distinct ids of experts, whatever is in its logits. The bias must be finite.
"""

import torch

from bitgate.kernels.arguments import bind
from bitgate.kernels.moe import route_data, route_fixtures
from bitgate.kernels.moe.contract import MOE_BF16_1
from bitgate.kernels.moe.route_rules import RouteRules
from bitgate.kernels.spec import Implementation, Kernel, TensorSpec

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
        ("group_rank", "none"),
        ("groups", 1),
        ("keep_groups", 1),
        ("renormalize", 1),
        ("scale", 1.0),
        ("score", "softmax"),
        ("top_k", route_data.TOP_K),
    ),
    make_inputs=route_data.make_inputs,
    integer_cases=route_fixtures.integer_cases,
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


def check(tensors: dict[str, torch.Tensor], rules: RouteRules) -> None:
    """Check the arguments of moe_route.

    Raises:
        UsageError: a tensor is not as MOE_ROUTE says, or the experts cannot be routed so.
    """
    axes = bind("moe_route", MOE_ROUTE.inputs, tensors)
    rules.check_experts(axes["experts"])
    bind("moe_route", MOE_ROUTE.tensors, tensors, fixed={"top_k": rules.top_k})
