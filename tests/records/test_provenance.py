"""What identifies a node, an implementation and the harness; and what must not."""

import hashlib
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import bitgate
from bitgate.records import identity, provenance
from bitgate.records.closure import defined_names, source_closure
from bitgate.records.errors import UsageError
from bitgate.records.identity import candidate_digest
from bitgate.records.libraries import mapped_libraries


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


TREE = {
    "pack/__init__.py": "from .base import one\n",
    "pack/base.py": "one = 1\n",
    "pack/main.py": "import json\nfrom . import helper\ndef f():\n from pack.deep.leaf import g\n",
    "pack/helper.py": "import other\n",
    "pack/deep/__init__.py": "",
    "pack/deep/leaf.py": "from ..shared import *\n",
    "pack/shared.py": "",
    "pack/unused.py": "",
    "other.py": "",
    "stranger.py": "",
}


def test_the_closure_holds_all_that_is_imported_and_no_more(tmp_path):
    write(tmp_path, TREE)
    found = source_closure(tmp_path, "pack.main")
    assert [name for name, _ in found] == sorted(
        set(TREE) - {"pack/unused.py", "stranger.py"},
    )
    leaf = dict(found)["other.py"]
    assert leaf == hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize("changed", sorted(set(TREE) - {"pack/unused.py", "stranger.py"}))
def test_a_change_in_any_imported_file_changes_the_candidate(tmp_path, changed):
    write(tmp_path, TREE)
    before = make_candidate(tmp_path)
    write(tmp_path, {changed: TREE[changed] + "# changed\n"})
    assert make_candidate(tmp_path).digest != before.digest
    write(tmp_path, {changed: TREE[changed], "pack/unused.py": "x = 1\n"})
    assert make_candidate(tmp_path).digest == before.digest


def make_candidate(root: Path, **changes):
    facts = {
        "name": "mine",
        "op": "moe_experts",
        "contract": "moe-torch/1",
        "tier": "native",
        "device": "cpu",
        "implementation": "pack.main:f",
        "root": root,
        "switches": (),
    }
    return provenance.candidate(**(facts | changes))


