"""What goes wrong for a user, with the exit code that scripts can rely on.

0 pass · 1 gate failed · 2 usage · 3 inconclusive · 4 environment unfit · 5 ledger broken
"""


class BitgateError(Exception):
    """A message that says what was expected, what came and what to do. Exit code 1."""

    exit_code = 1


class UsageError(BitgateError):
    """The command, file or name is wrong. Exit code 2."""

    exit_code = 2


class Inconclusive(BitgateError):  # noqa: N818 - an outcome with an exit code, not a defect
    """Nothing can be said with the evidence at hand. Exit code 3."""

    exit_code = 3


class EnvironmentUnfit(BitgateError):  # noqa: N818 - as above
    """This node cannot do what was asked. Exit code 4."""

    exit_code = 4


class LedgerBroken(BitgateError):  # noqa: N818 - as above
    """The ledger's chain does not verify. Exit code 5."""

    exit_code = 5
