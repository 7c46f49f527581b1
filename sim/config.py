"""What an engine is told at its start: vLLM's arguments, by vLLM's names, and its version."""

from dataclasses import dataclass
from typing import Literal

from bitgate.records.errors import UsageError

# Far above any engine: blocks are held in memory, and times must stay within 64 bits.
_MOST = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """One release whose scheduling rules the engine follows.

    The rules are those of the synchronous scheduler, checked step by step against recordings of
    the release itself.
    """

    name: str
    engine: str
    version: str


PROFILES = (EngineProfile(name="vllm-0.32.0", engine="vllm", version="0.32.0"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The settings of one engine; the defaults are those of vLLM 0.32.0.

    num_gpu_blocks: KV blocks in the pool, with the reserved block 0: an input, because a derived
        count moves every result under load
    max_num_batched_tokens: token budget of a step
    max_num_scheduled_tokens: the budget really handed out, if it is another
    max_num_seqs: limit on running requests
    max_num_active_seqs: the limit that admits, if it is another
    long_prefill_token_threshold: cap on a request's tokens in a step; 0 is none
    long_prefill_token_threshold_adaptive: raise that cap to a fair share of the budget
    policy: fcfs, or priority (a smaller number is more important)
    scheduler_reserve_full_isl: admit only what would fit whole
    watermark: share of the blocks that an admission leaves free while others run
    prefill_schedule_interval: prompts are worked on only in every so-many-th step; 1 is always
    step_overhead_ns: host time of each step beside the priced kernels; 0 only if it is declared

    Raises:
        UsageError: a value that the engine refuses; names the value and the rule.
    """

    num_gpu_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    step_overhead_ns: int
    profile: str = "vllm-0.32.0"
    block_size: int = 16
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    policy: Literal["fcfs", "priority"] = "fcfs"
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    prefill_schedule_interval: int = 1
    max_num_scheduled_tokens: int | None = None
    max_num_active_seqs: int | None = None

    def __post_init__(self) -> None:
        known = [profile.name for profile in PROFILES]
        _require(self.profile in known, f"profile: expected one of {known}, got {self.profile!r}")
        _require(
            self.policy in ("fcfs", "priority"),
            f"policy: expected fcfs or priority, got {self.policy!r}",
        )
        self._check_counts()
        _require(
            0 <= self.watermark < 1, f"watermark: expected a share below 1, got {self.watermark}"
        )
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs "
            f"{self.max_num_seqs}: every running request needs a token of the budget",
        )
        _require(
            self.enable_chunked_prefill or self.token_budget >= self.max_model_len,
            f"without chunked prefill a step's budget of {self.token_budget} tokens cannot hold a "
            f"prompt of up to max_model_len {self.max_model_len}; raise max_num_batched_tokens",
        )

    def _check_counts(self) -> None:
        least = {
            "num_gpu_blocks": 2,
            "max_num_batched_tokens": 1,
            "max_num_seqs": 1,
            "max_model_len": 2,
            "step_overhead_ns": 0,
            "block_size": 1,
            "long_prefill_token_threshold": 0,
            "prefill_schedule_interval": 1,
            "max_num_scheduled_tokens": 1,
            "max_num_active_seqs": 1,
        }
        optional = ("max_num_scheduled_tokens", "max_num_active_seqs")
        for name, low in least.items():
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            _require(
                type(value) is int and low <= value <= _MOST,
                f"{name}: expected a whole number from {low} to {_MOST}, got {value!r}",
            )

    @property
    def token_budget(self) -> int:
        """The tokens that a step hands out."""
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def running_limit(self) -> int:
        """The running requests above which nothing is admitted."""
        return self.max_num_active_seqs or self.max_num_seqs

    @property
    def usable_blocks(self) -> int:
        """The blocks that requests can hold: all but the reserved one."""
        return self.num_gpu_blocks - 1

    @property
    def watermark_blocks(self) -> int:
        """The blocks that an admission leaves free while others run."""
        return int(self.watermark * self.num_gpu_blocks)

    def refusal(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why such a request can never be served, with the values and the rule, or None.

        vLLM's front end refuses what exceeds max_model_len. Its scheduler does not refuse a
        request that outgrows the pool: that one, and all behind it, would wait for ever.
        """
        total = prompt_tokens + output_tokens
        if prompt_tokens >= self.max_model_len:
            return (
                f"a prompt of {prompt_tokens} tokens leaves no room for an output: the rule is "
                f"prompt < max_model_len {self.max_model_len}"
            )
        if total > self.max_model_len:
            return (
                f"{prompt_tokens} prompt and {output_tokens} output tokens are {total}: the rule "
                f"is prompt + output <= max_model_len {self.max_model_len}"
            )
        blocks = -(-(total - 1) // self.block_size)
        if blocks > self.usable_blocks:
            return (
                f"{prompt_tokens} prompt and {output_tokens} output tokens need {blocks} blocks "
                f"of {self.block_size} tokens: the pool has {self.usable_blocks} usable ones"
            )
        return None


def _require(condition: bool, message: str) -> None:  # noqa: FBT001 - the sentence is the point
    if not condition:
        raise UsageError(message)
