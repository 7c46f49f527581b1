"""Real timing processes, with planted cheats; the reference answers in this process."""

import textwrap
import time
from pathlib import Path

import pytest

from bitgate.bench.effect import effect
from bitgate.bench.process import Child, ChildFailed
from bitgate.bench.session import measure
from bitgate.bench.sides import Contest
from bitgate.bench.witness import TimingRefused
from bitgate.kernels import catalogue
from bitgate.parity.gates import Subject
from bitgate.parity.gates.session import STANDARD, child_environment
from bitgate.records import provenance
from bitgate.records.types import Measurement, Plan, Workload

KERNEL = catalogue.kernel("moe_experts")
AXES = {"experts": 4, "hidden": 8, "intermediate": 8, "tokens": 5, "top_k": 2}
WORKLOAD = Workload(op="moe_experts", axes=tuple(AXES.items()), dtype="bfloat16")
HEAD = """
import os, threading, time
import torch
from bitgate.kernels.moe.experts import experts_loop
"""
SAME = "def run(**a):\n    return experts_loop(**a)\n"
SLOW = "def run(**a):\n    time.sleep(0.02)\n    return experts_loop(**a)\n"


@pytest.fixture
def run(tmp_path, answers_here):
    def run(candidate: str, baseline: str = SAME, *, timeout_s: int = 60, **plan) -> Measurement:
        for name, body in (("mine", candidate), ("theirs", baseline)):
            (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(body))
        settings = {
            "regime": "warm",
            "rounds": 24,
            "processes": 1,
            "calls_per_sample": 1,
            "margin": "0.2",
            "alpha": "0.05",
            "order_seed": 11,
        }
        timed = measure(
            contest(tmp_path),
            [WORKLOAD],
            Plan(**(settings | plan)),
            timeout_s=timeout_s,
            progress=lambda what, done, total: None,
        )
        [(workload, result)] = list(timed)
        assert workload == WORKLOAD
        return result.measurement

    return run


def contest(root: Path) -> Contest:
    candidate = provenance.candidate(
        name="mine",
        op="moe_experts",
        contract="moe-torch/1",
        tier="native",
        device="cpu",
        implementation="mine:run",
        root=root,
    )
    subject = Subject(
        kernel=KERNEL,
        candidate=candidate,
        root=root,
        reference=catalogue.implementation("experts_loop"),
        constants=dict(KERNEL.constants),
    )
    return Contest(subject=subject, baseline_target="theirs:run", baseline_root=root)


def test_an_identical_pair_claims_nothing_in_two_processes(run):
    # What a candidate prints is no answer, so it may be chatty.
    chatty = "def run(**a):\n    print('{\"ns\": 1}' * 1000)\n    return experts_loop(**a)\n"
    found = run(chatty, processes=2, rounds=12)
    assert effect(found).effect in {"SAME", "INCONCLUSIVE"}
    assert set(found.process) == {0, 1}
    assert len(found.null_order) >= 12
    assert found.plan.order_seed == 11


def test_replacing_clocks_and_synchronisation_at_import_gains_nothing(run):
    patched = (
        "import torch.cpu\n"
        "time.perf_counter_ns = time.perf_counter = lambda: 0\n"
        "time.clock_gettime_ns = lambda clock: 0\n"
        "torch.cpu.synchronize = lambda *a: None\n"
    )
    found = run(patched + SLOW)
    assert effect(found).effect == "SLOWER"
    assert min(found.candidate_ns) > 3_000_000


def test_a_lasting_difference_stops_early_and_is_faster(run):
    found = run(SAME, SLOW, rounds=60)
    assert effect(found).effect == "FASTER"
    assert len(found.order) < 60
    assert found.verified_outputs == 2 * len(found.order) * found.plan.calls_per_sample


CHEATS = {
    "keys its results by shape once it was called often": (
        """
        SEEN = {}
        CALLS = [0]
        def run(**a):
            CALLS[0] += 1
            if CALLS[0] < 12 or a["x"].shape not in SEEN:
                SEEN[a["x"].shape] = experts_loop(**a)
            return SEEN[a["x"].shape]
        """,
        "output",
    ),
    "leaves the work to a thread": (
        """
        def run(**a):
            out = torch.empty_like(a["x"])
            def later():
                time.sleep(0.05)
                out.copy_(experts_loop(**a))
            threading.Thread(target=later, daemon=True).start()
            return out
        """,
        "threads",
    ),
    "slows the baseline down": (
        """
        import theirs

        def slow(**a):
            time.sleep(0.02)
            return experts_loop(**a)

        def run(**a):
            theirs.experts_loop = slow
            return experts_loop(**a)
        """,
        "rival",
    ),
    "takes more threads for itself": (
        "torch.set_num_threads(2)\n" + SAME,
        "settings",
    ),
}


@pytest.mark.parametrize(("body", "code"), CHEATS.values(), ids=CHEATS)
def test_a_cheat_is_refused(run, body, code):
    with pytest.raises(TimingRefused) as caught:
        run(textwrap.dedent(body))
    assert (caught.value.code, caught.value.side) == (code, "C")


LAZY = """
class Lazy(torch.Tensor):
    pass

def run(**a):
    return experts_loop(**a).as_subclass(Lazy)
"""
FORGED = """
def run(**a):
    for fd in range(3, 64):
        try:
            os.write(fd, bytes(4) + b"forged")
        except OSError:
            pass
    return experts_loop(**a)
"""
FAILURES = {
    "raises": ("def run(**a):\n    raise ValueError('planted')\n", "ValueError: planted"),
    "a lazy tensor": (LAZY, "plain strided torch tensors"),
    "forges an exit": ("def run(**a):\n    os._exit(0)\n", "status 0"),
    "writes into every pipe": (FORGED, "no answer"),
    "hangs": ("def run(**a):\n    time.sleep(60)\n", "Timeout"),
}


@pytest.mark.parametrize(("body", "words"), FAILURES.values(), ids=FAILURES)
def test_a_child_that_fails_gives_no_sample(run, body, words):
    with pytest.raises(ChildFailed, match=words):
        run(body, timeout_s=5)


def test_nothing_that_a_side_started_outlives_the_session(run, tmp_path):
    body = f"""
        STARTED = []
        def run(**a):
            if not STARTED:
                STARTED.append(os.fork())
                if STARTED == [0]:
                    time.sleep(60)
                    os._exit(0)
                with open({str(tmp_path / "started")!r}, "a") as file:
                    print(STARTED[0], file=file)
            return experts_loop(**a)
    """
    run(textwrap.dedent(body), rounds=1)
    started = [int(word) for word in (tmp_path / "started").read_text().split()]
    assert len(started) == 1
    deadline = time.monotonic() + 10
    while alive(started[0]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(started[0])


def alive(process: int) -> bool:
    """Whether it still runs; a zombie only waits for somebody to reap it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_missing_module_is_told_with_its_name():
    environment = child_environment("cpu", STANDARD, (), 1)
    header = {
        "device": "cpu",
        "threads": 1,
        "cold": False,
        "sides": {"B": {"target": "no_such_module:run", "root": None}},
    }
    with Child(environment, 30) as child:
        child.send(header, {})
        with pytest.raises(ChildFailed, match="no_such_module"):
            child.receive()
