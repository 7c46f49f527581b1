"""The candidate file: what it reads, and the place that each error names."""

from pathlib import Path

import pytest

from bitgate.records.candidate_file import PROMOTED, CandidateFile, load_candidate_file
from bitgate.records.candidate_text import template
from bitgate.records.errors import UsageError

SIDE = """\
[candidate]
name = "sorted"
op = "moe_experts"
contract = "moe-torch/1"
tier = "native"
device = "cpu"
impl = "mine:run"
"""


def read(folder: Path, text: str) -> CandidateFile:
    path = folder / "candidate.toml"
    path.write_text(text, encoding="utf-8")
    return load_candidate_file(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(folder, text)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_smallest_file_opens_a_lane_with_defaults(tmp_path):
    file = read(tmp_path, SIDE)
    assert file.baseline is None
    assert file.candidate.root == tmp_path.resolve()
    assert (file.bench.rounds, file.bench.processes, file.bench.margin) == (60, 5, "0.01")
    assert file.gates.cases == 40


def test_every_section_is_read(tmp_path):
    file = read(
        tmp_path,
        'baseline = "promoted"\n' + SIDE + 'root = "src"\nconfig = {eps = 1e-6}\n'
        '[candidate.env]\nOMP_NUM_THREADS = "2"\n'
        '[workloads]\nbundle = "captured"\nshapes = [{tokens = 4, hidden = 8}]\ndtype = "float32"\n'
        '[gates]\nconfidence = 0.99\nmax_p = "0.05"\n'
        '[bench]\nregime = "cold"\nmargin = 0.005\nkill_below_saving_ns = 6000\norder_seed = 7\n',
    )
    assert file.baseline == PROMOTED
    assert file.candidate.root == tmp_path.resolve() / "src"
    assert file.candidate.config == (("eps", "0.000001"),) or file.candidate.config == (
        ("eps", "1E-6"),
    )
    assert file.candidate.env == (("OMP_NUM_THREADS", "2"),)
    assert file.workloads.bundle == tmp_path.resolve() / "captured"
    assert file.workloads.shapes == ((("hidden", 8), ("tokens", 4)),)
    assert (file.gates.confidence, file.gates.max_p) == ("0.99", "0.05")
    assert (file.bench.margin, file.bench.kill_below_saving_ns) == ("0.005", 6000)


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        (SIDE + "[bench]\nroundz = 3\n", 9, ("[bench]", "'roundz'", "'rounds'", "margin")),
        (SIDE + "[bench]\n\nrounds = '3'\n", 10, ("rounds", "whole number", "'3'")),
        (SIDE + "[bench]\nrounds = true\n", 9, ("rounds", "at least 1", "True")),
        (SIDE + "[bench]\nmargin = 1.5\n", 9, ("margin", "0.01", "1.5")),
        (SIDE + "[bench]\nregime = 'hot'\n", 9, ("regime", "'warm'", "'hot'")),
        (SIDE + "[benches]\nrounds = 3\n", 8, ("'benches'", "'bench'")),
        (SIDE + "[gates]\nmax_p = 0\n", 9, ("max_p", "above 0")),
        (SIDE.replace("mine:run", "mine.run"), 7, ("impl", "module:function")),
        (SIDE.replace('"native"', '"fast"'), 5, ("tier", "'canonical'")),
        (SIDE + "env = {A = {B = 1}}\n", 8, ("env", "table of strings")),
        (SIDE + "[candidate.config]\nx = [1]\n", 8, ("config", "table of strings")),
        (SIDE.replace('op = "moe_experts"\n', ""), 1, ("'op'", "missing")),
        (SIDE + 'command = ["run"]\n', 8, ("command", "module:function")),
        (SIDE + 'outputs = "FILE"\n', 8, ("outputs", "this version")),
        (SIDE + '[serve]\nurl = "x"\n', 8, ("served", "not available in this version")),
        (SIDE + "[workloads]\nshapes = [{tokens = 4}]\n", 9, ("dtype",)),
        (SIDE + "[workloads]\nshapes = [{tokens = -4}]\ndtype = 'f'\n", 9, ("shapes", "extents")),
        (SIDE + "[workloads]\nshapes = []\ndtype = 'f'\n", 9, ("shapes", "non-empty")),
        (SIDE + "[workloads]\ncases = []\n", 9, ("cases", "non-empty")),
        ('baseline = "best"\n' + SIDE, 1, ("'promoted'", "'best'")),
        ("workloads = 3\n" + SIDE, 1, ("[workloads]", "3")),
        ("[bench]\nrounds = 3\n", 1, ("[candidate]", "missing")),
        (SIDE + '[bench]\nmargin = """\n[gates]\nx = 1\n"""\n', 9, ("margin",)),
        (SIDE + "[bench]\n'rounds' = 0\n", 9, ("rounds",)),
    ],
)
def test_an_error_names_file_line_and_key(tmp_path, text, line, parts):
    message = refusal(tmp_path, text)
    assert message.startswith(f"{tmp_path / 'candidate.toml'}:{line}: ")
    for part in parts:
        assert part in message


