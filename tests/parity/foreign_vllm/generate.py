"""A process of its own: vLLM's CPU engine continues prompts, and tells the tokens as JSON.

usage: generate.py CHECKPOINT REQUEST ANSWER

REQUEST: {"prompts": [[id, ...], ...], "seats": n, "tokens": n}; seats is how many run at once.
ANSWER: {"first": tokens, "again": tokens, "planted": tokens}; tokens are, per prompt, the ids and
their log-probabilities. "planted" comes from experts that depend on the number of rows.
"""

import json
import sys
from pathlib import Path
from typing import Any

Tokens = list[tuple[list[int], list[float]]]


def main() -> None:
    from vllm import LLM, SamplingParams, TokensPrompt

    checkpoint, request, answer = sys.argv[1:]
    asked = json.loads(Path(request).read_text())
    engine = LLM(
        model=checkpoint,
        dtype="bfloat16",
        enforce_eager=True,
        # A second run that reads what the first has cached would prove nothing.
        enable_prefix_caching=False,
        max_model_len=128,
        max_num_seqs=asked["seats"],
        seed=0,
    )
    sampling = SamplingParams(
        temperature=0.0, max_tokens=asked["tokens"], ignore_eos=True, logprobs=0
    )

    def run() -> Tokens:
        prompts = [TokensPrompt(prompt_token_ids=ids) for ids in asked["prompts"]]
        results = engine.generate(prompts, sampling, use_tqdm=False)
        return [tokens(result.outputs[0]) for result in results]

    told = {"first": run(), "again": run()}
    plant()
    Path(answer).write_text(json.dumps(told | {"planted": run()}))


def tokens(output: Any) -> tuple[list[int], list[float]]:
    ids = list(output.token_ids)
    return ids, [step[id_].logprob for id_, step in zip(ids, output.logprobs, strict=True)]


def plant() -> None:
    """Let the experts round in another way for every number of rows."""
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    original = cpu_moe.cpu_fused_moe

    def faulty(out: Any, rows: Any, *rest: Any) -> None:
        original(out, rows, *rest)
        out *= 1 + len(rows) * 2.0**-8

    cpu_moe.cpu_fused_moe = faulty


if __name__ == "__main__":
    main()
