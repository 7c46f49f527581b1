import os
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bitgate.parity.worker import (
    CallFailed,
    Launch,
    LoadFailed,
    Worker,
    WorkerDied,
    WorkerTimeout,
)
from bitgate.records.errors import EnvironmentUnfit

# One module with many functions, so that most checks share two processes.
HABITS = """
    import os, sys, time
    import torch

    seen = []

    def pointer(*, x, w, shift):
        print("noise on stdout", flush=True)
        os.write(1, b"raw noise")
        seen.append(x)
        address = torch.full_like(x, float(x.data_ptr() % 2**20))
        return address, torch.full((x.shape[0],), float(len({id(s) for s in seen})))

    def habits(*, x, w, shift):
        match int(shift):
            case 0: return x * w, x[:, 0].t()
            case 1: x.zero_()
            case 2: torch.set_num_threads(torch.get_num_threads() + 1)
            case 3: return x
            case 4: return [x, x]
            case 5: raise RuntimeError("cannot do that")
            case 6: return x.to_sparse(), x[:, 0]
            case 7: return torch.empty(3, device="meta"), x[:, 0]
            case 8:
                buffer = torch.arange(24.0)
                return buffer.reshape(4, 6).t()[:, :3], buffer[:0]
            case 9: return x, x
        return x * 1, x[:, 0] * 1

    def dies(*, x, w, shift):
        sys.stderr.write("last words\\n")
        os._exit(9)

    def hangs(*, x, w, shift):
        while shift:
            time.sleep(0.05)
        return x, x[:, 0]
"""


def inputs(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.rand(3, 8, generator=generator), "w": torch.rand(8, generator=generator)}


@pytest.fixture(scope="module")
def launch(kernel, tmp_path_factory) -> Launch:
    root = tmp_path_factory.mktemp("outside")
    (root / "habits.py").write_text(textwrap.dedent(HABITS))
    return Launch(kernel=kernel, target="habits:habits", root=root)


@pytest.fixture(scope="module")
def worker(launch):
    with Worker(launch) as worker:
        yield worker


def habit(worker: Worker, number: int):
    worker.send(inputs(), {"shift": number})
    return worker.receive()


def test_facts_name_the_file_that_was_loaded_from_outside_the_package(worker, launch):
    facts = worker.facts
    assert facts.file == str((launch.root / "habits.py").resolve())
    assert facts.torch == torch.__version__
    assert (facts.device, facts.before["threads"]) == ("cpu", "1")
    assert facts.before == facts.after


def test_outputs_come_back_by_name_with_their_bits(worker):
    given = inputs()
    outputs = worker.call(given, {"shift": 0})
    assert list(outputs) == ["y", "edge"]
    assert torch.equal(outputs["y"], given["x"] * given["w"])
    assert torch.equal(outputs["edge"], given["x"][:, 0])


def test_views_and_shared_storage_arrive_as_what_they_show(worker):
    reply = habit(worker, 8)
    assert torch.equal(reply.outputs["y"], torch.arange(24.0).reshape(4, 6).t()[:, :3])
    assert reply.outputs["edge"].shape == (0,)
    same = habit(worker, 9)
    assert torch.equal(same.outputs["y"], same.outputs["edge"])


def test_a_changed_input_comes_back_and_an_unchanged_one_does_not(worker):
    changed = habit(worker, 1)
    assert list(changed.mutated) == ["x"]
    assert not changed.mutated["x"].any()
    assert habit(worker, 0).mutated == {}


def test_settings_after_the_call_are_reported(worker):
    before = int(habit(worker, 0).settings["threads"])
    assert int(habit(worker, 2).settings["threads"]) == before + 1


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (3, "expected 2 tensors"),
        (4, "plain strided torch tensors"),
        (5, "cannot do that"),
        (6, "plain strided torch tensors"),
        (7, "expected an output on cpu"),
    ],
)
def test_what_is_not_an_answer_is_an_error_and_the_worker_lives_on(worker, number, message):
    with pytest.raises(CallFailed, match=message):
        habit(worker, number)
    assert habit(worker, 0).outputs["y"].shape == (3, 8)


def test_placement_keeps_or_moves_addresses_and_noise_does_no_harm(launch):
    with Worker(replace(launch, target="habits:pointer")) as worker:

        def address(placement: str) -> tuple[float, float]:
            worker.send(inputs(), {"shift": 0}, placement=placement)
            outputs = worker.receive().outputs
            return float(outputs["y"][0, 0]), float(outputs["edge"][0])

        first, second = address("same"), address("same")
        moved = address("moved")
        again = address("same")
    assert first == second
    assert moved[0] != first[0]
    assert again[0] == moved[0]
    assert (first[1], moved[1]) == (1, 2)


def test_a_process_that_dies_is_reported_with_its_last_words(launch):
    with Worker(replace(launch, target="habits:dies")) as worker:
        with pytest.raises(WorkerDied, match=r"status 9.*(\n.*)*last words"):
            worker.call(inputs(), {"shift": 0})
        with pytest.raises(WorkerDied, match="status 9"):
            worker.call(inputs(), {"shift": 0})


def test_a_process_that_hangs_is_ended_and_says_where(launch):
    with Worker(replace(launch, target="habits:hangs", timeout_s=0.5)) as worker:
        assert worker.call(inputs(), {"shift": 0})["y"].shape == (3, 8)
        with pytest.raises(WorkerTimeout, match=r"in hangs"):
            worker.call(inputs(), {"shift": 1})
        pid = worker._process.pid
    assert not alive(pid)


