"""Tiles are judged, then timed, chosen only with evidence, and written as they are read."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bitgate.bench import tune_file
from bitgate.bench.process import ChildFailed
from bitgate.bench.session import Timed
from bitgate.bench.sides import Contest
from bitgate.bench.tune import Tuned, Tuning, packed, tune
from bitgate.bench.tune_judge import Answer, Judging, judge
from bitgate.bench.witness import TimingRefused
from bitgate.kernels import catalogue
from bitgate.kernels.loading import load
from bitgate.kernels.moe import tiles
from bitgate.kernels.moe.configs import TunedFile, entry_of, read, tile_config
from bitgate.kernels.moe.contract import DEFAULT_CONFIG, TileConfig
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.worker import CallFailed, Launch, Reply, WorkerDied
from bitgate.records.errors import Inconclusive, UsageError
from bitgate.records.types import Measurement, Plan, Workload

SMALL = TileConfig(block_m=16, block_n=32)
LARGE = TileConfig(block_m=32, block_n=64)
OTHER_STEP = TileConfig(block_k=32)
GRID = (SMALL, LARGE, OTHER_STEP)
AXES = {"experts": 4, "hidden": 96, "intermediate": 32, "top_k": 2}


def workload(tokens: int, op: str = "moe_experts") -> Workload:
    axes = AXES if op == "moe_experts" else {"experts": 4, "k": 96, "n": 64, "top_k": 2}
    shape = tuple(sorted((axes | {"tokens": tokens}).items()))
    return Workload(op=op, axes=shape, dtype="bfloat16")


def tuning(*tokens: int, name: str = "experts_triton", **changes: Any) -> Tuning:
    implementation = catalogue.implementation(name)
    fields: dict[str, Any] = {
        "implementation": implementation,
        "device": "cpu",
        "workloads": tuple(workload(count, implementation.op) for count in tokens or (3,)),
        "grid": GRID,
        "plan": Plan(
            regime="warm",
            rounds=60,
            processes=5,
            calls_per_sample=1,
            margin="0",
            alpha="0.05",
            order_seed=3,
        ),
    }
    return Tuning(**(fields | changes))


def quiet(what: str, done: int, total: int) -> None:
    """Report nothing."""


# --- judging -------------------------------------------------------------------------------------


class Here:
    """A worker without a process, whose implementation a test may make wrong."""

    def __init__(self, launch: Launch, fault: Callable[..., None] | None = None) -> None:
        run = load("bitgate.kernels.moe.staged_reference:experts_tile")
        if launch.kernel.op == "moe_gemm":
            run = load("bitgate.kernels.moe.gemm_triton:moe_gemm")
        self.launch, self.fault, self.calls = launch, fault, 0
        self.run = tiles.bound(run, launch.kernel.op, launch.tiles) if launch.tiles else run

    def send(self, inputs: Tensors, constants: Constants, **placement: Any) -> None:
        self.given, self.poison = (inputs, constants), placement["poison"]

    def receive(self) -> Reply:
        self.calls += 1
        inputs, constants = self.given
        outputs = self.launch.kernel.named_outputs(self.run(**inputs, **constants))
        if self.fault is not None:
            self.fault(self, outputs)
        return Reply(outputs=outputs, mutated={}, settings={})

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to end."""


def judged(
    faulty: TileConfig | None = None, fault: Callable[..., None] | None = None, **changes: Any
) -> dict[TileConfig, Answer]:
    def launcher(launch: Launch) -> Here:
        mine = faulty is not None and launch.tiles == packed(faulty)
        return Here(launch, fault if mine else None)

    mine = tuning(**{"samples": 2} | changes)
    judging = Judging(
        kernel=catalogue.kernel(mine.implementation.op),
        implementation=mine.implementation,
        device="cpu",
        workloads=mine.workloads,
        samples=mine.samples,
        timeout_s=60,
        launcher=launcher,
    )
    answers = judge(judging, {config: packed(config) for config in GRID}, quiet)
    return {answer.config: answer for answer in answers}


@pytest.mark.parametrize("name", ["experts_triton", "moe_gemm-triton"])
def test_right_tiles_pass_and_say_what_their_bits_are(name: str) -> None:
    found = judged(name=name, samples=1)
    assert [answer.rejected for answer in found.values()] == [None, None, None]
    assert found[SMALL].bits == found[LARGE].bits == "as the default"


def out_of_bound(worker: Here, outputs: Tensors) -> None:
    outputs["out"][0, 0] += 1


def random(worker: Here, outputs: Tensors) -> None:
    outputs["out"][0, 0] += worker.calls


def unwritten(worker: Here, outputs: Tensors) -> None:
    """A place that keeps what was there before; zeros could pass for a result."""
    if worker.poison == 0:
        outputs["out"][0, 0] = 0


