"""A small capture that tests can repeat, change and break."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bitgate.parity.bundle_format import ModelIdentity
from bitgate.parity.capture import Declared, Origin, Plan, capture, tap
from bitgate.records.types import Environment, Harness

Change = Callable[[str, int, dict[str, torch.Tensor]], None]


def origin(weights: str = "b") -> Origin:
    return Origin(
        producer=Harness(version="0", commit=None, dirty=False, source_sha256="a" * 64),
        model=ModelIdentity(
            name="toy", model_type="toy", config_sha256="a" * 64, weights_sha256=weights * 64
        ),
        environment=Environment(
            device="cpu",
            device_name="test",
            device_count=1,
            node="n",
            os="o",
            python="3",
            threads=1,
            packages=(),
            libraries=(),
            switches=(),
            probes=(),
        ),
    )


def write_toy(
    out: Path,
    *,
    change: Change | None = None,
    weights: str = "b",
    keep_steps: int | None = None,
    steps: int = 3,
    start: float = 0.0,
) -> Path:
    """Two chained boundaries over some steps; `change(boundary, step, outputs)` plants a fault."""
    plan = Plan(
        boundaries=(
            Declared(name="scale", layer=0, op="toy", contract="toy/1", closed=True),
            Declared(name="attend", layer=0, closed=False),
            Declared(
                name="scale",
                layer=1,
                constants={"eps": 1e-6, "n": 4, "score": "top-k"},
                closed=True,
            ),
        ),
        origin=origin(weights),
        keep_steps=keep_steps,
    )
    with capture(plan, out) as session:
        for token in range(steps):
            rows = 2 if token == 0 else 1
            phase = "prefill" if token == 0 else "decode"
            with session.step(request=0, token=token, phase=phase):
                x = torch.arange(1, 4 * rows + 1).float().reshape(rows, 4) + token + start
                for name, layer in (("scale", 0), ("attend", 0), ("scale", 1)):
                    y = {"y": x.bfloat16() * 3, "half": (x[:, :2] / 7)}
                    if change:
                        change(f"{name}{layer}", token, y)
                    tap(name, {"x": x}, layer=layer, out=y)
                    x = y["y"].float() + y["half"].sum()
    return out


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and lose much to them on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def toy() -> Callable[..., Path]:
    return write_toy


@pytest.fixture(scope="session")
def toy_origin() -> Origin:
    return origin()
