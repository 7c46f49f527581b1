import json
import textwrap

import pytest
from typer.testing import CliRunner

from bitgate.parity import gates
from bitgate.parity.bounds import needed
from bitgate.parity.gates.resolve import resolve
from bitgate.parity.gates_cli import app
from bitgate.records.candidate_file import load_candidate_file
from bitgate.records.errors import UsageError

RIGHT = """
    from bitgate.kernels.moe.experts import experts_sorted as run
"""


@pytest.fixture
def invoke():
    def call(*arguments, fails=None):
        result = CliRunner().invoke(app, [str(item) for item in arguments], catch_exceptions=True)
        if fails is not None:
            assert isinstance(result.exception, fails)
            raise result.exception
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return call


@pytest.fixture
def candidate_file(tmp_path):
    def write(body=RIGHT, extra="", contract="moe-torch/1"):
        (tmp_path / "mine.py").write_text(textwrap.dedent(body))
        path = tmp_path / "candidate.toml"
        path.write_text(
            textwrap.dedent(f"""
            [candidate]
            name = "mine"
            op = "moe_experts"
            contract = "{contract}"
            tier = "native"
            device = "cpu"
            impl = "mine:run"

            [workloads]
            shapes = [{{experts = 4, hidden = 32, intermediate = 16, tokens = 2, top_k = 2}}]
            dtype = "bfloat16"
            {extra}
            """)
        )
        return path

    return write


def test_list_shows_every_gate_with_its_state(invoke):
    listed = json.loads(invoke("list", "--json").stdout)
    assert [entry["gate"] for entry in listed] == list(gates.ORDER)
    states = {entry["gate"]: entry["state"] for entry in listed}
    assert states["G4"] == "runs"
    assert states["G5"].startswith("not run: ")
    assert "captured-tensor replay" in invoke("list").stdout


def test_size_says_what_a_bound_costs(invoke):
    facts = json.loads(invoke("size", "--max-p", "0.01", "--json").stdout)
    assert facts["executions"] == needed("0.01") == 299
    assert "299 clean executions" in invoke("size", "--max-p", "0.01").stdout
    assert "459 clean" in invoke("size", "--max-p", "0.01", "--confidence", "0.99").stdout


def test_size_refuses_what_is_no_probability(invoke):
    with pytest.raises(UsageError, match="between 0 and 1"):
        invoke("size", "--max-p", "2", fails=UsageError)


def test_a_failed_gate_ends_with_one_and_leaves_its_evidence(invoke, candidate_file, tmp_path):
    path = candidate_file("raise ImportError('not built')\ndef run(**tensors): ...")
    result = invoke("run", path, "--evidence", tmp_path / "kept", "--json")
    assert result.exit_code == 1
    verdict = json.loads(result.stdout)
    assert verdict["kind"] == "inconclusive"
    first = next(one for one in verdict["results"] if one["outcome"] != "pass")
    assert (first["gate"], first["outcome"]) == ("G0", "fail")
    assert "not built" in first["reason"]
    sha256 = first["evidence"]["sha256"]
    assert (tmp_path / "kept" / sha256[:2] / sha256).is_file()


def test_what_was_compared_and_how_to_repeat_it_is_shown(
    invoke, candidate_file, bench, write_bundle, monkeypatch, tmp_path
):
    asked = {}
    verdict = bench.run("def run(*, x, w, shift): return x + 1, x[:, 0]")

    def planted(subject, **rest):
        asked.update(rest, subject=subject)
        return verdict

    monkeypatch.setattr(gates, "run", planted)
    path = candidate_file(extra='[gates]\ncases = 5\nmax_p = "0.2"')
    result = invoke("run", path, "--evidence", tmp_path / "kept")
    assert result.exit_code == 1
    assert asked["subject"].candidate.name == "mine"
    assert asked["subject"].reference.name == "experts_loop"
    assert (asked["budget"].cases, asked["budget"].max_p) == (5, "0.2")
    assert [one.axis("tokens") for one in asked["workloads"]] == [2]
    for text in ("deterministic-mismatch", "first failure: G2", "expected 0x", "again: bitgate"):
        assert text in result.stdout


@pytest.mark.parametrize(("passing", "code"), [(True, 0), (False, 3)])
def test_the_exit_code_tells_exact_from_inconclusive(
    invoke, candidate_file, bench, write_bundle, monkeypatch, passing, code
):
    bench.bundle = write_bundle() if passing else None
    verdict = bench.run()
    monkeypatch.setattr(gates, "run", lambda *_, **__: verdict)
    assert invoke("run", candidate_file()).exit_code == code


def test_a_constant_that_is_an_axis_must_have_its_extent(invoke, candidate_file):
    path = candidate_file()
    text = path.read_text().replace("moe_experts", "moe_route").replace("moe-torch/1", "moe-bf16/1")
    text = text.replace("hidden = 32, intermediate = 16, ", "").replace("bfloat16", "float32")
    path.write_text(text + '[candidate.config]\ntop_k = 3\nscore = "sigmoid"\n')
    with pytest.raises(UsageError, match=r"the constant top_k to be the axis's 2, got 3"):
        invoke("run", path, fails=UsageError)
    path.write_text(path.read_text().replace("top_k = 3", "top_k = 2"))
    task = resolve(load_candidate_file(path))
    assert (task.subject.constants["top_k"], task.subject.constants["score"]) == (2, "sigmoid")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contract": "moe/9"}, "unknown contract 'moe/9'"),
        ({"contract": "mhc-c1"}, "no reference for the contract 'mhc-c1'"),
        ({"extra": 'suite = "big"'}, "moe_experts has no 'big'; it has: default"),
        ({"extra": "[candidate.config]\nblock = 64"}, "no constant 'block'"),
    ],
)
def test_names_that_do_not_exist_are_usage_errors(invoke, candidate_file, options, message):
    path = candidate_file(**{key: textwrap.dedent(value) for key, value in options.items()})
    with pytest.raises(UsageError, match=message):
        invoke("run", path, fails=UsageError)