def one_bit(worker: Here, outputs: Tensors) -> None:
    outputs["out"].view(torch.int16)[0, 0] ^= 1


def too_large(worker: Here, outputs: Tensors) -> None:
    raise CallFailed("experts_triton raised OutOfResources: shared memory\nand its traceback")


def dead(worker: Here, outputs: Tensors) -> None:
    raise WorkerDied("an illegal memory access")


@pytest.mark.parametrize(
    ("config", "fault", "reason"),
    [
        (OTHER_STEP, out_of_bound, "1 of 288 elements of out lie outside the float64 bound"),
        (SMALL, random, "two calls on the same inputs give other bits"),
        (OTHER_STEP, unwritten, "two calls on the same inputs give other bits"),
        (SMALL, one_bit, "other bits than the default tiles have at the same block_k: out"),
        (LARGE, too_large, "OutOfResources: shared memory"),
        (LARGE, dead, "illegal memory access"),
    ],
)
def test_wrong_tiles_are_rejected_with_a_reason(
    config: TileConfig, fault: Callable[..., None], reason: str
) -> None:
    found = judged(config, fault)
    assert reason in str(found[config].rejected)
    assert "traceback" not in str(found[config].rejected)
    others = [answer for other, answer in found.items() if other != config]
    assert [answer.rejected for answer in others] == [None, None]


def test_another_step_may_have_other_bits_within_the_bound() -> None:
    found = judged(OTHER_STEP, one_bit)
    assert found[OTHER_STEP].rejected is None
    assert found[OTHER_STEP].bits == "others in 2 of 2 samples"


def test_a_default_that_is_wrong_ends_it() -> None:
    judging = Judging(
        kernel=catalogue.kernel("moe_experts"),
        implementation=catalogue.implementation("experts_triton"),
        device="cpu",
        workloads=(workload(3),),
        samples=1,
        timeout_s=60,
        launcher=lambda launch: Here(launch, out_of_bound),
    )
    with pytest.raises(Inconclusive, match="the default tiles fail"):
        judge(judging, {SMALL: packed(SMALL)}, quiet)


# --- timing and choosing -------------------------------------------------------------------------


def right(judging: Judging, texts: dict[TileConfig, str], progress: Any) -> list[Answer]:
    """Nothing is rejected."""
    tokens = [one.axis("tokens") for one in judging.workloads]
    return [
        Answer(config=config, tokens=count, rejected=None, bits="as the default")
        for config in texts
        for count in tokens
    ]