def test_a_module_that_an_installed_one_shadows_is_refused(launch):
    with (
        Worker(replace(launch, target="json:loads")) as worker,
        pytest.raises(LoadFailed, match="expected module 'json' from below"),
    ):
        _ = worker.facts


def test_a_device_that_is_not_there_makes_the_node_unfit(launch):
    with (
        Worker(replace(launch, device="xpu")) as worker,
        pytest.raises(EnvironmentUnfit, match="'xpu' was asked for"),
    ):
        _ = worker.facts


def test_a_node_without_torch_is_unfit(launch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    environment = (*os.environ.items(), ("PYTHONPATH", str(tmp_path)))
    with (
        Worker(replace(launch, environment=environment)) as worker,
        pytest.raises(EnvironmentUnfit, match="no torch here"),
    ):
        _ = worker.facts


def test_closing_leaves_no_process_and_no_open_descriptor(launch):
    before = open_descriptors()
    worker = Worker(launch)
    pid = worker._process.pid
    assert alive(pid)
    worker.close()
    worker.close()
    assert not alive(pid)
    assert open_descriptors() == before


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- what a call leaves behind in its process -----------------------------------------------------

LEAVES = {
    "random torch": "torch.rand(1)",
    "random numpy": "numpy.random.rand()",
    "random python": "random.random()",
    "numpy errors": "numpy.seterr(all='raise')",
    "float": "torch.set_flush_denormal(True)",
    "working directory": "os.chdir(os.path.dirname(os.getcwd()))",
    "default_device": "torch.set_default_device('cpu:0')",
    "default_dtype": "torch.set_default_dtype(torch.float64)",
    "grad": "torch.autograd.set_detect_anomaly(True)",
    "torch functions": "torch.equal = lambda left, right: True",
    "imports beside the recorded sources": (
        "sys.path.insert(0, os.path.dirname(__file__)); importlib.import_module('hid' + 'den')"
    ),
}


def test_what_a_call_leaves_behind_is_reported(kernel, tmp_path):
    lines = "".join(f"    if shift == {n}: {code}\n" for n, code in enumerate(LEAVES.values()))
    imports = "import importlib, os, random, sys, numpy, torch\n"
    body = f"def run(*, x, w, shift):\n{lines}    return x * 1, x[:, 0] * 1\n"
    (tmp_path / "leaves.py").write_text(imports + body)
    (tmp_path / "hidden.py").write_text("")
    launch = Launch(kernel=kernel, target="leaves:run", root=tmp_path, sources=("leaves.py",))
    with Worker(launch) as worker:
        before = worker.facts.before
        assert before == worker.facts.after
        assert habit(worker, len(LEAVES)).settings == before
        changed = set()
        for number, name in enumerate(LEAVES):
            after = habit(worker, number).settings
            new = {key for key, value in after.items() if value != before[key]} - changed
            assert new == {name}
            changed |= new
    assert after["imports beside the recorded sources"] == "hidden.py"


def test_an_input_that_was_changed_is_seen_whatever_torch_was_made_to_say(kernel, tmp_path):
    (tmp_path / "liar.py").write_text(
        "import torch\n"
        "torch.equal = lambda left, right: True\n"
        "def run(*, x, w, shift):\n"
        "    return x.zero_() + 1, x[:, 0] * 1\n"
    )
    with Worker(Launch(kernel=kernel, target="liar:run", root=tmp_path)) as worker:
        assert worker.facts.after["torch functions"] == "torch.equal"
        assert list(habit(worker, 0).mutated) == ["x"]


FORGED = "os.write(int(sys.argv[2]), wire.encode({'kind': 'answer', 'number': 0}, {}))"


@pytest.mark.parametrize(
    "code", [FORGED, "os.write(int(sys.argv[2]), b'hello' * 9)"], ids=["another", "garbage"]
)
def test_answers_from_elsewhere_are_no_answers(kernel, tmp_path, code):
    imports = "import os, sys\nfrom bitgate.parity import wire\n"
    body = f"def run(*, x, w, shift):\n    {code}\n    return x * 1, x[:, 0] * 1\n"
    (tmp_path / "odd.py").write_text(imports + body)

    def ask() -> None:
        with Worker(Launch(kernel=kernel, target="odd:run", root=tmp_path, timeout_s=20)) as worker:
            for _ in range(4):
                habit(worker, 0)

    with pytest.raises(WorkerDied, match="expected one answer to each call"):
        ask()


def test_closing_ends_what_the_candidate_started(kernel, tmp_path):
    (tmp_path / "parent.py").write_text(
        "import os, time, torch\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    time.sleep(60)\n"
        "    os._exit(0)\n"
        "def run(*, x, w, shift):\n"
        "    return torch.full_like(x, child), x[:, 0] * 1\n"
    )
    with Worker(Launch(kernel=kernel, target="parent:run", root=tmp_path)) as worker:
        child = int(habit(worker, 0).outputs["y"][0, 0])
        assert runs(child)
    for _ in range(200):  # the signal is sent; that it is dealt with takes a moment
        if not runs(child):
            break
        time.sleep(0.05)
    assert not runs(child)


def runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
