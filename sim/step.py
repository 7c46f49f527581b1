"""What one forward pass computes: all that a price of a step may depend on."""

from typing import NamedTuple


class StepShape(NamedTuple):
    """The work of one engine step.

    prefills: (new tokens, tokens computed before) of each request's chunk, in schedule order; a
        resumed request that computes lost tokens again counts as prefill work
    decodes: requests that compute exactly one token beyond a finished prompt
    decode_kv_tokens: the tokens that those attend to, summed (computed before, plus one each)
    logits: rows for which the head is computed: one per scheduled request, as in vLLM, also for a
        chunk that does not finish its prompt
    """

    prefills: tuple[tuple[int, int], ...]
    decodes: int
    decode_kv_tokens: int
    logits: int

    @property
    def tokens(self) -> int:
        """All tokens of the forward pass."""
        return self.decodes + sum(new for new, _ in self.prefills)
