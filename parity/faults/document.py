"""The matrix of faults and checks as one JSON document, and as a page of the documentation.

Nothing here needs torch: a process that interprets Triton writes the document, any other shows it.
"""

from typing import Any, Final

Document = dict[str, Any]

CHECKS: Final = {
    "alone": "a token alone, and the tokens reversed, give the same rows",
    "bits": "every output and accumulator has the reference's bits on random and edge inputs",
    "bounds": "every access of every lane that counts lies inside its tensor",
    "broken": "NaN and infinite logits still give distinct experts and finite weights",
    "buckets": "the reference's bits at every number of tokens where engines change kernels",
    "capacity": "the buffers are whole blocks, hold each local pair once, and the rest is marked",
    "fixtures": "integer-exact fixtures, whose values follow by counting alone",
    "legal": "resolved tiles are ones that matrix instructions and descriptors take",
    "promotion": "no step over K is longer than a group of scales",
    "published": "resolved tiles are those that were read in the engines' sources",
    "ranks": "two ranks of integer fixtures add up to the whole, and a rank without experts to +0",
    "refuses": "calls that cannot mean anything are refused",
    "repeat": "the same call gives the same bits again",
    "reuse": "different inputs in one memory, against a new instance in new memory",
    "sentinel": "outputs and workspaces filled with NaN, and with a finite number, beforehand",
    "shapes": "every rank has its share of the channels",
    "shards": "what the ranks of tensor parallelism compute on integer fixtures adds up",
    "strided": "inputs whose rows lie apart, with NaN between them",
    "tiles": "integer fixtures under other tiles",
    "unread": "NaN in rows, weights and experts that do not count changes nothing",
    "wide": "at 2^31 elements and more no 32-bit index wraps and no access leaves its tensor",
}

_HEAD = """\
# What breaks fused MoE, and which check catches it

Written by `bitgate parity faults --write docs/moe-faults.md`; do not edit.

Each line is a defect that was published or that a reviewer could make, planted in a correct
implementation here. **Caught by** are the checks that refuse it, **missed by** those that met its
trigger and did not notice; the target's other checks never meet the trigger. That a fault is caught
by exactly the checks that its catalogue entry lists, that its trigger happens, that it changes the
result, and that every check passes every correct implementation, is what the command verifies.

Names: `B` the published bugs, `S` a profiler's path beside its engine, `C` another engine's
or another order's arithmetic under our contract's name, `M` a stage left out or miswired,
`A` a kernel without its 64-bit indices.
"""


def merged(parts: list[Document]) -> Document:
    """One document of several that were made of different areas."""
    lists = ("faults", "controls", "open", "problems")
    whole: Document = {name: [one for part in parts for one in part[name]] for name in lists}
    passed = bool(parts) and all(part["passed"] for part in parts)
    return {"passed": passed, "checks": CHECKS, **whole}


def page(document: Document) -> str:
    """The document as Markdown."""
    faults, gaps = document["faults"], document["open"]
    lines = [
        _HEAD,
        f"{len(faults)} faults, all of them caught where the command passes; {len(gaps)} open.\n",
    ]
    for area in dict.fromkeys(one["area"] for one in faults):
        lines += [f"## {area}\n", _row(_COLUMNS), _row(["---"] * len(_COLUMNS))]
        lines += [fault_line(one) for one in faults if one["area"] == area]
        lines.append("")
    lines += ["## Open: not planted here, and so not caught\n"]
    head = ["bug", "what", "trigger", "source", "why not here", "what would find it"]
    lines += [_row(head), _row(["---"] * len(head))] if gaps else ["None.\n"]
    lines += [
        _row([*(one[name] for name in ("id", "title", "trigger")), "; ".join(one["sources"]),
              one["reason"], one["needs"]])
        for one in gaps
    ]  # fmt: skip
    lines += ["", "## The checks\n", _row(["check", "asks that"]), _row(["---", "---"])]
    used = {name for one in faults for name in (*one["caught"], *one["missed"], *one["idle"])}
    lines += [_row([f"`{name}`", text]) for name, text in CHECKS.items() if name in used]
    return "\n".join(lines) + "\n"


_COLUMNS = ["bug", "what", "trigger", "source", "in", "caught by", "missed by"]


def fault_line(fault: Document) -> str:
    """The line of one fault in the page."""
    what = fault["title"] + (f" ({fault['note']})" if fault["note"] else "")
    return _row(
        [
            fault["id"],
            what,
            fault["trigger"],
            "; ".join(fault["sources"]),
            f"`{fault['target']}`",
            ", ".join(fault["caught"]),
            ", ".join(fault["missed"]) or "-",
        ]
    )


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
