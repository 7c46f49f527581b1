"""`moe_route_hash` under `moe-bf16/1`: the truth in plain torch."""

from torch import Tensor

from bitgate.kernels.moe.route_hash import check, check_values
from bitgate.kernels.moe.route_reference import scores_of, weigh
from bitgate.kernels.moe.route_rules import RouteRules


def moe_route_hash(
    *,
    logits: Tensor,
    table: Tensor,
    token_ids: Tensor,
    top_k: int,
    renormalize: int,
    scale: float,
    score: str,
) -> tuple[Tensor, Tensor]:
    """Look the experts of each token up, and weigh them; see MOE_ROUTE_HASH.

    Args:
        logits: [tokens, experts] float32.
        table: [vocab, top_k] int64, the experts of every token of the vocabulary.
        token_ids: [tokens] int64, 0 to vocab - 1.
        top_k: how many experts a token gets, as the table has columns.
        renormalize: 1 divides the weights by their sum, 0 does not.
        scale: what multiplies the weights at the end.
        score: as for moe_route.

    Returns:
        topk_weights [tokens, top_k] float32 and topk_ids [tokens, top_k] int64.

    Raises:
        UsageError: an argument is not what MOE_ROUTE_HASH says, a token id is not in the table, or
            it names an expert that is none.
    """
    rules = RouteRules(
        op="moe_route_hash", top_k=top_k, renormalize=renormalize, scale=scale, score=score
    )
    check({"logits": logits, "table": table, "token_ids": token_ids}, rules)
    check_values(logits, table, token_ids)
    ids = table[token_ids]
    return weigh(scores_of(logits, score).gather(1, ids), rules), ids
