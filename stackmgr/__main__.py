"""`python -m stackmgr` is the command `stackmgr`."""

from stackmgr.cli import main

main()
