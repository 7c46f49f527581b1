"""Canonical JSON: the same bytes for the same value, and nothing unknown accepted."""

import json
from dataclasses import replace
from importlib.resources import files

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from bitgate.records.base import InvariantError
from bitgate.records.codec import (
    SCHEMA,
    FormatError,
    canonical,
    content_id,
    decode,
    json_schema,
)
from bitgate.records.types import Bound, Evidence, Lane, Record, Simulation, Workload

EVIDENCE = Evidence(sha256="a" * 64, size_bytes=3, media="text/plain")


@given(
    op=st.text(min_size=1),
    axes=st.dictionaries(st.text(), st.integers(0, 2**53 - 1), max_size=4),
    case=st.text(),
)
def test_a_value_comes_back_from_canonical_bytes(op, axes, case):
    value = Workload(op=op, axes=tuple(sorted(axes.items())), dtype="bfloat16", case=case)
    data = canonical(value)
    assert decode(Workload, data) == value
    assert rfc8785.dumps(json.loads(data)) == data


def test_text_that_utf8_cannot_hold_is_refused():
    with pytest.raises(InvariantError, match="UTF-8"):
        canonical(Workload(op="\ud800", axes=(), dtype="b"))


def test_a_record_comes_back(make):
    record = make["record"](EVIDENCE, measurement=make["measurement"](), effect="FASTER")
    assert decode(Record, canonical(record)) == record
    assert content_id(record) != content_id(replace(record, reason="another"))


def test_unknown_field_names_place_key_and_known_keys(make):
    plain = json.loads(canonical(make["record"](EVIDENCE)))
    plain["verdict"]["results"][0]["bounds"][0]["colour"] = "red"
    with pytest.raises(FormatError, match=r"Record\.verdict\.results\[0\]\.bounds\[0\]") as caught:
        decode(Record, json.dumps(plain).encode())
    assert "'colour'" in str(caught.value)
    assert "confidence, failures, trials, unit, upper" in str(caught.value)


def test_unknown_field_inside_an_optional_value_is_refused(make):
    plain = json.loads(canonical(make["record"](EVIDENCE, baseline=make["candidate"]())))
    plain["baseline"]["colour"] = "red"
    with pytest.raises(FormatError, match=r"Record\.baseline: unknown key 'colour'.*contract"):
        decode(Record, json.dumps(plain).encode())


def test_what_constructors_forbid_comes_out_readable():
    data = b'{"unit":"call","trials":0,"failures":0,"confidence":"0.95","upper":"1"}'
    with pytest.raises(FormatError, match="Bound: Bound: zero trials prove nothing"):
        decode(Bound, data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"op":"a","axes":[["x",1.0]],"dtype":"b"}', r"axes\[0\]\[1\].*integer"),
        ('{"op":"a","axes":[["x","1"]],"dtype":"b"}', r"axes\[0\]\[1\].*integer"),
        ('{"op":1,"axes":[],"dtype":"b"}', r"Workload\.op.*string"),
        ('{"axes":[],"dtype":"b"}', r"Workload\.op: the key is missing"),
        ('{"op":"a",', "not valid JSON"),
        ('{"op":"a","axes":[["x",NaN]],"dtype":"b"}', "Workload"),
        ("[]", "object"),
    ],
)
def test_wrong_json_is_refused(text, message):
    with pytest.raises(FormatError, match=message):
        decode(Workload, text.encode())


@pytest.mark.parametrize("extent", [1.5, 2.0, 2**53])
def test_numbers_without_an_exact_form_are_refused(extent):
    with pytest.raises(InvariantError, match=r"Workload\.axes\[0\]\[1\]"):
        canonical(Workload(op="a", axes=(("x", extent),), dtype="b"))


@pytest.mark.parametrize(
    "number",
    ["9007199254740992", "-9007199254740992", " 9007199254740992", "1" * 17, "9" * 400],
)
@pytest.mark.parametrize("axes", ['[["x",{}]]', '[["a",1],["x",{}]]', '[["x",\n{}\n]]'])
def test_an_integer_that_readers_round_is_refused_wherever_it_stands(axes, number):
    text = '{"op":"a","axes":%s,"dtype":"b"}'
    assert decode(Workload, (text % axes.format(2**53 - 1)).encode()).axis("x") == 2**53 - 1
    with pytest.raises(FormatError, match=r"beyond 2\*\*53|expected >= 0|integer"):
        decode(Workload, (text % axes.format(number)).encode())


