"""One sample: what it reports, and what it does not let through. No child process needed."""

import threading
import time

import pytest
import torch

from bitgate.bench.stopwatch import Stopwatch
from bitgate.kernels.devices import CpuDevice, device
from bitgate.records.errors import EnvironmentUnfit


@pytest.fixture
def watch():
    return Stopwatch(device("cpu"), cold=False)


def inputs(start=0, calls=1):
    return [{"x": torch.arange(64.0) + start + call} for call in range(calls)]


def double(*, x, factor=2):
    return x * factor


def test_every_call_has_inputs_and_outputs_of_its_own(watch):
    sample = watch.take(double, inputs(calls=3), {"factor": 5}, settle=[])
    assert [float(outputs[0][0]) for outputs in sample.outputs] == [0, 5, 10]
    assert 0 < sample.ns <= sample.host_ns
    assert (sample.changed, sample.threads) == ((), 0)


def test_it_settles_on_other_contents_before_the_timed_calls(watch):
    seen = []

    def spy(*, x):
        seen.append(float(x[0]))
        return x + 0

    watch.take(spy, inputs(7, calls=2), {}, settle=inputs(100))
    assert seen == [100, 7, 8]


def test_addresses_rotate(watch):
    seen = []

    def spy(*, x):
        seen.append(x.data_ptr())
        return x + 0

    for _ in range(4):
        watch.take(spy, inputs(), {}, settle=inputs(1))
    assert len(set(seen)) > 4


def test_a_forgotten_output_is_not_the_right_one_of_before(watch):
    right = watch.take(double, inputs(1), {}, settle=[])
    forgotten = watch.take(lambda *, x: torch.empty_like(x), inputs(1), {}, settle=[])
    assert not torch.equal(right.outputs[0][0], forgotten.outputs[0][0])


def test_a_changed_input_is_named(watch):
    sample = watch.take(lambda *, x: x.add_(1), inputs(calls=2), {}, settle=[])
    assert sample.changed == ((0, "x"), (1, "x"))


def test_a_thread_that_goes_on_is_counted(watch):
    release = threading.Event()

    def deferring(*, x):
        out = torch.empty_like(x)
        threading.Thread(target=lambda: (release.wait(5), out.copy_(x)), daemon=True).start()
        return out

    sample = watch.take(deferring, inputs(), {}, settle=[])
    release.set()
    assert sample.threads == 1
    # The copy was taken when the clock stopped: what the thread writes later is not in it.
    assert not torch.equal(sample.outputs[0][0], inputs()[0]["x"])


class Lazy(torch.Tensor):
    """A tensor that would compute when it is looked at."""


@pytest.mark.parametrize(
    "returned",
    [
        lambda x: x.as_subclass(Lazy),
        lambda x: (x, 3),
        lambda x: None,
        lambda x: x.to_sparse(),
        lambda x: [x],
    ],
    ids=["lazy", "number", "none", "sparse", "list"],
)
def test_only_plain_tensors_are_outputs(watch, returned):
    with pytest.raises(TypeError, match="plain strided torch tensors"):
        watch.take(lambda *, x: returned(x), inputs(), {}, settle=[])


def test_an_output_on_another_device_is_refused(watch):
    with pytest.raises(TypeError, match="expected an output on cpu"):
        watch.take(lambda *, x: x.to("meta"), inputs(), {}, settle=[])


def test_replacing_the_clock_changes_no_time(watch, monkeypatch):
    def slow(*, x):
        time.sleep(0.02)
        return x + 0

    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: 0)
    sample = watch.take(slow, inputs(), {}, settle=[])
    assert sample.ns >= 20_000_000
    assert sample.host_ns >= sample.ns


def test_timing_nothing_reads_next_to_nothing(watch):
    empty_ns, gap_ns = watch.empty_ns()
    sample = watch.take(lambda *, x: time.sleep(0.02) or x + 0, inputs(), {}, settle=[])
    assert 0 < empty_ns < sample.ns
    assert gap_ns >= 0


class UnknownCache(CpuDevice):
    """A processor that does not say how large its cache is."""

    def _last_level_cache_bytes(self):
        return None


def test_a_cold_call_that_cannot_be_proved_is_refused():
    with pytest.raises(EnvironmentUnfit, match="use regime warm"):
        Stopwatch(UnknownCache(), cold=True)


def test_a_cold_sample_is_taken_after_the_flush():
    events = []

    class Flushing(CpuDevice):
        def _last_level_cache_bytes(self):
            return 4096

        def flusher(self):
            return lambda: events.append("flush")

    def spy(*, x):
        events.append("call")
        return x + 0

    Stopwatch(Flushing(), cold=True).take(spy, inputs(), {}, settle=inputs(1))
    assert events == ["call", "flush", "call"]