def test_the_known_keys_are_listed(tmp_path):
    message = refusal(tmp_path, SIDE + "speed = 3\n")
    for key in ("name", "op", "contract", "tier", "device", "impl", "config", "env"):
        assert key in message


@pytest.mark.parametrize(
    ("text", "line"), [(SIDE + "rounds = = 3\n", 8), (SIDE + "[bench\n", 8), ("x = '''\n", 1)]
)
def test_malformed_toml_names_its_line(tmp_path, text, line):
    message = refusal(tmp_path, text)
    assert message.startswith(f"{tmp_path / 'candidate.toml'}:{line}: this is not TOML")


def test_a_claim_never_spans_two_contracts(tmp_path):
    baseline = SIDE.replace("[candidate]", "[baseline]").replace("moe-torch/1", "moe-bf16/1")
    message = refusal(tmp_path, SIDE + baseline)
    assert ":11: " in message
    assert "moe-torch/1" in message
    assert "moe-bf16/1" in message


def test_a_missing_file_and_a_binary_file(tmp_path):
    with pytest.raises(UsageError, match="bitgate new candidate"):
        load_candidate_file(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        load_candidate_file(tmp_path / "binary.toml")


def test_the_template_loads_back(tmp_path):
    text = template("moe_experts", contract="moe-torch/1", axes=(("tokens", 16),))
    file = read(tmp_path, text)
    assert file.candidate.op == "moe_experts"
    assert file.baseline == PROMOTED
    assert file.workloads.shapes == ((("tokens", 16),),)


def test_the_templates_commented_keys_are_known(tmp_path):
    lines = [
        line.removeprefix("# ") if line.startswith("# ") and " = " in line else line
        for line in template("moe_experts").splitlines()
        if not line.startswith("# suite")
    ]
    text = "\n".join(line for line in lines if not line.startswith("# "))
    file = read(tmp_path, text)
    assert file.gates.max_p == "0.01"
    assert file.bench.order_seed == 1
    assert file.candidate.env == (("OMP_NUM_THREADS", "2"),)


# --- hostile and careless files ------------------------------------------------------------------


def test_a_byte_order_mark_and_dos_lines_say_nothing(tmp_path):
    path = tmp_path / "candidate.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SIDE.replace("\n", "\r\n").encode())
    assert load_candidate_file(path).candidate.name == "sorted"


def test_a_byte_that_is_not_text_is_named_with_its_line(tmp_path):
    path = tmp_path / "candidate.toml"
    path.write_bytes(SIDE.encode().replace(b"moe-torch", b"moe\xff"))
    with pytest.raises(UsageError, match=rf"{path}:4: a candidate file is UTF-8"):
        load_candidate_file(path)


@pytest.mark.parametrize(
    "value",
    ["[" * 5000 + "]" * 5000, "[" * 9000, "{a=" * 3000 + "1" + "}" * 3000, "9" * 5000],
    ids=["arrays", "open arrays", "tables", "digits"],
)
def test_what_the_parser_cannot_hold_is_a_usage_error(tmp_path, value):
    assert "candidate.toml: " in refusal(tmp_path, SIDE + f"[bench]\nrounds = {value}\n")


def test_a_path_that_is_none_is_a_usage_error(tmp_path):
    for path in (Path("a\0b"), tmp_path, tmp_path / ("a" * 5000)):
        with pytest.raises(UsageError):
            load_candidate_file(path)


@pytest.mark.parametrize(
    ("lines", "place", "says"),
    [
        ("[bench]\nrounds = 9007199254740992", 9, "below 2**53"),
        ("[gates]\ncases = 99999999999999999999", 9, "below 2**53"),
        ('[bench]\nmargin = "1e-999999999"', 9, "a number from 0"),
        ('[bench]\nmargin = " 0.05 "', 9, "a number from 0"),
        ('[bench]\nalpha = "0_1e-1"', 9, "a number from 0"),
        ("[bench]\nmargin = -0.0", 9, "a number from 0"),
        ('root = "a\\u0000b"', 8, "without control characters"),
        ('root = "   "', 8, "non-empty"),
        ('env = {"A=B" = "x"}', 8, "names without '='"),
        ('env = {A = "\\u0000"}', 8, "names without '='"),
        ("config = {eps = nan}", 8, "finite numbers"),
        ("config = {eps = 2026-01-01}", 8, "finite numbers"),
        ('[workloads]\ndtype = "f"\nshapes = [{n = 4}, {n = 4}]', 10, "each shape once"),
        ('[workloads]\ncases = ["a", "a"]', 9, "each string once"),
        ('[workloads]\ndtype = "f"\nshapes = [{n = 99999999999999999999}]', 10, "extents"),
        ("nested.x = 1", 8, "unknown key 'nested'"),
        ("[gates]\ncases.x = 1", 9, "at least 2"),
        ("[ gates ]# c\ncases = 1", 9, "at least 2"),
        ('["ga]tes"]', 8, "unknown section or key 'ga]tes'"),
        ('env = {A = \'"""\'}\n[gates]\ncases = 1', 10, "at least 2"),
        ("# '''\n[gates]\ncases = 1", 10, "at least 2"),
        ("env = {A = '''\n[gates]\ncases = 7'''}\n[gates]\ncases = 1", 12, "at least 2"),
        ('env = {A = "\u2028\\u0085"}\n[gates]\ncases = 1', 10, "at least 2"),
        ('env = {A = "\u2028"}\n[gates]\ncases =', 10, "the line reads 'cases ='"),
    ],
)
def test_the_line_and_the_cure_are_right(tmp_path, lines, place, says):
    message = refusal(tmp_path, SIDE + lines + "\n")
    assert message.startswith(f"{tmp_path / 'candidate.toml'}:{place}: ")
    assert says in message


def test_the_largest_numbers_are_taken(tmp_path):
    file = read(tmp_path, SIDE + 'env = {A = "x=y z"}\n[bench]\nrounds = 9007199254740991\n')
    assert file.bench.rounds == 2**53 - 1
    assert file.candidate.env == (("A", "x=y z"),)


@pytest.mark.parametrize("line", ['cases = ["random"]', 'dtype = "bfloat16"'])
def test_what_belongs_to_shapes_is_not_ignored_without_them(tmp_path, line):
    text = refusal(tmp_path, SIDE + f'[workloads]\nsuite = "demo"\n{line}\n')
    assert "candidate.toml:10:" in text
    assert "belongs to shapes" in text


def test_ranks_of_models_are_shapes(tmp_path):
    ranks = '[workloads]\nmodels = ["Qwen3-30B-A3B@ep2", "gpt-oss-20b"]\ntokens = [1, 64]\n'
    file = read(tmp_path, SIDE + ranks + 'dtype = "bfloat16"\n')
    found = [dict(shape) for shape in file.workloads.shapes]
    assert [(one["experts"], one["tokens"]) for one in found] == [
        (64, 1),
        (64, 64),
        (32, 1),
        (32, 64),
    ]
    assert {one["top_k"] for one in found} == {8, 4}


@pytest.mark.parametrize(
    ("more", "line", "says"),
    [
        ('models = ["Qwen3-30B-A3B"]', 9, "models and tokens belong together"),
        ("tokens = [1]", 9, "models and tokens belong together"),
        ('models = ["Qwen9"]\ntokens = [1]', 9, "unknown model 'Qwen9'"),
        ('models = ["gpt-oss-20b@tp7"]\ntokens = [1]', 9, "cannot be divided"),
        ('models = ["gpt-oss-20b"]\ntokens = [0]', 10, "whole numbers of at least 1"),
        ('models = ["gpt-oss-20b"]\ntokens = [1, 1]', 10, "each number once"),
    ],
)
def test_models_that_are_none_are_refused(tmp_path, more, line, says):
    text = refusal(tmp_path, SIDE + f'[workloads]\n{more}\ndtype = "bfloat16"\n')
    assert f"candidate.toml:{line}: " in text
    assert says in text


def test_tiles_lie_beside_the_file(tmp_path):
    assert read(tmp_path, SIDE + 'tiles = "t/E=1.json"\n').candidate.tiles == (
        tmp_path.resolve() / "t" / "E=1.json"
    )
    assert read(tmp_path, SIDE).candidate.tiles is None
