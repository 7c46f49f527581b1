"""`python -m bitgate` is the command `bitgate`."""

from bitgate.cli import main

main()