@pytest.mark.parametrize(
    "change",
    [
        {"op": "mhc_pre"},
        {"contract": "another/1"},
        {"tier": "foreign"},
        {"device": "cuda"},
        {"implementation": "pack.main:g"},
        {"config": (("block", "64"),)},
        {"switches": (("OMP_NUM_THREADS", "1"),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_but_the_name_is_identity(tmp_path, change):
    write(tmp_path, TREE)
    plain = make_candidate(tmp_path)
    assert make_candidate(tmp_path, **change).digest != plain.digest
    assert make_candidate(tmp_path, name="renamed").digest == plain.digest
    assert candidate_digest(plain) == plain.digest
    assert candidate_digest(replace(plain, sources=(("pack/main.py", "0" * 64),))) != plain.digest


def test_an_absent_module_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"module 'no\.such'.*no/such\.py below"):
        source_closure(tmp_path, "no.such")


def test_a_file_that_does_not_parse_is_named(tmp_path):
    write(tmp_path, {"bad.py": "x = 1\ndef (:\n"})
    with pytest.raises(UsageError, match=r"bad\.py, line 2: not valid Python"):
        source_closure(tmp_path, "bad")


def test_our_own_modules_have_a_closure():
    root = Path(bitgate.__file__).parents[1]
    names = [name for name, _ in source_closure(root, "bitgate.records.ledger")]
    assert "bitgate/records/base.py" in names
    assert not any(name.startswith("bitgate/kernels") for name in names)


def test_switches_are_allow_listed_sorted_and_hold_no_secret(monkeypatch):
    for name in ("TRITON_INTERPRET", "OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "OPENBLAS_CORETYPE"):
        monkeypatch.setenv(name, "1")
    for name in ("VLLM_API_KEY", "TRITON_CACHE_DIR", "CUDA_HOME", "UNRELATED"):
        monkeypatch.setenv(name, "x")
    found = dict(provenance.switches())
    assert {
        "TRITON_INTERPRET",
        "OMP_NUM_THREADS",
        "ATEN_CPU_CAPABILITY",
        "OPENBLAS_CORETYPE",
    } <= set(found)
    assert not {"VLLM_API_KEY", "TRITON_CACHE_DIR", "CUDA_HOME", "UNRELATED"} & set(found)
    assert list(found) == sorted(found)


def test_variable_and_process_environment(monkeypatch):
    monkeypatch.setenv("BITGATE_TEST", "1")
    monkeypatch.delenv("BITGATE_ABSENT", raising=False)
    assert provenance.variable("BITGATE_TEST") == "1"
    assert provenance.variable("BITGATE_ABSENT") is None
    assert provenance.variable("BITGATE_ABSENT", "2") == "2"
    assert provenance.process_environment({"BITGATE_ABSENT": "3"})["BITGATE_ABSENT"] == "3"
    assert provenance.variable("BITGATE_ABSENT") is None


def an_environment():
    return provenance.environment(
        device="cpu", device_name="CPU", device_count=1, threads=2, probes=(("bf16", "yes"),)
    )


def test_the_environment_names_versions_and_compares_by_them(monkeypatch):
    here = an_environment()
    assert dict(here.packages)["numpy"]
    assert here.node
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    assert ("switch:OMP_NUM_THREADS", "17") in an_environment().comparability
    assert an_environment().comparability != here.comparability


def test_end_of_life_packages_are_listed(monkeypatch):
    names = ("intel-extension-for-pytorch", "oneccl-bindings-for-pytorch")
    assert provenance.end_of_life((("torch", "2.13.0"),)) == ()
    real = provenance.importlib.metadata.version
    monkeypatch.setattr(
        provenance.importlib.metadata,
        "version",
        lambda name: "2.8.0" if name in names else real(name),
    )
    here = an_environment()
    assert dict(here.packages)[names[0]] == "2.8.0"
    probes = dict(here.probes)
    assert "xccl" in probes["end-of-life:oneccl-bindings-for-pytorch"]
    assert "torch.xpu" in probes["end-of-life:intel-extension-for-pytorch"]


# --- the harness ---------------------------------------------------------------------------------


def git(directory: Path, *arguments: str) -> str:
    names = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    command = ["git", "-C", str(directory), *names, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small committed checkout that stands for the package's own."""
    write(tmp_path, {"bitgate/__init__.py": "", "records/a.py": "", ".gitignore": "venv/\n"})
    (tmp_path / "bitgate" / "records").symlink_to("../records")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(identity.bitgate, "__file__", str(tmp_path / "bitgate" / "__init__.py"))
    return tmp_path


def test_the_harness_names_its_revision_and_whether_it_is_clean(checkout):
    clean = provenance.harness()
    assert clean.commit == git(checkout, "rev-parse", "HEAD")
    assert not clean.dirty
    write(checkout, {"notes.txt": "not a source"})
    assert not provenance.harness().dirty
    write(checkout, {"records/a.py": "changed = 1\n"})
    edited = provenance.harness()
    assert edited.dirty
    assert edited.source_sha256 != clean.source_sha256


def test_a_package_inside_another_checkout_has_no_revision(checkout, monkeypatch):
    shutil.copytree(checkout / "bitgate", checkout / "venv" / "bitgate")
    inside = checkout / "venv" / "bitgate" / "__init__.py"
    monkeypatch.setattr(identity.bitgate, "__file__", str(inside))
    found = provenance.harness()
    assert (found.commit, found.dirty) == (None, False)


def test_without_git_there_is_no_revision(checkout, monkeypatch):
    monkeypatch.setenv("PATH", str(checkout / "nowhere"))
    found = provenance.harness()
    assert found.commit is None
    assert found.source_sha256


# --- libraries -----------------------------------------------------------------------------------


def test_mapped_libraries_are_known_by_content(tmp_path):
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(b"one")
    maps = tmp_path / "maps"
    maps.write_text(
        f"7f00-7f01 r-xp 00000000 08:01 12 {library}\n"
        f"7f01-7f02 r--p 00001000 08:01 12 {library}\n"
        "7f02-7f03 rw-p 00000000 00:00 0\n"
        f"7f03-7f04 r-xp 00000000 08:01 13 {tmp_path / 'libother.so'}\n"
        f"7f04-7f05 r-xp 00000000 08:01 14 {tmp_path / 'libnccl.so.2'} (deleted)\n"
    )
    first = mapped_libraries(maps=maps)
    assert first == (("libtorch_cpu.so", hashlib.sha256(b"one").hexdigest()),)
    library.write_bytes(b"three")
    assert mapped_libraries(maps=maps) != first
    assert mapped_libraries(maps=tmp_path / "absent") == ()


def test_this_process_maps_its_c_library():
    assert mapped_libraries(names=("libc.", "ld-")) != ()


def test_a_wrapped_implementation_of_ours_belongs_to_the_closure(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from bitgate.kernels.moe.experts import experts_sorted\nrun = experts_sorted\n"
    )
    names = [name for name, _ in source_closure(tmp_path, "mine")]
    assert "mine.py" in names
    assert "bitgate/kernels/moe/experts.py" in names


def test_a_misspelt_function_is_seen_without_running_anything(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch as t\nif t:\n    from math import pi as run\n\ndef other(): pass\n"
    )
    (tmp_path / "dynamic.py").write_text("globals()['run'] = print\n")
    assert defined_names(tmp_path, "mine") >= {"run", "other", "t"}
    assert "runn" not in defined_names(tmp_path, "mine")
    assert defined_names(tmp_path, "dynamic") is None
