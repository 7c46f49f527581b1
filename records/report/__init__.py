"""The report: a whole ledger as one HTML page that needs no network and no other file.

It shows stored JSON only, so it needs no code of those who wrote it, and the same ledger gives the
same bytes.
"""

from bitgate.records.report.page import render

__all__ = ["render"]
