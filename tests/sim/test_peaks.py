"""Declared peaks: every number with its source, or the file is refused."""

from pathlib import Path

import pytest

from bitgate.records.errors import UsageError
from bitgate.sim.peaks import load_peaks

TEXT = """
device = "cuda"
name = "H200 SXM"
bytes_per_second = 4_800_000_000_000
bytes_source = "data sheet"
flops_source = "data sheet, dense"
launch_ns = 4_000
launch_source = "guessed"
[flops_per_second]
bfloat16 = 989_000_000_000_000
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "peaks.toml"
    path.write_text(text)
    return path


def test_a_file_of_peaks(tmp_path):
    found = load_peaks(written(tmp_path, TEXT))
    assert (found.bytes_per_second, found.launch_ns) == (4_800_000_000_000, 4_000)
    assert found.flops("bfloat16") == 989_000_000_000_000


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"data sheet"', '" "', "bytes_source is empty"),
        ('launch_source = "guessed"', "", "launch_source: the key is missing"),
        ("4_000", "-1", "expected launch_ns of 0 or more"),
        ("4_000", "4e3", "launch_ns"),
        ("989_000_000_000_000", "0", "rates of at least 1"),
        ("device =", "devise =", "device: the key is missing"),
        ("name =", "watts = 1\nname =", "unknown key .watts."),
        ("[flops_per_second]", "flops_per_second = 5\n[other]", "flops_per_second"),
        ("device =", "device", "no TOML|Expected"),
    ],
)
def test_a_number_without_its_source_is_refused_with_an_example(tmp_path, old, new, message):
    assert old in TEXT
    with pytest.raises(UsageError, match=message) as refused:
        load_peaks(written(tmp_path, TEXT.replace(old, new, 1)))
    assert "peaks.toml" in str(refused.value)
    assert "such a file begins like this" in str(refused.value)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a = " + b"[" * 20_000, b"a = " + b"9" * 5000])
def test_what_is_no_toml_is_refused(tmp_path, data):
    path = tmp_path / "peaks.toml"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="such a file begins like this"):
        load_peaks(path)


def test_a_missing_file_is_said_so(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        load_peaks(tmp_path / "none.toml")


def test_the_example_of_the_message_is_a_valid_file(tmp_path):
    with pytest.raises(UsageError) as refused:
        load_peaks(tmp_path / "none.toml")
    example = str(refused.value).partition("like this:\n")[2]
    lines = [line.strip() for line in example.splitlines()]
    assert load_peaks(written(tmp_path, "\n".join(lines))).device == "cuda"
