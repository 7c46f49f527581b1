"""What calls leave behind for later ones is told from chance and from arithmetic."""

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Fault:
    name: str
    body: str
    finding: str
    text: str
    gate: str = "G4"


FAULTS = (
    Fault(
        "a workspace that is not cleared",
        """
        kept = {}
        def run(*, x, w, shift):
            y = x * w + shift
            stale = kept.setdefault(x.shape, y * 0)
            stale += y
            return stale * 1, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        r"y\[0, 0\].*left over from call to call",
    ),
    Fault(
        "a cache keyed on the address",
        """
        cache = {}
        def run(*, x, w, shift):
            if x.data_ptr() not in cache:
                y = x * w + shift
                cache[x.data_ptr()] = (y, y[:, 0] - y[:, -1])
            return cache[x.data_ptr()]
        """,
        "history-dependent",
        "the call alone is right",
    ),
    Fault(
        "a cache keyed on the object",
        """
        cache = {}
        def run(*, x, w, shift):
            if id(x) not in cache:
                y = x * w + shift
                cache[id(x)] = (y, y[:, 0] - y[:, -1], x)
            return cache[id(x)][:2]
        """,
        "history-dependent",
        "the call alone is right",
    ),
    Fault(
        "a cache keyed on the shape",
        """
        cache = {}
        def run(*, x, w, shift):
            if x.shape not in cache:
                y = x * w + shift
                cache[x.shape] = (y, y[:, 0] - y[:, -1])
            return cache[x.shape]
        """,
        "history-dependent",
        "the call alone is right",
    ),
    Fault(
        "a cache keyed on part of the contents",
        """
        cache = {}
        def run(*, x, w, shift):
            key = (x.shape, float(x[0, 0]), float(x[0, 1]), float(w[0]))
            if key not in cache:
                y = x * w + shift
                cache[key] = (y, y[:, 0] - y[:, -1])
            return cache[key]
        """,
        "history-dependent",
        "~perturbed",
    ),
    Fault(
        "a cache keyed on one input only",
        """
        cache = {}
        def run(*, x, w, shift):
            key = x.numpy().tobytes()
            if key not in cache:
                y = x * w + shift
                cache[key] = (y, y[:, 0] - y[:, -1])
            y, edge = cache[key]
            return y * 1, edge * 1
        """,
        "history-dependent",
        "~perturbed-w",
    ),
    Fault(
        "one output buffer for all calls",
        """
        import torch
        kept = {}
        def run(*, x, w, shift):
            y = kept.setdefault(x.shape, torch.empty_like(x))
            y.copy_(x * w + shift)
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        "output-overwritten: .*output 0 of 1 calls ago changed after it was returned",
    ),
    Fault(
        "two output buffers in turn",
        """
        import torch
        kept, calls = {}, []
        def run(*, x, w, shift):
            calls.append(x)
            y = kept.setdefault((x.shape, len(calls) % 2), torch.empty_like(x))
            y.copy_(x * w + shift)
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        "output-overwritten: .*output 0 of 2 calls ago",
    ),
    Fault(
        "a thread that writes later",
        """
        import threading
        last = []
        def run(*, x, w, shift):
            # The thread writes once the next call has begun, whatever the machine's load.
            for event, thread in last:
                event.set()
                thread.join()
            y = x * w + shift
            begun = threading.Event()
            late = threading.Thread(target=lambda: (begun.wait(), y.zero_()), daemon=True)
            late.start()
            last[:] = [(begun, late)]
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        "output-overwritten",
    ),
    Fault(
        "only the seventh call is wrong",
        """
        calls = 0
        def run(*, x, w, shift):
            global calls
            calls += 1
            y = x * w + shift
            if calls == 7:
                y[0, 0] = 0
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        "replaying 7 calls",
    ),
    Fault(
        "only the first call is wrong",
        """
        ready = []
        def run(*, x, w, shift):
            y = x * w + shift
            if not ready:
                ready.append(True)
                y[2, 1] = 0
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        r"y\[2, 1\].*replaying 1 calls",
    ),
    Fault(
        "the last input's address is kept",
        """
        kept = []
        def run(*, x, w, shift):
            kept.append(x)
            y = kept[0] * w + shift if kept[0].shape == x.shape else x * w + shift
            return y, y[:, 0] - y[:, -1]
        """,
        "history-dependent",
        "left over",
    ),
    Fault(
        "integers in the wrong place on the second call",
        """
        calls = []
        def run(*, x, w, shift):
            calls.append(x)
            y = x * w + shift
            return y, y[:, 0] - y[:, -1] + (len(calls) == 2)
        """,
        "history-dependent",
        "replaying 2 calls",
        gate="G2",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_caught_and_named(catch, fault):
    catch(fault)


LOTTERY = """
    import pathlib
    counter = pathlib.Path(COUNTER)
    process = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(process + 1))
    calls = 0
    def run(*, x, w, shift):
        global calls
        calls += 1
        y = x * w + shift
        RULE
        return y, y[:, 0] - y[:, -1]
"""


@pytest.mark.parametrize(
    "rule",
    [
        # The sweep and its replay are the processes 0 and 1; the call alone runs in 2 and 3.
        "y = y + 1 if process < 2 else y",
        "y = y + (1 if process < 2 else 2) * (calls > 2 or process > 1)",
        "y = y + (process != 1)",
    ],
    ids=["wrong-from-the-start-in-some", "wrong-in-two-ways", "replay-is-right"],
)
def test_what_processes_disagree_about_is_nondeterministic_not_history(bench, tmp_path, rule):
    body = LOTTERY.replace("COUNTER", repr(str(tmp_path / "count"))).replace("RULE", rule)
    result = bench.ask("G4", body)
    assert (result.outcome, result.finding) == ("fail", "nondeterministic"), result.reason
