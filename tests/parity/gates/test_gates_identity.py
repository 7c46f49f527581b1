"""G0: nothing is judged under a false name."""

from dataclasses import replace

import pytest

from bitgate.records.provenance import candidate_digest


def relabelled(bench, **changes):
    """A subject whose candidate has other fields and a digest that fits them."""
    subject = bench.subject()
    candidate = replace(subject.candidate, **changes)
    return replace(subject, candidate=replace(candidate, digest=candidate_digest(candidate)))


def failure(bench, subject) -> str:
    result = bench.ask("G0", subject)
    assert (result.outcome, result.bounds) == ("fail", ())
    assert result.culprit is not None
    return result.reason


def test_source_that_was_edited_after_the_identity_is_refused(bench):
    subject = bench.subject()
    with (subject.root / "planted.py").open("a") as file:
        file.write("\n# faster now\n")
    assert "source planted.py" in failure(bench, subject)


def test_a_helper_that_appears_later_is_refused(bench):
    subject = bench.subject("import sys\n" + "def run(*, x, w, shift): return x, x[:, 0]")
    (subject.root / "sys.py").write_text("")
    assert "source sys.py: expected missing" in failure(bench, subject)


def test_a_claim_never_spans_two_contracts(bench):
    subject = bench.subject()
    other = replace(subject.reference, contract="toy/2")
    reason = failure(bench, replace(subject, reference=other))
    assert "expected toy/1, got toy/2" in reason
    assert "never spans two contracts: compare with toy-reference" in reason
    assert "toy/1 and toy/2 are two orders of arithmetic" in reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contract": "toy/9"}, "contract known: expected one of toy/1, got toy/9"),
        ({"op": "other"}, "operator: expected toy, got other"),
    ],
)
def test_unknown_operators_and_contracts_are_refused(bench, changes, message):
    assert message in failure(bench, relabelled(bench, **changes))


def test_fields_that_do_not_fit_the_digest_are_refused(bench):
    subject = bench.subject()
    edited = replace(subject.candidate, config=(("block", "64"),))
    assert "digest" in failure(bench, replace(subject, candidate=edited))


def test_a_module_that_does_not_import_is_refused(bench):
    assert "loads: expected loaded" in failure(bench, bench.subject("raise ImportError('x')"))


def test_settings_changed_by_the_import_are_refused(bench):
    body = """
        import torch
        torch.set_num_threads(2)
        def run(*, x, w, shift): return x, x[:, 0]
    """
    assert "threads after the import: expected 1, got 2" in failure(bench, bench.subject(body))


def test_other_threads_than_asked_for_are_refused(bench):
    local = bench.launcher

    class Stubborn(local):
        def __init__(self, launch):
            super().__init__(replace(launch, threads=1))

    bench.launcher = Stubborn
    reason = failure(bench, replace(bench.subject(), threads=2))
    assert "threads: expected 2, got 1" in reason


@pytest.mark.parametrize(
    ("fact", "value", "message"),
    [
        ("device", "xpu", "device: expected cpu, got xpu"),
        ("torch", "2.5.0", "torch: expected"),
        ("file", "/elsewhere/planted.py", "module file: expected planted.py"),
    ],
)
def test_what_the_process_really_has_is_compared(bench, fact, value, message):
    local = bench.launcher

    class Elsewhere(local):
        def __init__(self, launch):
            super().__init__(launch)
            self.facts = replace(self.facts, **{fact: value})

    bench.launcher = Elsewhere
    assert message in failure(bench, bench.subject())


def test_nothing_of_a_candidate_runs_before_its_sources_are_the_declared_ones(bench):
    def refuse(launch):
        raise AssertionError("a process was started")

    bench.launcher = refuse
    subject = bench.subject()
    (subject.root / "planted.py").write_text("raise SystemExit")
    failure(bench, subject)
