"""``python -m dlbf`` is the ``dlbf`` command."""

from dlbf.cli import main

main()
