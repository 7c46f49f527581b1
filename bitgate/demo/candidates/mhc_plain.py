"""The plain mHC pre step, operation by operation as the model runs it."""

from bitgate.kernels.mhc.reference import mhc_pre

run = mhc_pre
