"""The promoted path: each expert in turn, over the tokens that a mask finds for it."""

from bitgate.kernels.moe.experts import experts_loop

run = experts_loop
