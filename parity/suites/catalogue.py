"""The suites by name; a new one is one more line."""

from collections.abc import Callable
from typing import Final

from bitgate.parity.suites import vllm_moe
from bitgate.parity.suites.cases import NAME
from bitgate.parity.suites.results import SuiteResult

# What runs a suite, on a device, called like an assumed version of the engine.
SUITES: Final[dict[str, Callable[[str, str | None], SuiteResult]]] = {NAME: vllm_moe.run}
