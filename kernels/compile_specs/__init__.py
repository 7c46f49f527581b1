"""Which Triton kernels are compiled for the compile check, and at which point; add yours here."""

from bitgate.kernels.compile_specs.base import CompileSpec
from bitgate.kernels.compile_specs.mhc import MHC
from bitgate.kernels.compile_specs.moe import MOE
from bitgate.kernels.compile_specs.moe_gemm import MOE_GEMM
from bitgate.kernels.compile_specs.moe_quant import MOE_QUANT

__all__ = ["SPECS", "CompileSpec"]

SPECS: tuple[CompileSpec, ...] = (*MHC, *MOE, *MOE_GEMM, *MOE_QUANT)
