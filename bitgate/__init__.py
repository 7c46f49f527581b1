"""bitgate: promote a kernel only on proof.

The five folders ``records``, ``kernels``, ``parity``, ``bench`` and ``sim`` are importable as
``bitgate.records`` and so on; start reading at ``bitgate.records.types``.
"""

__version__ = "0.1.0"
