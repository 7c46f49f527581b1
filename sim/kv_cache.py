"""Which blocks a request owns: lookup, admission, growth and release under vLLM's rules."""

from bitgate.sim.blocks import BlockPool
from bitgate.sim.config import EngineConfig
from bitgate.sim.jobs import Job


class KvCache:
    """The blocks of one engine."""

    def __init__(self, config: EngineConfig) -> None:
        self.pool = BlockPool(config.num_gpu_blocks)
        self._block_size = config.block_size
        self._caching = config.enable_prefix_caching
        self._reserve_full = config.scheduler_reserve_full_isl
        self._watermark_blocks = config.watermark_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody owns; those whose contents can still be found count."""
        return self.pool.free

    def lookup(self, job: Job) -> list[int]:
        """Rule 8: the longest cached chain of full blocks, short of the last known token."""
        if not self._caching or not (job.shared or job.preemptions):
            return []
        return self.pool.find(job.block_keys(0, (job.tokens - 1) // self._block_size))

    def admit(self, job: Job, found: list[int], tokens: int, *, alone: bool) -> bool:
        """Rule 10 for an admission: whether its blocks are free; if so, they are its own now.

        Found blocks that are idle count as needed. Unless it is alone, a watermark stays free.
        With full reservation all known tokens must fit, not only those of this step (addendum 7).
        """
        reserve = 0 if alone else self._watermark_blocks
        computed = len(found) * self._block_size
        known = job.tokens if self._reserve_full else computed + tokens
        available = self.pool.free - self.pool.count_idle(found) - reserve
        if self._blocks(known) - len(found) > available:
            return False
        self.pool.share(found)
        job.blocks, job.named, job.computed = found, len(found), computed
        return self.extend(job, tokens)

    def extend(self, job: Job, tokens: int) -> bool:
        """Rule 10: own the blocks that `tokens` more need, if so many are free.

        A block can be found from the moment its last token is planned (rule 11), even by a request
        that is admitted later in the same step (addendum 4).
        """
        need = self._blocks(job.computed + tokens) - len(job.blocks)
        if need > self.pool.free:
            return False
        if need > 0:
            job.blocks += self.pool.take(need)
        if self._caching:
            self.name(job, (job.computed + tokens) // self._block_size)
        return True

    def start_blocks(self, jobs: list[Job]) -> None:
        """Own one block more, each of them, in this order."""
        for job, block in zip(jobs, self.pool.take(len(jobs)), strict=True):
            job.blocks.append(block)

    def name(self, job: Job, full: int) -> None:
        """Let the first blocks be found, which are full (rule 11).

        Where only the job itself could look for them, that is put off until it loses them.
        """
        if full > job.named:
            if job.shared:
                self.pool.name(job.blocks[job.named : full], job.block_keys(job.named, full))
            job.named = full

    def preempt(self, job: Job) -> None:
        """Own nothing any more, and perhaps find some of it later."""
        if not job.shared:
            self.pool.name(job.blocks[: job.named], job.block_keys(0, job.named))
        self.release(job)

    def release(self, job: Job) -> None:
        """Own nothing any more."""
        self.pool.give_back(job.blocks[: job.named], job.blocks[job.named :])
        job.blocks, job.named = [], 0

    def _blocks(self, tokens: int) -> int:
        """The blocks that so many tokens fill or begin."""
        return -(-tokens // self._block_size)
