"""The commands: what they print, refuse and return. Nothing is timed here."""

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from bitgate.bench import cli
from bitgate.bench.comparable import comparability
from bitgate.bench.resolve import resolve
from bitgate.kernels import catalogue
from bitgate.records.candidate_file import load_candidate_file
from bitgate.records.clock import utc_now
from bitgate.records.errors import UsageError
from bitgate.records.ledger import Ledger
from bitgate.records.types import (
    Bound,
    Environment,
    Evidence,
    GateResult,
    Harness,
    Measurement,
    Plan,
    Record,
    Verdict,
)

HEX = "a" * 64


@pytest.fixture
def app():
    made = typer.Typer()
    made.command("run")(cli.run_command)
    made.command("new")(cli.new_candidate_command)
    made.add_typer(cli.app, name="bench")
    return made


@pytest.fixture
def call(app):
    def call(*arguments, code=0):
        done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=True)
        if code is None:
            assert isinstance(done.exception, UsageError), done.output
            return str(done.exception)
        assert done.exit_code == code, (done.output, done.exception)
        return done.stdout

    return call


def test_a_new_candidate_file_is_for_the_operator_and_loads(call, tmp_path):
    out = tmp_path / "mine.toml"
    assert "set impl" in call("new", "--op", "mhc_pre", "--out", out)
    file = load_candidate_file(out)
    kernel = catalogue.kernel("mhc_pre")
    reference = kernel.references[file.candidate.contract]
    assert file.candidate.tier == catalogue.implementation(reference).tier == "canonical"
    assert file.workloads.shapes == (kernel.suites["default"][0].axes,)
    call("new", "--op", "moe_experts", "--out", tmp_path / "experts.toml")
    experts = load_candidate_file(tmp_path / "experts.toml").candidate
    assert (experts.contract, experts.tier) == ("moe-torch/1", "native")
    assert "exists" in call("new", "--op", "mhc_pre", "--out", out, code=None)
    assert "mhc_pre" in call("new", "--op", "nothing", "--out", tmp_path / "x", code=None)


def test_a_constant_that_is_an_axis_must_have_its_extent(call, tmp_path, ledger):
    path = tmp_path / "route.toml"
    call("new", "--op", "moe_route", "--out", path)
    (tmp_path / "my_kernel.py").write_text("def run(): ...")
    path.write_text(path.read_text() + "\n[candidate.config]\ntop_k = 3\n")
    with pytest.raises(UsageError, match=r"the constant top_k to be the axis's 4, got 3"):
        resolve(load_candidate_file(path), ledger)


def test_a_plan_says_what_is_missing_and_runs_nothing(call, write, ledger, settings):
    bare = settings.replace('bundle = "captured"', "")
    path = write("same", baseline="promoted", settings=bare)
    facts = json.loads(call("run", path, "--ledger", ledger.root, "--plan", "--json", code=2))
    assert [stage["name"] for stage in facts["stages"]] == [
        "boundary",
        "micro",
        "served",
        "promote or reject",
    ]
    assert len(facts["missing"]) == 2
    assert "not open" in facts["missing"][0]
    assert "no bundle" in facts["missing"][1]
    assert facts["memory_bytes"] > 0
    assert not ledger.root.exists()


def test_a_plan_with_nothing_missing_says_so(call, write, ledger):
    text = call("run", write("same"), "--ledger", ledger.root, "--plan", "--open-lane")
    assert "nothing is missing" in text
    assert "opens the lanes" in text
    assert "one record in lane cpu/moe_experts/" in text


def test_a_plan_names_a_module_and_a_device_that_are_not_there(call, write, ledger, folder):
    path = write("same", baseline="same")
    path.write_text(path.read_text().replace('"cpu"', '"xpu"'))
    (folder / "same.py").unlink()
    facts = json.loads(call("run", path, "--ledger", ledger.root, "--plan", "--json", code=2))
    assert any("xpu" in item for item in facts["missing"])
    assert any("same" in item for item in facts["missing"])


@pytest.fixture
def record():
    workload = catalogue.kernel("moe_experts").suites["default"][0]
    evidence = Evidence(sha256=HEX, size_bytes=1, media="text/plain")
    gate = GateResult(
        gate="G4", version=1, outcome="pass", reason="r", compared=1, expected=1, evidence=evidence
    )
    bound = Bound(unit="call", trials=60, failures=0, confidence="0.95", upper="0.05")
    from bitgate.records.types import Candidate

    return Record(
        created_at=utc_now(),
        lane="l",
        candidate=Candidate(
            name="c",
            op=workload.op,
            contract="moe-torch/1",
            tier="native",
            device="cpu",
            implementation="m:f",
            sources=(("m.py", HEX),),
            config=(),
            switches=(),
            digest=HEX,
        ),
        baseline=None,
        workload=workload,
        bundle_sha256=None,
        environment=Environment(
            device="cpu",
            device_name="d",
            device_count=1,
            node="n",
            os="o",
            python="3",
            threads=1,
            packages=(("torch", "2"),),
            libraries=(),
            switches=(),
            probes=(),
        ),
        harness=Harness(version="0", commit=None, dirty=False, source_sha256=HEX),
        verdict=Verdict(
            kind="exact", required=("G4",), results=(gate,), bound=bound, coverage="some"
        ),
        outcome="passed",
        reason="r",
        measurement=Measurement(
            plan=Plan(
                regime="warm",
                rounds=3,
                processes=1,
                calls_per_sample=1,
                margin="0.01",
                alpha="0.05",
                order_seed=1,
            ),
            timer="t",
            resolution_ns=1,
            baseline_ns=(10, 11, 12),
            candidate_ns=(20, 22, 24),
            order="BCB",
            process=(0, 0, 0),
            verified_outputs=6,
        ),
        effect="SLOWER",
    )


def test_comparable_records_are_put_side_by_side(call, record, tmp_path):
    writer = Ledger(tmp_path / "ledger").writer()
    faster = replace(record, measurement=replace(record.measurement, candidate_ns=(10, 11, 12)))
    ids = [entry.id for entry in writer.append_many([record, faster])]
    facts = json.loads(call("bench", "compare", *ids, "--ledger", tmp_path / "ledger", "--json"))
    assert facts == {"first_ns": 22, "second_ns": 11, "ratio": "2.0000", "paired": False}
    assert "no effect" in call("bench", "compare", *ids, "--ledger", tmp_path / "ledger")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"node": "other"}, "node (n -> other)"),
        ({"threads": 2}, "threads (1 -> 2)"),
        ({"packages": (("torch", "3"),)}, "package:torch (2 -> 3)"),
        ({"switches": (("OMP_X", "1"),)}, "switch:OMP_X (absent -> 1)"),
    ],
)
def test_records_that_differ_elsewhere_are_not_compared(call, record, tmp_path, change, named):
    writer = Ledger(tmp_path / "ledger").writer()
    other = replace(record, environment=replace(record.environment, **change))
    ids = [entry.id for entry in writer.append_many([record, other])]
    message = call("bench", "compare", *ids, "--ledger", tmp_path / "ledger", code=None)
    assert "cannot be compared" in message
    assert named in message


def test_the_regime_is_part_of_the_key(record):
    plan = replace(record.measurement.plan, regime="cold")
    cold = replace(record, measurement=replace(record.measurement, plan=plan))
    assert dict(comparability(record)) != dict(comparability(cold))
    with pytest.raises(UsageError, match="holds no time"):
        comparability(replace(record, measurement=None, effect=None))
