"""The text side of a candidate file: where a key stands in it, and the template for a new one."""

import re
from collections.abc import Iterator
from pathlib import Path

from bitgate.records.proof import Tier

_NAME = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""
_PATH = rf"({_NAME}(?:\s*\.\s*{_NAME})*)"
_HEADER = re.compile(rf"\s*\[\[?\s*{_PATH}\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(rf"\s*{_PATH}\s*=")
# What may lie on a line of TOML: a comment, a delimiter of a long string, a short string.
_TOKEN = re.compile(r"""#.*|\"{3}|'{3}|"(?:[^"\\]|\\.)*"|'[^']*'""")
_PART = re.compile(r""""([^"]*)"|'([^']*)'|([\w-]+)""")
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")


def line_of(text: str, where: tuple[str, ...]) -> int:
    """The line on which the key path `where` is set, else its nearest parent's, else 1.

    A dotted key sets its parents too: `where` is found on the first line that sets a part of it.
    """
    best_line, best_depth = 1, 0
    for line, path in _paths(text):
        depth = min(len(path), len(where))
        if depth > best_depth and path[:depth] == where[:depth]:
            best_line, best_depth = line, depth
    return best_line


def malformed(path: Path, text: str, message: str) -> str:
    """The parser's complaint with file and line in front and the line itself behind."""
    found = _AT_LINE.search(message)
    lines = text.split("\n")
    line = int(found.group(1)) if found else max(1, len(text.rstrip("\n").split("\n")))
    what = _AT_LINE.sub("", message).removesuffix("(at end of document)").strip()
    shown = lines[line - 1].strip() if line <= len(lines) else ""
    return f"{path}:{line}: this is not TOML: {what}; the line reads {shown!r}"


def _paths(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line, key path) of every header and key outside multi-line strings."""
    header: tuple[str, ...] = ()
    quote = ""
    # TOML ends lines at a line feed only; str.splitlines knows more ends.
    for number, line in enumerate(text.split("\n"), start=1):
        inside, quote = quote, _open_quote(line, quote)
        if inside:
            continue
        if found := _HEADER.match(line):
            header = _parts(found.group(1))
            yield number, header
        elif found := _KEY.match(line):
            yield number, (*header, *_parts(found.group(1)))


def _open_quote(line: str, quote: str) -> str:
    """The delimiter of the long string that is open at the end of the line, or nothing."""
    place = 0
    while place < len(line):
        if quote:
            end = line.find(quote, place)
            if end < 0:
                return quote
            place, quote = end + 3, ""
        found = _TOKEN.search(line, place)
        if found is None:
            return ""
        place = found.end()
        if found.group() in {'"""', "'''"}:
            quote = found.group()
    return quote


def _parts(text: str) -> tuple[str, ...]:
    return tuple(double or single or bare for double, single, bare in _PART.findall(text))


def template(
    op: str,
    *,
    contract: str = "mhc-c1",
    tier: Tier = "canonical",
    device: str = "cpu",
    dtype: str = "bfloat16",
    axes: tuple[tuple[str, int], ...] = (),
) -> str:
    """A commented candidate file for `op`; it loads once `impl` names a function."""
    shape = ", ".join(f"{name} = {extent}" for name, extent in axes) or "tokens = 16"
    return f"""\
# A candidate for bitgate: what is tried, against what, on which data, and how it is judged.
# `bitgate run THIS_FILE --plan` says what would happen; `bitgate run THIS_FILE` does it.

# "promoted" stands for the current baseline of each record lane. Remove the line, or use a table
# [baseline] with the keys of [candidate], to open a lane or to compare with something else.
baseline = "promoted"

[candidate]
name = "my-{op}"
op = "{op}"                   # `bitgate kernels list` shows the operators
contract = "{contract}"       # the order of additions that makes bits comparable
tier = {f'"{tier}"':<23}# canonical, native or foreign
device = "{device}"
impl = "my_kernel:run"        # module:function; called with keyword tensors and constants
root = "."                    # the module's directory, relative to this file
# config = {{ eps = 1e-6 }}     # constants of the operator that differ from their defaults
# tiles = "E=...json"         # tuned tiles in vLLM's form, for implementations that take them
# env = {{ OMP_NUM_THREADS = "2" }}

[workloads]
# bundle = "captured"         # a directory written by `bitgate capture`
# suite = "default"           # a named list of the operator's workloads
shapes = [{{ {shape} }}]
# models = ["Qwen3-30B-A3B@ep2"]  # ranks of models (`bitgate kernels shapes`), for moe_experts,
# tokens = [1, 64]                # at these numbers of tokens
dtype = "{dtype}"
# cases = ["random"]          # kinds of data

[gates]
cases = 40                    # changed inputs per workload
# repeats = 2                 # of each input; tells a fixed change from a random one
processes = 5                 # fresh processes that must repeat the bits
# boundaries = 87             # calls per decode token, for the bounds
# timeout_s = 120             # the longest that one call may take
confidence = 0.95             # of the bound on the failure probability
# max_p = 0.01                # refuse to pass on a weaker bound than this

[bench]
regime = "warm"               # or cold: caches are emptied before each sample
margin = 0.01                 # a smaller relative difference counts as none
rounds = 60                   # coin-flipped pairs; stops early once a claim stands
processes = 5                 # fresh processes that the rounds are spread over
alpha = 0.05                  # how often a false FASTER or SLOWER may be claimed
# kill_below_saving_ns = 6000 # reject below this saving per call
# order_seed = 1              # drawn afresh for each run where it is absent
# timeout_s = 300             # the longest that one visit to a process may take

# [serve] is the place for a served model; without it that stage is recorded as not-run.
"""
