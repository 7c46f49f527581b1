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
from bitgate.parity.capture import CaptureIncomplete, Declared, Origin, Plan, capture, tap
from bitgate.parity.capture_checkpoint import (
    Job,
    capture_checkpoint,
    capture_tiny,
    tiny_prompts,
)
from bitgate.parity.capture_hooks import Passes, hooked
from bitgate.parity.capture_load import Checkpoint, check_eager, load_model, load_tokenizer, quiet
from bitgate.parity.capture_prompts import Prompt, read_prompts
from bitgate.parity.capture_transformers import Generation, capture_transformers
from bitgate.parity.compare import compare_bundles, compare_tensors
from bitgate.parity.digests import digest
from bitgate.parity.taps import TAPS, taps_for
from bitgate.parity.taps.spec import ModuleTap
from bitgate.parity.tiny import build, prompts, tiny
from bitgate.parity.tiny.build import vocabulary
from bitgate.records.errors import EnvironmentUnfit, UsageError

SHORT = Generation(tokens=3)

pytestmark = pytest.mark.usefixtures("one_thread")

# --- any torch module -----------------------------------------------------------------------------


def plan(origin: Origin, *boundaries: Declared) -> Plan:
    return Plan(boundaries=boundaries, origin=origin)


def test_tap_without_a_capture_does_nothing() -> None:
    tap("anything", torch.ones(1), out=torch.ones(1))


def test_an_undeclared_boundary_is_refused(toy_origin: Origin, tmp_path: Path) -> None:
    def run() -> None:
        with (
            capture(plan(toy_origin, Declared(name="a")), tmp_path / "b") as session,
            session.step(request=0, token=0, phase="decode"),
        ):
            tap("other", torch.ones(1))

    with pytest.raises(UsageError, match=r"boundary 'other' of layer -1 is not declared.*\['a'\]"):
        run()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fired", [0, 1, 3])
def test_a_boundary_that_fires_otherwise_than_declared_stops_the_capture(
    toy_origin: Origin, tmp_path: Path, fired: int
) -> None:
    def run() -> None:
        declared = Declared(name="a", calls=2, source="net.a")
        with (
            capture(plan(toy_origin, declared), tmp_path / "b") as session,
            session.step(request=0, token=0, phase="decode"),
        ):
            for _ in range(fired):
                tap("a", torch.ones(1))

    with pytest.raises(
        CaptureIncomplete, match=f"net.a: boundary 'a' .* fired {fired} times .* expected 2"
    ):
        run()
    assert not list(tmp_path.iterdir())


def test_call_ordinals_state_and_warm_ups(toy_origin: Origin, tmp_path: Path) -> None:
    with capture(plan(toy_origin, Declared(name="a", calls=2)), tmp_path / "b") as session:
        tap("a", torch.zeros(1))
        with session.step(request=0, token=7, phase="decode"):
            tap("a", torch.ones(1), state=torch.ones(2), out=(torch.ones(3), torch.ones(4)))
            tap("a", torch.ones(1), state=torch.ones(2), out=(torch.ones(3), torch.ones(4)))
    bundle = Bundle.open(tmp_path / "b")
    assert bundle.manifest.discarded == 1
    assert [frame.boundary.ordinal for frame in bundle.frames()] == [0, 1]
    frame = next(bundle.frames())
    assert [(m.name, m.role) for m in frame.tensors] == [
        ("in0", "in"),
        ("state0", "state"),
        ("out0", "out"),
        ("out1", "out"),
    ]


def test_other_tensors_in_a_later_step_stop_the_capture(toy_origin: Origin, tmp_path: Path) -> None:
    def run() -> None:
        with capture(plan(toy_origin, Declared(name="a")), tmp_path / "b") as session:
            for token in range(2):
                with session.step(request=0, token=token, phase="decode"):
                    tap("a", {"x": torch.ones(1)} if token == 0 else {"y": torch.ones(1)})

    with pytest.raises(CaptureIncomplete, match="the same tensors in every step"):
        run()


