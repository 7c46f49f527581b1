"""The summary of a simulation: bitgate-sim/1, JSON without a binary float, a time or a place.

Shares are decimal strings of six places that add up to exactly 1: each is cut off, and what is
left goes to those that lost most.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from bitgate.records.stats import decimal_string
from bitgate.records.types import PRICE_SOURCES
from bitgate.sim.arch import config_file, parameters
from bitgate.sim.audit import Audit
from bitgate.sim.config import EngineConfig
from bitgate.sim.families import Model
from bitgate.sim.meter import Spent
from bitgate.sim.peaks import Peaks
from bitgate.sim.workload import Request

_PLACES = 10**6


def coverage(spent: Iterable[Spent]) -> dict[str, int]:
    """Nanoseconds by how they were priced."""
    total: dict[str, int] = dict.fromkeys(PRICE_SOURCES, 0)
    for one in spent:
        for how, ns in one.ns.items():
            total[how] += ns
    return total


def shares(parts: Mapping[str, int]) -> dict[str, str]:
    """Each part of the sum as a decimal string; together exactly 1."""
    total = sum(parts.values())
    exact = {name: Fraction(part * _PLACES, total) for name, part in parts.items()}
    cut = {name: int(share) for name, share in exact.items()}
    lost = sorted(exact, key=lambda name: cut[name] - exact[name])
    for name in lost[: _PLACES - sum(cut.values())]:
        cut[name] += 1
    return {name: decimal_string(Fraction(share, _PLACES)) for name, share in cut.items()}


def price_rows(spent: Mapping[str, Spent]) -> list[dict[str, Any]]:
    """What each operator took, with its share of the whole time and how it was priced."""
    of_all = shares({op: one.total_ns for op, one in spent.items()})
    return [
        {
            "op": op,
            "calls": one.calls,
            "ns": one.total_ns,
            "share": of_all[op],
            "how": shares(one.ns),
            "record_ids": sorted(one.sources),
        }
        for op, one in spent.items()
    ]


class Offered:
    """Counts and hashes the requests of a trace as they pass."""

    def __init__(self) -> None:
        self._requests = self._prompt_tokens = self._output_tokens = 0
        self._hash = hashlib.sha256()

    def passing(self, requests: Iterable[Request]) -> Iterator[Request]:
        """The same requests."""
        for request in requests:
            self._requests += 1
            self._prompt_tokens += request.prompt_tokens
            self._output_tokens += request.output_tokens
            words = (request.arrival_ns, request.prompt_tokens, request.output_tokens)
            self._hash.update(b"%d,%d,%d\n" % words)
            yield request

    def row(self, trace: Path) -> dict[str, Any]:
        """The workload; its digest is over arrival, prompt and output of each request, in order."""
        return {
            "trace": trace.name,
            "requests": self._requests,
            "prompt_tokens": self._prompt_tokens,
            "output_tokens": self._output_tokens,
            "sha256": self._hash.hexdigest(),
        }


def model_row(model: Model, path: Path) -> dict[str, Any]:
    """The model, and the digest of the file that describes it."""
    return {
        "name": model.name,
        "architecture": model.architecture,
        "dtype": model.dtype,
        "layers": model.layers,
        "parameters": parameters(model),
        "config_sha256": hashlib.sha256(config_file(path).read_bytes()).hexdigest(),
    }


def peaks_row(peaks: Peaks | None) -> dict[str, Any] | None:
    """The declared peaks, each with its source."""
    if peaks is None:
        return None
    return {field.name: getattr(peaks, field.name) for field in fields(peaks)} | {
        "flops_per_second": dict(peaks.flops_per_second)
    }


def engine_row(config: EngineConfig) -> dict[str, Any]:
    """Every setting; a share as a decimal string."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return {name: str(v) if isinstance(v, float) else v for name, v in values.items()}


def audit_row(audit: Audit, refused: int) -> dict[str, Any]:
    """What was conserved, and how many requests the engine turned away."""
    counts = {field.name: getattr(audit, field.name) for field in fields(audit)}
    counts["findings"] = [f"{found.law}: {found.count}: {found.first}" for found in audit.findings]
    return counts | {"passed": audit.passed, "refused": refused}


def sealed(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts with their own digest: SHA-256 of them as compact JSON in the order of keys."""
    plain = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    return facts | {"digest": hashlib.sha256(plain).hexdigest()}


def as_bytes(summary: Mapping[str, Any]) -> bytes:
    """The file: indented JSON, keys in order, one end of line."""
    return (json.dumps(summary, sort_keys=True, indent=2) + "\n").encode()
