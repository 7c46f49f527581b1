#!/usr/bin/env python3
"""Check one device in eight minutes (three with --quick): bits, fixtures, timings, open questions.

Needs torch >= 2.11, Triton >= 3.6 and NumPy, nothing else, and writes only below --out:

    python3 scripts/device_check.py --device cuda --out device-check
    bitgate records import device-check device-check --ledger ledger

Exit codes: 0 all passed, 1 something differs, 2 usage, 3 something was not run, 4 no such device.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bitgate.records.errors import BitgateError
from bitgate.records.provenance import process_environment, variable


def main() -> int:
    """Parse, start Triton's interpreter where the device is the processor, and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or xpu")
    parser.add_argument("--out", type=Path, default=Path("device-check"), help="an empty folder")
    parser.add_argument("--quick", action="store_true", help="three minutes instead of eight")
    parser.add_argument("--only", action="append", default=[], metavar="SECTION")
    parser.add_argument("--seconds", type=int, help="another budget, as on a slow processor")
    asked = parser.parse_args()
    # Whether Triton interprets is decided when it is imported.
    if asked.device == "cpu" and variable("TRITON_INTERPRET") != "1":
        os.execve(sys.executable, sys.orig_argv, process_environment({"TRITON_INTERPRET": "1"}))
    try:
        from bitgate.kernels.device_check.run import run
        from bitgate.kernels.devices import device

        found = run(
            device(asked.device),
            asked.out,
            quick=asked.quick,
            only=asked.only,
            seconds=asked.seconds,
        )
    except BitgateError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{found.summary}\nfiles in {asked.out}; bitgate records import device-check {asked.out}")
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
