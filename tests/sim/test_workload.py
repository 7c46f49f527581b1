from itertools import pairwise
from pathlib import Path

import pytest

from bitgate.records.errors import UsageError
from bitgate.sim.workload import Request, read_azure

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE = Path(__file__).parents[3] / "shared" / "data" / "traces" / "azure_2023_conv.csv"


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_times_are_exact_to_the_seventh_decimal(tmp_path):
    text = HEADER + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951691,396,109\n"
    assert list(read_azure(write(tmp_path, text))) == [
        Request(id=0, arrival_ns=0, prompt_tokens=374, output_tokens=44),
        Request(id=1, arrival_ns=4_314_579_100, prompt_tokens=396, output_tokens=109),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("TIMESTAMP,ContextTokens\n", "GeneratedTokens"),
        (HEADER, "no request"),
        (HEADER + "yesterday,1,1\n", "line 2"),
        (HEADER + "2023-11-16 18:15:46,0,1\n", "ContextTokens"),
        (HEADER + "2023-11-16 18:15:46,1,-4\n", "GeneratedTokens"),
        (HEADER + "2023-11-16 18:15:46,1\n", "GeneratedTokens"),
        (HEADER + "2023-11-16 18:15:46,1," + "9" * 5000 + "\n", "GeneratedTokens"),
        (HEADER + "2023-11-16 18:15:46,1," + "9" * 200_000 + "\n", "expected a CSV as text"),
        (HEADER + "2023-11-16 18:15:47,1,1\n2023-11-16 18:15:46,1,1\n", "line 3"),
    ],
)
def test_a_bad_trace_is_refused_by_line(tmp_path, text, told):
    with pytest.raises(UsageError, match=told):
        list(read_azure(write(tmp_path, text)))


def test_a_trace_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(HEADER.encode() + b"\xff\xfe")
    with pytest.raises(UsageError, match="expected a CSV as text"):
        list(read_azure(path))


def test_a_missing_trace_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such trace"):
        list(read_azure(tmp_path / "absent.csv"))


@pytest.mark.needs_data
@pytest.mark.skipif(not AZURE.exists(), reason="the Azure trace is not beside this checkout")
def test_the_published_conversation_trace_is_read_whole():
    requests = list(read_azure(AZURE))
    assert len(requests) == 19_366
    assert all(a.arrival_ns <= b.arrival_ns for a, b in pairwise(requests))