def outcome(data, *, repeats):
    try:
        return decode(Record, data, repeats=repeats)
    except FormatError as error:
        return str(error)


def test_reading_by_parts_is_reading(make):
    record = make["record"](EVIDENCE, measurement=make["measurement"](), effect="FASTER")
    data = canonical(record)
    assert outcome(data, repeats=True) == outcome(data, repeats=True) == record
    # What is shared between rows was read once.
    one, two = (outcome(data, repeats=True) for _ in range(2))
    assert one.verdict is two.verdict
    assert one is not two

    @settings(max_examples=400)
    @given(
        position=st.integers(0, len(data) - 1),
        new=st.sampled_from([b"", b"0", b"9" * 17, b'"', b",", b" ", b"x", b'"lane":"l",']),
        cut=st.integers(0, 3),
    )
    def check(position: int, new: bytes, cut: int) -> None:
        edited = data[:position] + new + data[position + cut :]
        assert outcome(edited, repeats=True) == outcome(edited, repeats=False)

    check()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"outcome":"passed",', b""),
        (b'"outcome":"passed",', b'"outcome":"passed","outcome":"passed",'),
        (b'"supersedes":null,', b""),
        (b'"lane":"cpu', b'"colour":"red","lane":"cpu'),
        (b'"threads":2', b'"threads":2.0'),
        (b'"threads":2', b'"threads":"2"'),
        (b'"threads":2', b'"threads":90071992547409920'),
        (b'"measurement":null', b'"measurement":{}'),
        (b'"kind":"exact"', b'"kind":"inconclusive"'),
        (b"{", b"["),
    ],
)
def test_by_parts_the_same_rows_are_refused_for_the_same_reason(make, old, new):
    data = canonical(make["record"](EVIDENCE))
    assert data.count(old) >= 1
    edited = data.replace(old, new, 1)
    assert outcome(edited, repeats=True) == outcome(edited, repeats=False)


def test_another_kind_of_object_is_refused():
    with pytest.raises(InvariantError, match="bytes"):
        canonical(Workload(op="a", axes=(), dtype=b"bf16"))


def test_older_formats_are_lifted_step_by_step(make):
    lane = make["lane"](target="0.5")
    old = json.loads(canonical(lane))
    old["goal"] = old.pop("target")

    def rename(plain):
        plain["aim"] = plain.pop("goal")
        return plain

    def rename_again(plain):
        plain["target"] = plain.pop("aim")
        return plain

    upgrades = ({"lane": rename}, {"record": rename_again}, {"lane": rename_again})
    data = json.dumps(old).encode()
    assert decode(Lane, data, schema=1, upgrades=upgrades) == lane
    with pytest.raises(FormatError, match="goal"):
        decode(Lane, data, schema=4, upgrades=upgrades)


@pytest.mark.parametrize("schema", [0, SCHEMA + 1, 99])
def test_an_unknown_format_is_refused(schema, make):
    with pytest.raises(FormatError, match=f"format {schema}; this version reads 1 to {SCHEMA}"):
        decode(Lane, canonical(make["lane"]()), schema=schema)


def test_a_row_of_format_1_is_read_and_a_simulation_cannot_be_one(make):
    lane, simulation = make["lane"](), make["simulation"](EVIDENCE, ("0" * 64,))
    assert decode(Lane, canonical(lane), schema=1) == lane
    assert decode(Simulation, canonical(simulation)) == simulation
    with pytest.raises(FormatError, match="format 1 has no such row"):
        decode(Simulation, canonical(simulation), schema=1)


def test_the_published_schema_is_current():
    name = f"schema/bitgate-{SCHEMA}.schema.json"
    published = files("bitgate.records").joinpath(name).read_text()
    assert json.loads(published) == json.loads(json.dumps(json_schema())), (
        f"run: bitgate records schema > records/{name}"
    )


def test_the_schema_refuses_unknown_keys():
    for name, definition in json_schema()["$defs"].items():
        assert definition["additionalProperties"] is False, name
