"""The numba implementation of mhc-c1 against the replay, and when and where it compiles."""

import subprocess
import sys

import pytest
import torch

from bitgate.kernels.mhc import data, fast, replay
from bitgate.kernels.mhc.post import MHC_POST
from bitgate.kernels.mhc.post_pre import MHC_POST_PRE
from bitgate.kernels.mhc.pre import MHC_PRE
from bitgate.kernels.spec import Kernel
from bitgate.parity.compare import compare_tensors
from bitgate.records.errors import UsageError
from bitgate.records.types import Workload

KERNELS = [MHC_PRE, MHC_POST, MHC_POST_PRE]


def assert_same(kernel: Kernel, workload: Workload, index: int = 0, **constants: float) -> None:
    arguments = {**kernel.make_inputs(workload, index), **dict(kernel.constants), **constants}
    expected = kernel.named_outputs(getattr(replay, kernel.op)(**arguments))
    actual = kernel.named_outputs(getattr(fast, kernel.op)(**arguments))
    result = compare_tensors(workload.key, expected, actual)
    assert result.equal, result.mismatches


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.op)
@pytest.mark.parametrize("suite", ["default", "edge", "finish4096"])
def test_no_bit_differs_from_the_replay(kernel: Kernel, suite: str) -> None:
    for workload in kernel.suites[suite]:
        for index in range(1 if suite == "finish4096" else 3):
            assert_same(kernel, workload, index)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.op)
@pytest.mark.parametrize("hidden", [1280, 2560, 3072, 4096, 5120, 7168])
def test_no_bit_differs_at_model_sizes(kernel: Kernel, hidden: int) -> None:
    for case in data.CASES:
        axes = (("hidden", hidden), ("streams", 4), ("tokens", 5))
        assert_same(kernel, Workload(op=kernel.op, axes=axes, dtype="bfloat16", case=case))


@pytest.mark.parametrize(
    "constants",
    [
        {"sinkhorn_iters": 1},
        {"sinkhorn_iters": 7, "post_mult": 1.0},
        {"hc_eps": 0.0, "rms_eps": 1e-20},
        {"sink_eps": 1e-3},
    ],
    ids="-".join,
)
def test_other_constants(constants: dict[str, float]) -> None:
    for kernel in (MHC_PRE, MHC_POST_PRE):
        assert_same(kernel, kernel.suites["default"][2], **constants)


def test_a_division_by_zero_is_no_error() -> None:
    """Zero residuals without an epsilon divide zero by zero, as the replay does."""
    workload = next(one for one in MHC_PRE.suites["edge"] if one.case == "zeros")
    assert_same(MHC_PRE, workload, rms_eps=0.0)


def test_a_changed_constant_shows() -> None:
    inputs = MHC_PRE.make_inputs(MHC_PRE.suites["default"][2], 0)
    constants = dict(MHC_PRE.constants)
    expected = MHC_PRE.named_outputs(replay.mhc_pre(**inputs, **constants))
    other = MHC_PRE.named_outputs(fast.mhc_pre(**inputs, **{**constants, "sinkhorn_iters": 19}))
    result = compare_tensors("19", expected, other)
    assert [mismatch.tensor for mismatch in result.mismatches] == ["comb"]


def test_another_device_is_refused() -> None:
    inputs = MHC_POST.make_inputs(MHC_POST.suites["default"][0], 0)
    with pytest.raises(UsageError, match="expected tensors on the CPU, got meta"):
        fast.mhc_post(**{name: value.to("meta") for name, value in inputs.items()})


def run_fresh(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return result.stdout.strip()


def test_importing_compiles_nothing() -> None:
    code = (
        "from bitgate.kernels.mhc import fast_loops as f; "
        "print([n for n, v in vars(f).items() if getattr(v, 'signatures', None)])"
    )
    assert run_fresh(code) == "[]"


def test_without_a_place_for_the_cache_it_still_works() -> None:
    code = (
        "from numba.core.caching import CacheImpl; CacheImpl._locator_classes = []; "
        "from bitgate.kernels.mhc import fast_loops as f; import numpy as np; "
        "out = np.empty(1, np.float32); f._widen(np.array([0x3F80], np.int16), out); print(out[0])"
    )
    assert run_fresh(code) == "1.0"


def test_threads_change_no_bit() -> None:
    arguments = {
        **MHC_PRE.make_inputs(MHC_PRE.suites["default"][4], 0),
        **dict(MHC_PRE.constants),
    }
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(MHC_PRE.named_outputs(fast.mhc_pre(**arguments)))
    finally:
        torch.set_num_threads(before)
    assert compare_tensors("threads", *results).equal
