"""What `bitgate parity order` found, as facts and as text."""

from typing import Any

from rich.table import Table

from bitgate.parity.order.base import Choice
from bitgate.parity.order.catalogue import orders_of
from bitgate.parity.order.identify import Finding, Near
from bitgate.records.console import table

_TEXT = {
    "one": "one order of the catalogue reproduces the bits",
    "several": "several orders reproduce the bits: this input does not tell them apart",
    "none": "no order of the catalogue reproduces the bits",
    "nothing": "nothing was compared: there is no element to compare",
}


def facts(finding: Finding) -> dict[str, Any]:
    """Everything, for JSON."""
    return {
        "op": finding.op,
        "stage": finding.stage,
        "verdict": finding.verdict,
        "calls": finding.calls,
        "last_call": finding.label,
        "elements_compared": finding.compared,
        "orders_tried": finding.tried,
        "distinct_results": finding.distinct,
        "named": list(finding.named),
        "possible": {name: list(options) for name, options in finding.possible.items()},
        "reproducing": [dict(choice) for choice in finding.reproducing],
        "nearest": [
            {
                "order": dict(near.choice),
                "orders_with_this_result": near.orders,
                "tensor": near.tensor,
                "differing": near.differing,
                "total": near.total,
                "max_ulp": near.max_ulp,
                "detail": near.detail,
            }
            for near in finding.nearest
        ],
        "left_out": list(finding.left_out),
    }


def lines(finding: Finding) -> list[str]:
    """The finding in sentences, before and after its table."""
    compared = (
        f"compared: {finding.compared} elements in {finding.calls} calls, up to {finding.label}; "
        f"{finding.tried} orders tried on the first, with {finding.distinct} distinct results"
    )
    found = [f"{finding.op}, {finding.stage}: {_TEXT[finding.verdict]}", compared]
    if finding.verdict == "several":
        share = f"{len(finding.reproducing)} of {finding.tried}"
        found.append(
            f"{share} orders are left (--json lists them); the fewer distinct results an input "
            "has, the less it proves"
        )
    if finding.named:
        found.append(f"among them: {', '.join(finding.named)}")
    if finding.verdict == "none":
        found += [f"nearest: {near_text(near)}" for near in finding.nearest]
    return found + [f"not tried: {one}" for one in finding.left_out]


def near_text(near: Near) -> str:
    """How far a result is, and by which order."""
    far = (
        near.detail or f"{near.differing} of {near.total} elements differ, up to {near.max_ulp} ULP"
    )
    return f"{near.tensor}: {far}: {order_text(near.choice)} ({near.orders} orders)"


def order_text(choice: Choice) -> str:
    """An order in one line."""
    return ", ".join(f"{dimension} {option}" for dimension, option in choice)


def decisions(finding: Finding) -> Table:
    """A table of what each dimension can have been, in words."""
    shown = table(f"{finding.op}, {finding.stage}", "decision", "can have been", "that is")
    texts = {
        (dimension.name, option.name): option.text
        for dimension in orders_of(finding.op).dimensions
        for option in dimension.options
    }
    asked = {one.name: one for one in orders_of(finding.op).dimensions}
    for dimension, options in finding.possible.items():
        many = f"any of {len(options)}: {', '.join(options)}"
        told = texts[dimension, options[0]] if len(options) == 1 else asked[dimension].asks
        shown.add_row(dimension, options[0] if len(options) == 1 else many, told)
    return shown
