"""One run's working state: the workers, and what every gate is handed."""

from dataclasses import dataclass, field
from typing import Any, Self

from bitgate.kernels.moe import tiles
from bitgate.kernels.spec import Constants, Tensors
from bitgate.parity.bundle import Bundle
from bitgate.parity.digests import digest
from bitgate.parity.gates.base import Budget, Launcher, Progress, Put, Runner, Subject
from bitgate.parity.worker import Launch, Worker, WorkerError
from bitgate.records.errors import Inconclusive
from bitgate.records.provenance import process_environment
from bitgate.records.types import Pairs, Workload


class ReferenceUnfit(Inconclusive):
    """The reference gives no truth: it failed, or answered the same input in two ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What may differ between processes without changing a bit.

    `junk` is the byte that the C library writes into memory it hands out or takes back (0: it does
    not); where the allocator is another one it has no effect. `reverse` turns the order of the
    environment around.
    """

    hash_seed: int = 0
    junk: int = 0
    reverse: bool = False
    threads: int | None = None


STANDARD = Conditions()


@dataclass(kw_only=True)
class Session:
    """A context manager that owns the reference's worker; candidates are launched per use."""

    subject: Subject
    workloads: tuple[Workload, ...]
    bundle: Bundle | None
    budget: Budget
    put: Put
    progress: Progress
    launcher: Launcher = Worker
    _reference: Runner | None = field(default=None, init=False)
    _answers: dict[str, str] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._reference is not None:
            self._reference.close()
            self._reference = None

    def candidate(self, conditions: Conditions = STANDARD) -> Runner:
        """A fresh process with the candidate, to be used as a context manager or closed."""
        subject = self.subject
        candidate = subject.candidate
        return self._launch(
            conditions,
            candidate.switches,
            target=candidate.implementation,
            root=subject.root,
            device=candidate.device,
            sources=tuple(path for path, _ in candidate.sources),
            tiles=tiles.of_config(candidate.config),
        )

    @property
    def reference(self) -> Runner:
        """The one process that computes what is expected; started at the first use."""
        if self._reference is None:
            subject = self.subject
            self._reference = self._launch(
                STANDARD,
                (),
                target=subject.reference.target,
                root=subject.reference_root,
                device=self._reference_device(),
                tiles=subject.reference_tiles,
            )
        return self._reference

    def expected(self, key: str, inputs: Tensors, constants: Constants | None = None) -> Tensors:
        """The reference's answer; asked again under the same key it must give the same bits.

        Without `constants`, the subject's are used.

        Raises:
            ReferenceUnfit: it did not, or it failed.
        """
        try:
            self.reference.send(inputs, self.subject.constants if constants is None else constants)
            outputs = self.reference.receive().outputs
        except WorkerError as error:
            raise ReferenceUnfit(f"the reference failed on {key}: {error}") from error
        bits = "/".join(f"{name}={digest(outputs[name])}" for name in sorted(outputs))
        if self._answers.setdefault(key, bits) != bits:
            raise ReferenceUnfit(
                f"the reference {self.subject.reference.name} answered {key} in two ways; "
                "nothing can be compared with it: use a deterministic reference"
            )
        return outputs

    def _reference_device(self) -> str:
        subject = self.subject
        wanted = subject.candidate.device
        if wanted in subject.reference.devices:
            return wanted
        if not (subject.claims.cross_device and "cpu" in subject.reference.devices):
            raise ReferenceUnfit(
                f"the reference {subject.reference.name} runs on {subject.reference.devices}, the "
                f"candidate on {wanted!r}, and {subject.claims.name} does not claim equal bits "
                "across devices; name a reference for that device"
            )
        return "cpu"

    def _launch(self, conditions: Conditions, switches: Pairs, **what: Any) -> Runner:
        """Start a process; `what` are the fields of Launch that differ between the two."""
        threads, device = self.subject.threads, what["device"]
        return self.launcher(
            Launch(
                kernel=self.subject.kernel,
                threads=conditions.threads or threads,
                environment=child_environment(device, conditions, switches, threads),
                timeout_s=self.budget.call_timeout_s,
                start_timeout_s=self.budget.start_timeout_s,
                **what,
            )
        )


def child_environment(device: str, conditions: Conditions, switches: Pairs, threads: int) -> Pairs:
    """The complete environment of a worker: this process's, its switches, and what is varied.

    The conditions win over the switches: a gate that varies the hash seed must not be told another.
    """
    # On a processor Triton has no compiler of its own; its interpreter runs the same kernels.
    device_default = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    varied = {
        "PYTHONHASHSEED": str(conditions.hash_seed),
        "MALLOC_PERTURB_": str(conditions.junk),
        "OMP_NUM_THREADS": str(conditions.threads or threads),
    }
    pairs = tuple(process_environment(device_default | dict(switches) | varied).items())
    return pairs[::-1] if conditions.reverse else pairs
