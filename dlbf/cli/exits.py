"""Exit codes, the same for every command.

===  ====================================================================================================
0    done
1    "no": a key is not there, a rebuild is due, a check found something; each command's help says what
2    trouble: bad usage, or what was asked for could not be done; standard error says why
3    ``dlbf info --check``: the filter cannot be used
130  interrupted
141  nobody reads the output any more
===  ====================================================================================================
"""

import click

__all__ = ["EXIT_BROKEN_PIPE", "EXIT_INTERRUPTED", "EXIT_NO", "EXIT_TROUBLE", "Trouble"]

EXIT_NO = 1
EXIT_TROUBLE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class Trouble(click.ClickException):
    """An error whose exit code cannot be taken for "no"."""

    exit_code = EXIT_TROUBLE
