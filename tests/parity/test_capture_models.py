"""Captures of tiny transformers models, and the checkpoints that are refused."""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitgate.kernels.catalogue import implementation, kernel
from bitgate.kernels.loading import load
from bitgate.parity.bits import raw_bytes
from bitgate.parity.bundle import Bundle, Frame
from bitgate.parity.capture_checkpoint import (
    Job,
    capture_checkpoint,
    capture_tiny,
    tiny_prompts,
)
from bitgate.parity.capture_load import Checkpoint, check_eager, load_model, load_tokenizer, quiet
from bitgate.parity.capture_prompts import Prompt
from bitgate.parity.capture_transformers import Generation, capture_transformers
from bitgate.parity.compare import compare_bundles, compare_tensors
from bitgate.parity.digests import digest
from bitgate.parity.tiny import build, prompts, tiny
from bitgate.records.errors import EnvironmentUnfit, UsageError

SHORT = Generation(tokens=3)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    with quiet():
        build(tiny("deepseek-v4"), path)
    return path


@pytest.fixture(scope="module")
def checkpoint(folder: Path, one_thread: None) -> Checkpoint:
    return Checkpoint(
        name="tiny", model=load_model(folder, "cpu"), tokenizer=load_tokenizer(folder)
    )


@pytest.fixture(scope="module")
def captured(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("captured") / "b"
    capture_transformers(checkpoint, tiny_prompts()[:2], out, generation=SHORT)
    return Bundle.open(out)


def test_every_boundary_of_every_step_is_captured(captured: Bundle, checkpoint: Checkpoint) -> None:
    names = Counter(
        frame.boundary.name for frame in captured.frames() if frame.step == captured.lines[0].step
    )
    assert names == {
        "attn_hc": 4,
        "ffn_hc": 4,
        "self_attn": 4,
        "gate": 4,
        "experts": 4,
        "hc_head": 1,
    }
    assert [line.phase for line in captured.manifest.steps] == ["prefill", "decode", "decode"] * 2
    assert len(captured.lines) == 6 * 21
    assert captured.manifest.discarded == 21
    first = captured.tokens[0]
    assert first.prompt == prompts()[0]
    assert checkpoint.tokenizer.unk_token_id not in first.prompt_token_ids
    assert len(set(first.token_ids)) == len(first.logprobs) == 3
    assert captured.manifest.steps[1].step.token == len(first.prompt_token_ids)
    assert dict(captured.manifest.implementation)["experts"] == "eager"


def test_the_weights_are_asymmetric_and_routes_are_spread(captured: Bundle) -> None:
    frames = {frame.boundary.key: frame for frame in captured.frames()}
    comb = frames["attn_hc/L2/c0/prefill/r0"].load("comb")
    assert (comb - comb.transpose(1, 2)).abs().max() > 0.05
    assert torch.allclose(comb.sum(1), torch.ones(comb.shape[:2]), atol=1e-3)
    for layer in range(4):
        ids = frames[f"gate/L{layer}/c0/prefill/r0"].load("topk_ids")
        assert len(ids.unique()) > 4
        assert (ids[:, 0] != ids[:, 1]).all()


def test_the_same_capture_has_the_same_digests(
    captured: Bundle, folder: Path, tmp_path: Path
) -> None:
    job = Job(generation=SHORT)
    capture_checkpoint(folder, tiny_prompts()[:2], tmp_path / "b", job)
    again = Bundle.open(tmp_path / "b")
    for name in ("digests.jsonl", "tokens.jsonl", "layout.jsonl"):
        assert (again.path / name).read_bytes() == (captured.path / name).read_bytes()
    assert compare_bundles(captured, again).verdict == "equal"


def replayed(frame: Frame, **changed: float) -> bool:
    definition = kernel(frame.op or "")
    plain = implementation(definition.references[frame.contract or ""])
    returned = load(plain.target)(**frame.inputs(), **{**frame.constants, **changed})
    outputs = definition.named_outputs(returned)
    return compare_tensors(frame.boundary.key, frame.outputs(), outputs).equal


def test_replaying_captured_inputs_gives_the_captured_outputs(captured: Bundle) -> None:
    frames = [frame for frame in captured.frames() if frame.op is not None]
    assert {frame.op for frame in frames} == {"mhc_pre", "moe_experts"}
    assert len(frames) == 6 * 12
    assert all(replayed(frame) for frame in frames)
    hyper = next(frame for frame in frames if frame.op == "mhc_pre")
    experts = next(frame for frame in frames if frame.op == "moe_experts")
    assert not replayed(hyper, sinkhorn_iters=2)
    assert not replayed(experts, swiglu_limit=0.01)


@given(data=st.data())
def test_any_flipped_bit_of_the_models_tensors_is_found(
    captured: Bundle, data: st.DataObject
) -> None:
    frames = list(captured.frames())
    frame = frames[data.draw(st.integers(0, len(frames) - 1), label="frame")]
    tensors = frame.inputs() | frame.outputs()
    name = data.draw(st.sampled_from(sorted(tensors)), label="tensor")
    raw = raw_bytes(tensors[name]).copy()
    at = data.draw(st.integers(0, raw.size - 1), label="byte")
    raw[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    changed = torch.from_numpy(raw).view(tensors[name].dtype).reshape(tensors[name].shape)
    comparison = compare_tensors("flip", tensors, tensors | {name: changed})
    (mismatch,) = comparison.mismatches
    assert (mismatch.tensor, mismatch.differing) == (name, 1)
    index = np.unravel_index(at // tensors[name].element_size(), tensors[name].shape)
    assert mismatch.first_index == tuple(map(int, index))
    assert digest(changed) != frame.meta(name).digest


def test_a_fault_in_one_module_is_named_as_the_culprit(
    captured: Bundle, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    def one_bit(module: Any, args: Any, result: torch.Tensor) -> torch.Tensor:
        changed = result.clone()
        changed.view(torch.int16)[-1, 5] ^= 1
        return changed

    experts = checkpoint.model.get_submodule("model.layers.2.mlp.experts")
    handle = experts.register_forward_hook(one_bit)
    try:
        capture_transformers(checkpoint, tiny_prompts()[:2], tmp_path / "b", generation=SHORT)
    finally:
        handle.remove()
    report = compare_bundles(captured, Bundle.open(tmp_path / "b"))
    assert report.verdict == "differs"
    first = report.earliest
    assert first is not None
    assert (first.kind, first.boundary.key) == ("culprit", "experts/L2/c0/prefill/r0")
    mismatch = first.differences[0].mismatch
    assert mismatch is not None
    assert mismatch.first_index == (len(captured.tokens[0].prompt_token_ids) - 1, 5)
    assert report.counts["victim"] > 10


def test_qwen3_moe_is_captured_too(tmp_path: Path) -> None:
    job = Job(generation=Generation(tokens=2))
    capture_tiny("qwen3-moe", tmp_path / "b", job, tiny_prompts()[:1])
    bundle = Bundle.open(tmp_path / "b")
    frames = [frame for frame in bundle.frames() if frame.op is not None]
    assert [frame.boundary.layer for frame in frames] == [0, 1, 0, 1]
    assert all(replayed(frame) for frame in frames)


def test_token_ids_need_no_tokenizer(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("token*"))
    with pytest.raises(UsageError, match="no tokenizer"):
        capture_checkpoint(bare, tiny_prompts(), tmp_path / "a", Job())
    ids = Prompt(text=None, token_ids=(3, 4, 5))
    capture_checkpoint(bare, [ids], tmp_path / "b", Job(generation=Generation(tokens=1)))
    (line,) = Bundle.open(tmp_path / "b").tokens
    assert (line.prompt, line.prompt_token_ids) == (None, (3, 4, 5))


# --- what is refused, and how ---------------------------------------------------------------------


def broken(folder: Path, path: Path, change: Callable[[Path], None]) -> Path:
    shutil.copytree(folder, path)
    change(path)
    return path


def set_config(**values: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        config = json.loads((path / "config.json").read_text()) | values
        (path / "config.json").write_text(json.dumps(config))

    return change


def drop_weight(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(path / "model.safetensors")
    weights.pop("model.hc_head.hc_fn")
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def cut_weights(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "expected a Hugging Face checkpoint directory"),
        (lambda path: (path / "config.json").unlink(), r"config\.json: the file is missing"),
        (lambda path: (path / "config.json").write_text("{"), r"config\.json: expected a JSON"),
        (set_config(model_type="llama"), "'llama' has no declared .* deepseek_v4, qwen3_moe"),
        (lambda path: (path / "model.safetensors").unlink(), "cannot load the checkpoint"),
        (drop_weight, r"weights are missing .* model\.hc_head\.hc_fn"),
        (cut_weights, "cannot load the checkpoint"),
        (set_config(hidden_size=32), "another shape"),
        (lambda path: (path / "tokenizer.json").write_text("{"), "cannot load the tokenizer"),
    ],
)
def test_a_broken_checkpoint_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    path = broken(folder, tmp_path / "model", change)
    with pytest.raises(UsageError, match=message):
        capture_checkpoint(path, tiny_prompts(), tmp_path / "b", Job())
    assert not (tmp_path / "b").exists()


def test_missing_packages_and_devices_are_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EnvironmentUnfit, match="device xpu was asked for"):
        capture_checkpoint(folder, tiny_prompts(), tmp_path / "b", Job(device="xpu"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(EnvironmentUnfit, match="needs transformers, which is not installed"):
        load_model(folder, "cpu")


def test_another_order_than_the_plain_one_is_refused(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_eager(checkpoint.model)
    monkeypatch.setattr(checkpoint.model.config, "_experts_implementation", "grouped_mm")
    with pytest.raises(EnvironmentUnfit, match="expected 'eager', got 'grouped_mm'"):
        check_eager(checkpoint.model)


def test_arguments_are_checked(checkpoint: Checkpoint, captured: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tokens: expected at least 1"):
        Generation(tokens=0)
    with pytest.raises(UsageError, match="at least one prompt"):
        capture_transformers(checkpoint, [], tmp_path / "b", generation=SHORT)
    with pytest.raises(UsageError, match="in use"):
        capture_transformers(checkpoint, tiny_prompts(), captured.path, generation=SHORT)
    with pytest.raises(
        UsageError, match="unknown tiny model 'llama'; known: deepseek-v4, qwen3-moe"
    ):
        tiny("llama")
    with pytest.raises(UsageError, match="keep_steps: expected 0 or more"):
        capture_transformers(
            checkpoint, tiny_prompts(), tmp_path / "b", generation=Generation(keep_steps=-1)
        )


@pytest.mark.parametrize(
    ("ids", "tokens", "message"),
    [
        ((5, 10**30), 1, r"has the token id 10+; this model has the ids 0 to \d+"),
        ((5,) * 510, 3, r"has 510 tokens and 3 are to follow; this model has 512 positions"),
        ((5,), 10**9, r"this model has 512 positions: shorten it, or lower --tokens"),
    ],
)
def test_what_the_model_has_no_token_or_position_for_is_refused(
    checkpoint: Checkpoint, tmp_path: Path, ids: tuple[int, ...], tokens: int, message: str
) -> None:
    asked = (Prompt(text=None, token_ids=(5, 6)), Prompt(text=None, token_ids=ids))
    with pytest.raises(UsageError, match=message):
        capture_transformers(
            checkpoint, asked, tmp_path / "b", generation=Generation(tokens=tokens)
        )
    assert not list(tmp_path.iterdir())
