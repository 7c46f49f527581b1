import re

import pytest

from bitgate.records.errors import UsageError
from bitgate.sim.config import EngineConfig

GOOD = {
    "num_gpu_blocks": 11,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "max_model_len": 100,
    "step_overhead_ns": 0,
}


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"num_gpu_blocks": 1}, "num_gpu_blocks: expected a whole number from 2 to .*, got 1"),
        ({"num_gpu_blocks": 10.0}, "num_gpu_blocks: expected a whole number .* got 10.0"),
        ({"block_size": 0}, "block_size: .* from 1 to .*, got 0"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens: .* got -1"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"step_overhead_ns": -5}, "step_overhead_ns: .* from 0 to .*, got -5"),
        ({"step_overhead_ns": 10**26}, "step_overhead_ns: .* got 1000"),
        ({"num_gpu_blocks": 10**11}, "num_gpu_blocks: .* got 1000"),
        ({"step_overhead_ns": True}, "step_overhead_ns: .* got True"),
        ({"prefill_schedule_interval": 0}, "prefill_schedule_interval"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold"),
        ({"max_num_scheduled_tokens": 0}, "max_num_scheduled_tokens"),
        ({"max_num_active_seqs": 0}, "max_num_active_seqs"),
        ({"watermark": 1.0}, "watermark: expected a share below 1, got 1.0"),
        ({"watermark": -0.1}, "watermark"),
        ({"watermark": float("nan")}, "watermark"),
        ({"policy": "lifo"}, "policy: expected fcfs or priority, got 'lifo'"),
        ({"profile": "vllm-9"}, "profile: expected one of .*vllm-0.32.0.* got 'vllm-9'"),
        ({"max_num_seqs": 65}, "max_num_batched_tokens 64 is below max_num_seqs 65"),
        ({"enable_chunked_prefill": False}, "64 tokens cannot hold .* max_model_len 100"),
    ],
)
def test_a_setting_that_the_engine_cannot_follow_is_refused(setting, told):
    with pytest.raises(UsageError, match=told):
        EngineConfig(**GOOD | setting)


def test_derived_settings():
    config = EngineConfig(**GOOD, watermark=0.3, max_num_scheduled_tokens=40, max_num_active_seqs=3)
    assert (config.token_budget, config.running_limit) == (40, 3)
    assert (config.usable_blocks, config.watermark_blocks) == (10, 3)


@pytest.mark.parametrize(
    ("prompt", "output", "told"),
    [
        (100, 1, "prompt of 100 tokens .* prompt < max_model_len 100"),
        (90, 11, "90 prompt and 11 output tokens are 101: .* <= max_model_len 100"),
    ],
)
def test_what_exceeds_the_model_is_refused_with_the_rule(prompt, output, told):
    assert re.search(told, str(EngineConfig(**GOOD).refusal(prompt, output)))


def test_what_outgrows_the_pool_is_refused_and_what_just_fits_is_not():
    config = EngineConfig(**GOOD | {"num_gpu_blocks": 6, "max_model_len": 1000})
    # 5 usable blocks of 16 tokens hold 80; the last output needs no place.
    assert config.refusal(70, 11) is None
    assert "need 6 blocks of 16 tokens: the pool has 5" in str(config.refusal(70, 12))
