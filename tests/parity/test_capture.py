"""Sessions and taps of any torch module, and the prompts to capture with."""

from pathlib import Path

import pytest
import torch

from bitgate.parity.bundle import Bundle
from bitgate.parity.capture import CaptureIncomplete, Declared, Origin, Plan, capture, tap
from bitgate.parity.capture_hooks import Passes, hooked
from bitgate.parity.capture_prompts import Prompt, read_prompts
from bitgate.parity.taps import TAPS, taps_for
from bitgate.parity.taps.spec import ModuleTap
from bitgate.parity.tiny.build import vocabulary
from bitgate.records.errors import UsageError

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


# --- prompts and taps ---------------------------------------------------------------------------


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
