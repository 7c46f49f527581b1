"""Who ran what where: the only place that reads the environment.

What is recorded here decides which measurements may be compared, so each list below says why its
members are in it.
"""

import getpass
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bitgate.records.closure import source_closure
from bitgate.records.identity import candidate_digest, harness
from bitgate.records.libraries import mapped_libraries
from bitgate.records.proof import Pairs, Tier
from bitgate.records.rows import Candidate, Environment

__all__ = [
    "environment",
    "switches",
    "variable",
    "process_environment",
    "user",
    "end_of_life",
    "harness",
    "mapped_libraries",
    "candidate",
    "candidate_digest",
    "source_closure",
]

# Packages whose version changes bits or speed.
_PACKAGES = (
    "torch",
    "triton",
    "pytorch-triton-xpu",
    "triton-xpu",
    "numba",
    "llvmlite",
    "numpy",
    "transformers",
    "vllm",
    "vllm-xpu-kernels",
    "sglang",
    "flashinfer-python",
    "deep-gemm",
    "tilelang",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cublas-cu12",
    "nvidia-cublas",
    "intel-sycl-rt",
    "intel-extension-for-pytorch",
    "oneccl",
    "oneccl-bindings-for-pytorch",
    "mkl",
)

# No further release comes: still usable by name, and worth knowing when a number looks odd.
_END_OF_LIFE = (
    ("intel-extension-for-pytorch", "2.8 was the last; torch.xpu of plain torch replaces it"),
    ("oneccl-bindings-for-pytorch", "2.8 was the last; the xccl backend of torch replaces it"),
)

# Switches of the compilers, math libraries, runtimes and collectives.
_SWITCH_PREFIXES = (
    "ATEN_",
    "BLIS_",
    "CCL_",
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "DNNL_",
    "FI_",
    "FLASHINFER_",
    "GOMP_",
    "I_MPI_",
    "IGC_",
    "IPEX_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "NUMBA_",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_",
    "ONEAPI_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "SYCL_",
    "TORCH",
    "TRITON_",
    "UR_",
    "VLLM_",
    "ZE_",
)
_SWITCHES = frozenset({"LD_PRELOAD", "PYTHONHASHSEED", "PYTHONOPTIMIZE"})
_UNSET = "0" * 64
# Places to put files change with every run and change no bits; secrets have no place in a row.
_NOT_SWITCHES = ("_DIR", "_HOME", "_PATH", "_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


def variable(name: str, default: str | None = None) -> str | None:
    """The value of an environment variable."""
    return os.environ.get(name, default)  # noqa: TID251 - the one place


def process_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment with `changes`, for starting a child process."""
    return {**os.environ, **(changes or {})}  # noqa: TID251 - the one place


def user() -> str:
    """Who is logged in, as the author of decisions."""
    return getpass.getuser()


def switches() -> Pairs:
    """The environment switches that can change bits or speed, in name order."""
    return _select(process_environment())


def environment(  # noqa: PLR0913 - the facts of one node, each by its keyword
    *,
    device: str,
    device_name: str,
    device_count: int,
    threads: int,
    probes: Pairs,
    libraries: Pairs = (),
    missing: Pairs = (),
) -> Environment:
    """This node as rows record it.

    The caller, who knows the device library, gives the device, the threads it computes with, what
    was probed by trying, the mapped libraries, and what could not be found out, with the reason.
    End-of-life packages are added to the probes.
    """
    packages = _versions(_PACKAGES)
    found = tuple((f"end-of-life:{name}", why) for name, why in end_of_life(packages))
    return Environment(
        device=device,
        device_name=device_name,
        device_count=device_count,
        node=platform.node() or "unnamed",
        os=platform.platform(),
        python=platform.python_version(),
        threads=threads,
        packages=packages,
        libraries=tuple(sorted(libraries)),
        switches=switches(),
        probes=tuple(sorted(probes + found)),
        missing=tuple(sorted(missing)),
    )


def candidate(  # noqa: PLR0913 - one keyword for each fact of the identity
    *,
    name: str,
    op: str,
    contract: str,
    tier: Tier,
    device: str,
    implementation: str,
    root: Path,
    config: Pairs = (),
    switches: Pairs | None = None,
) -> Candidate:
    """The identity of the implementation `module:function` whose files lie below `root`.

    Without `switches`, those of this process count.

    Raises:
        UsageError: the implementation is not module:function, or its file is not below root.
    """
    module, _, _ = implementation.partition(":")
    draft = Candidate(
        name=name,
        op=op,
        contract=contract,
        tier=tier,
        device=device,
        implementation=implementation,
        sources=source_closure(root, module),
        config=tuple(sorted(config)),
        switches=_select(process_environment()) if switches is None else tuple(sorted(switches)),
        digest=_UNSET,
    )
    return replace(draft, digest=candidate_digest(draft))


def end_of_life(packages: Pairs) -> Pairs:
    """Those of the packages that get no further release, each with what replaces it."""
    present = {name for name, _ in packages}
    return tuple((name, why) for name, why in _END_OF_LIFE if name in present)


def _versions(names: tuple[str, ...]) -> Pairs:
    found = []
    for name in sorted(names):
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)


def _select(variables: Mapping[str, str]) -> Pairs:
    """Those variables that are switches, in name order."""
    return tuple(
        sorted(
            (name, value)
            for name, value in variables.items()
            if (name in _SWITCHES or name.startswith(_SWITCH_PREFIXES))
            and not name.endswith(_NOT_SWITCHES)
        )
    )
