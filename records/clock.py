"""The one place that reads the wall clock for rows."""

from datetime import UTC, datetime


def utc_now() -> str:
    """Now, in UTC with microseconds, as rows hold it: 2026-01-31T23:59:59.000001Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