def timing(
    fabricate: Callable[..., Measurement], candidate_ns: dict[tuple[int, str], int]
) -> Callable[..., Iterator[tuple[Workload, Timed]]]:
    """A session in which the default takes 10 us, and each configuration what the test says."""

    def measure(
        contest: Contest, workloads: list[Workload], plan: Plan, **_: Any
    ) -> Iterator[tuple[Workload, Timed]]:
        text = tiles.of_config(contest.subject.candidate.config)
        assert contest.subject.reference_tiles == text
        assert contest.rival is not None
        assert contest.rival.reference_tiles == contest.baseline_tiles == ""
        for one in workloads:
            ns = candidate_ns.get((one.axis("tokens"), text), 10_000)
            if ns == 0:
                raise ChildFailed("the timing process gave no answer\nits last words")
            # Noise of 1 %, alternately: of equal times half the rounds go either way.
            baseline = [10_000 + 100 * (-1) ** i for i in range(60)]
            mine = [ns + 100 * (-1) ** (i // 2) for i in range(60)]
            found = fabricate(baseline, mine, processes=1, plan={"alpha": plan.alpha})
            yield one, Timed(measurement=found, notes=())

    return measure


def test_the_fastest_with_evidence_is_chosen_and_the_default_where_there_is_none(
    fabricate: Callable[..., Measurement],
) -> None:
    given = {(3, packed(SMALL)): 8_000, (3, packed(LARGE)): 5_000, (64, packed(SMALL)): 12_000}
    found = tune(tuning(3, 64), quiet, timing=timing(fabricate, given), judging=right)
    assert [one.config for one in found.chosen] == [LARGE, DEFAULT_CONFIG]
    assert found.chosen[0].why.startswith("FASTER, 2.0")
    assert "of 3 timed and 0 rejected configurations none is faster" in found.chosen[1].why
    assert len(found.tried) == 6
    effects = {(one.tokens, one.config): one.effect.effect for one in found.tried if one.effect}
    assert effects[3, SMALL] == "FASTER"
    assert effects[64, SMALL] == "SLOWER"
    assert effects[64, LARGE] in {"INCONCLUSIVE", "SAME"}


def test_configurations_share_the_false_claims_that_are_allowed() -> None:
    assert float(tuning().share) == pytest.approx(0.05 / 3, rel=1e-3)
    # At another number of tokens each is another claim.
    assert float(tuning(3, 64).share) == pytest.approx(0.05 / 6, rel=1e-3)


def test_a_rejected_configuration_is_never_timed(fabricate: Callable[..., Measurement]) -> None:
    def wrong(judging: Judging, texts: dict[TileConfig, str], progress: Any) -> list[Answer]:
        return [
            Answer(
                config=one.config,
                tokens=one.tokens,
                rejected="wrong" if one.config == LARGE else None,
                bits=one.bits,
            )
            for one in right(judging, texts, progress)
        ]

    seen: list[str] = []
    inner = timing(fabricate, {(3, packed(LARGE)): 1_000})

    def measure(contest: Contest, *rest: Any, **more: Any) -> Iterator[tuple[Workload, Timed]]:
        seen.append(tiles.of_config(contest.subject.candidate.config))
        return inner(contest, *rest, **more)

    found = tune(tuning(), quiet, timing=measure, judging=wrong)
    assert packed(LARGE) not in seen
    assert len(seen) == 2
    assert found.chosen[0].config == DEFAULT_CONFIG
    assert [one.rejected for one in found.tried if one.config == LARGE] == ["wrong"]


def test_a_session_that_breaks_costs_the_workload_that_it_was_at(
    fabricate: Callable[..., Measurement],
) -> None:
    given = {(3, packed(SMALL)): 0, (64, packed(SMALL)): 5_000}
    found = tune(tuning(3, 64), quiet, timing=timing(fabricate, given), judging=right)
    assert [one.config for one in found.chosen] == [DEFAULT_CONFIG, SMALL]
    (broken,) = [one for one in found.tried if one.rejected]
    assert (broken.tokens, broken.config) == (3, SMALL)
    assert broken.rejected == "while it was timed: the timing process gave no answer"


def test_an_output_that_is_wrong_while_it_is_timed_is_a_rejection() -> None:
    def measure(*_: Any, **__: Any) -> Iterator[tuple[Workload, Timed]]:
        raise TimingRefused("a timed output differs", side="C", code="output")

    found = tune(tuning(), quiet, timing=measure, judging=right)
    assert all("a timed output differs" in str(one.rejected) for one in found.tried)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "experts_loop"}, "takes no tiles"),
        ({"device": "tpu"}, "expected a device of cpu, cuda, xpu, got tpu"),
        ({"grid": ()}, "got none"),
        ({"workloads": ()}, "got none"),
        ({"samples": 0}, "got none"),
    ],
)
def test_what_cannot_be_tuned_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tuning(**changes)


# --- the file ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(fabricate: Callable[..., Measurement]) -> Tuned:
    given = {(3, packed(LARGE)): 5_000}
    return tune(tuning(3, 64), quiet, timing=timing(fabricate, given), judging=right)


def write(path: Path, tuned: Tuned, *, force: bool = False) -> TunedFile:
    tune_file.write(path, tuned, force=force, triton_version="3.7.1")
    return read(path)


def test_the_file_is_read_as_it_was_meant(tmp_path: Path, tuned: Tuned) -> None:
    path = tune_file.destination(tuning(3, 64), tmp_path, "0.33", force=False)
    file = write(path, tuned)
    file.require(4, 32)
    assert file.triton_version == "3.7.1"
    found = tiles.resolved("moe_experts", tiles.packed(file), workload(20))
    assert (found.key, tile_config(found)) == (3, LARGE)
    assert tile_config(tiles.at(file, 4096)) == DEFAULT_CONFIG
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_file_is_never_written_over_unasked(tmp_path: Path, tuned: Tuned) -> None:
    path = tune_file.destination(tuning(3, 64), tmp_path, "0.33", force=False)
    path.write_text("mine")
    with pytest.raises(UsageError, match="has come into being meanwhile"):
        write(path, tuned)
    with pytest.raises(UsageError, match="--force"):
        tune_file.destination(tuning(3, 64), tmp_path, "0.33", force=False)
    assert path.read_text() == "mine"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert tune_file.destination(tuning(3, 64), tmp_path, "0.33", force=True) == path
    assert write(path, tuned, force=True).nearest(1)[1] == entry_of(LARGE)


def test_the_report_holds_all_that_was_tried(tmp_path: Path, tuned: Tuned) -> None:
    facts = tune_file.report(tuning(3, 64), tuned, tmp_path / "file")
    tune_file.save(tmp_path / "report.json", facts)
    again = json.loads((tmp_path / "report.json").read_text())
    assert len(again["tried"]) == 6
    assert all(len(one["candidate_ns"]) == 60 for one in again["tried"])
    assert [one["tiles"] for one in again["chosen"]] == [entry_of(LARGE), entry_of(DEFAULT_CONFIG)]
    assert again["contract"] == "moe-bf16/1"


def test_a_folder_for_the_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a folder"):
        tune_file.destination(tuning(3), tmp_path / "none", "0.33", force=False)
