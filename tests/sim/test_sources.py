"""Which timings may price a model: its own calls, one device, one comparability."""

from typing import Any

import pytest

from bitgate.records.errors import UsageError
from bitgate.sim.arch import load_model, terms
from bitgate.sim.scenario import TINY_MODEL
from bitgate.sim.sources import select

TERMS = terms(load_model(TINY_MODEL))
EXPERTS = next(term for term in TERMS if term.op == "moe_experts")


@pytest.fixture
def at(make):
    """The timing of the experts for so many tokens, under such conditions."""

    def timed(tokens: int, device: str = "cpu", **changes: Any):
        return make["timing"](EXPERTS.at(tokens), 100 + tokens, device, **changes)

    return timed


def test_only_the_models_own_calls_are_taken(at, make):
    other = make["workload"]("moe_experts", experts=8, hidden=64, intermediate=9, tokens=4, top_k=2)
    padded = make["workload"]("moe_experts", case="padding", **dict(EXPERTS.at(4).axes))
    foreign = make["workload"]("mhc_pre", hidden=64, streams=4, tokens=4)
    others = [make["timing"](one, 5) for one in (other, padded, foreign)]
    found = select([at(1), *others, at(16)], TERMS)
    assert [one.workload.axis("tokens") for one in found.timings] == [1, 16]
    assert (found.device, found.node, found.regime) == ("cpu", "lab-1", "warm")


def test_devices_are_never_mixed(at):
    mixed = [at(1), at(16, "cuda")]
    with pytest.raises(UsageError, match="lanes of this model on the devices cpu, cuda") as refused:
        select(mixed, TERMS)
    assert "--device" in str(refused.value)
    (only,) = select(mixed, TERMS, device="cuda").timings
    assert only.environment.device == "cuda"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"node": "lab-2"}, r"node \(lab-1 -> lab-2\)"),
        ({"device_name": "another CPU"}, r"device_name \(a CPU -> another CPU\)"),
        ({"threads": 8, "python": "3.12.0"}, r"python \(3.11.0 -> 3.12.0\); threads \(2 -> 8\)"),
        ({"packages": (("torch", "2.14.0"),)}, r"package:torch \(2.13.0 -> 2.14.0\)"),
        ({"switches": (("OMP_X", "1"),)}, r"switch:OMP_X \(absent -> 1\)"),
    ],
)
def test_timings_under_other_conditions_are_refused_with_what_differs(at, changes, named):
    with pytest.raises(UsageError, match=f"cannot enter one simulation; they differ in: {named}"):
        select([at(1), at(16), at(64, **changes)], TERMS)


def test_other_conditions_of_calls_that_the_model_does_not_make_do_not_matter(at, make):
    foreign = make["workload"]("mhc_pre", hidden=64, streams=4, tokens=4)
    elsewhere = make["timing"](foreign, 5, node="lab-2")
    assert len(select([at(1), elsewhere], TERMS).timings) == 1


def test_without_timings_only_peaks_can_price(at, make):
    for timings, device in (([], None), ([at(1)], "xpu")):
        with pytest.raises(UsageError, match="nothing prices this model"):
            select(timings, TERMS, device=device)
    with pytest.raises(UsageError, match=r"--device cuda: .* are of xpu"):
        select([], TERMS, device="cuda", peaks=make["peaks"]("xpu"))
    found = select([], TERMS, peaks=make["peaks"]("xpu"))
    assert (found.device, found.device_name, found.node) == ("xpu", "a declared device", "declared")
