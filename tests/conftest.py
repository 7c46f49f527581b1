"""Set-up that every test shares: the interpreter is chosen before triton is imported.

With TRITON_INTERPRET=0 on a node that has a device, tests that ask for one get it: so far the proof
of FP8 (kernels/test_moe_fp8_proof.py).
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import settings

# The same examples on every run: a flaky test would contradict the product.
settings.register_profile("bitgate", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("bitgate")
