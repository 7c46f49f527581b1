"""vLLM's CPU engine gives the same tokens again, and however many sequences it runs at once.

Found with vLLM 0.32.0 on a Xeon with AMX: all tokens are the same, but 1 of 128 log-probabilities
changes when two instead of eight sequences share a batch. Something in the model depends on the
batch; its experts do not (test_experts.py).
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bitgate.parity.tiny import build, tiny
from bitgate.parity.tiny.build import sentences

pytestmark = pytest.mark.vllm

SEATS = (2, 8)
TOKENS = 16
TIMEOUT_S = 300
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    # One core each: two engines run at once, and must not both bind to the same.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[int, dict[str, Any]]:
    """What the engine generates with room for two and for eight sequences."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("generation")
    build(tiny("qwen3-moe"), folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    words = " ".join(sentences()).split()
    texts = [" ".join(words[start : start + 8 + start % 5]) for start in range(0, 8 * 12, 12)]
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    with ThreadPoolExecutor() as pool:
        told = pool.map(partial(generate, folder, prompts), SEATS)
        return dict(zip(SEATS, told, strict=True))


def generate(folder: Path, prompts: list[list[int]], seats: int) -> dict[str, Any]:
    request, answer = folder / f"request-{seats}.json", folder / f"answer-{seats}.json"
    request.write_text(json.dumps({"prompts": prompts, "seats": seats, "tokens": TOKENS}))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = Path(__file__).with_name("generate.py")
    finished = subprocess.run(
        [sys.executable, str(child), str(folder / "model"), str(request), str(answer)],
        env=environment | SETTINGS,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    told: dict[str, Any] = json.loads(answer.read_text())
    return told


def ids(answer: Any) -> list[list[int]]:
    return [ids for ids, _ in answer]


def test_a_second_run_gives_the_same_tokens_and_log_probabilities(answers):
    for answer in answers.values():
        assert [len(tokens) for tokens in ids(answer["first"])] == [TOKENS] * 8
        assert answer["again"] == answer["first"]


def test_the_number_of_seats_does_not_change_a_token(answers, note):
    two, eight = (answers[seats]["first"] for seats in SEATS)
    assert ids(two) == ids(eight)
    pairs = [
        pair
        for (_, one), (_, other) in zip(two, eight, strict=True)
        for pair in zip(one, other, strict=True)
    ]
    changed = sum(one != other for one, other in pairs)
    note(f"engine with 2 and 8 seats: {changed} of {len(pairs)} log-probabilities")


def test_experts_that_depend_on_their_batch_change_tokens(answers):
    two, eight = (ids(answers[seats]["planted"]) for seats in SEATS)
    assert two != ids(answers[2]["first"])
    assert two != eight


def test_the_prompts_are_continued_in_different_ways(answers):
    assert len(set(map(tuple, ids(answers[8]["first"])))) == 8
