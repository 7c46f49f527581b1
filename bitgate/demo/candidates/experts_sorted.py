"""The first candidate: sort the (token, expert) pairs once, then work on contiguous rows.

Same matmuls, same order of additions: the bits must not change, only the time.
"""

from bitgate.kernels.moe.experts import experts_sorted

run = experts_sorted