class Scaler(torch.nn.Module):
    """Doubles its input; in place when told so."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), 2.0), requires_grad=False)
        self.in_place = in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(self.weight) if self.in_place else x * self.weight


class Net(torch.nn.Module):
    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()
        self.scaler = Scaler(in_place=in_place)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.scaler(torch.ones(input_ids.shape[1], 2)) + 1


def scaler_tap(path: str = "scaler", argument: str = "x") -> ModuleTap:
    return ModuleTap(
        path=path,
        declared=Declared(name="scaler", closed=True, source=path),
        inputs=lambda call: {"x": call.argument(0, argument)},
        params=lambda module: {"weight": module.weight},
        outputs=lambda result: {"y": result},
    )


def run_net(net: Net, origin: Origin, out: Path, taps: tuple[ModuleTap, ...]) -> torch.Tensor:
    passes = Passes(request=0)
    with (
        capture(plan(origin, *(tap.declared for tap in taps)), out) as session,
        hooked(net, taps, session, passes),
    ):
        result: torch.Tensor = net(torch.zeros(1, 3))
        net(torch.zeros(1, 1))
    return result


@pytest.mark.parametrize("in_place", [False, True])
def test_hooks_change_nothing_and_see_inputs_before_they_are_overwritten(
    toy_origin: Origin, tmp_path: Path, in_place: bool
) -> None:
    net = Net(in_place=in_place)
    tapped = run_net(net, toy_origin, tmp_path / "b", (scaler_tap(),))
    assert torch.equal(tapped, net(torch.zeros(1, 3)))
    first, second = Bundle.open(tmp_path / "b").frames()
    assert (first.step.token, first.boundary.phase) == (0, "prefill")
    assert (second.step.token, second.boundary.phase) == (3, "decode")
    assert torch.equal(first.load("x"), torch.ones(3, 2))
    assert torch.equal(first.load("y"), torch.full((3, 2), 2.0))
    assert first.mutated == (("x",) if in_place else ())
    views = {view.tensor: view for view in first.views}
    assert (views["x"].alias_group == views["y"].alias_group) is in_place


def test_a_module_that_is_missing_or_called_otherwise_is_named(
    toy_origin: Origin, tmp_path: Path
) -> None:
    with pytest.raises(CaptureIncomplete, match=r"Net has no module layers\.0\.scaler"):
        run_net(Net(), toy_origin, tmp_path / "a", (scaler_tap("layers.0.scaler"),))
    net = Net()
    net.scaler.forward = lambda *, z: z  # type: ignore[method-assign]
    net.forward = lambda ids: net.scaler(z=torch.ones(1, 2))  # type: ignore[method-assign]
    with pytest.raises(CaptureIncomplete, match=r"scaler: its arguments.*KeyError\('x'\)"):
        run_net(net, toy_origin, tmp_path / "b", (scaler_tap(),))
    assert not list(tmp_path.iterdir())


def test_a_weight_that_changes_during_the_capture_is_refused(
    toy_origin: Origin, tmp_path: Path
) -> None:
    net = Net()

    def train(*_: object) -> None:
        net.scaler.weight.add_(1)

    net.register_forward_hook(train)
    with pytest.raises(CaptureIncomplete, match=r"the weight 'weight' .* changed"):
        run_net(net, toy_origin, tmp_path / "b", (scaler_tap(),))


# --- transformers models --------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "the file is empty"),
        ("a.txt", "\n  \n", "the file is empty"),
        ("a.jsonl", "{", "line 1: not valid JSON"),
        ("a.jsonl", '{"prompt": "x"}\n{"text": "x"}', "line 2: expected an object with one key"),
        ("a.jsonl", '{"prompt_token_ids": []}', "not empty"),
        ("a.jsonl", '{"prompt_token_ids": [1, -2]}', "token ids"),
        ("a.jsonl", '{"prompt": " "}', "expected text"),
    ],
)
def test_malformed_prompts_are_refused(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_prompts(path)


def test_prompts_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert [prompt.text for prompt in read_prompts(tmp_path / "a.txt")] == ["one", "two"]
    (tmp_path / "a.jsonl").write_text('{"prompt": "one"}\n{"prompt_token_ids": [5, 6]}\n')
    assert read_prompts(tmp_path / "a.jsonl")[1] == Prompt(text=None, token_ids=(5, 6))
    with pytest.raises(UsageError, match="found none"):
        read_prompts(tmp_path / "nothing")
    (tmp_path / "b.txt").write_text("one\u2028line\ntwo\n")
    assert [prompt.text for prompt in read_prompts(tmp_path / "b.txt")] == ["one\u2028line", "two"]
    (tmp_path / "c.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UsageError, match=r"c\.txt: expected UTF-8"):
        read_prompts(tmp_path / "c.txt")


def test_every_tap_file_is_listed() -> None:
    import bitgate.parity.taps as package

    files = {path.stem for path in Path(package.__file__).parent.glob("*.py")}
    assert files - {"__init__", "spec", "experts"} == {found.model_type for found in TAPS}
    with pytest.raises(UsageError, match="known: deepseek_v4, qwen3_moe"):
        taps_for("llama")
    assert len(vocabulary()) > 150
