"""`python -m emu` is `emu`."""

from emu.cli.main import main

main()
