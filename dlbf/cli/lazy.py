"""A click group whose commands are modules, imported when they are called and not before."""

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """Commands by name and one line of help.

    Parameters
    ----------
    package : str
        The package that has a module for every command, with the click command in ``command``.
    commands_help : mapping
        Name of the command to its line of help.
    modules : mapping, optional
        Name of the command to that of its module, where they differ.
    """

    def __init__(
        self, *args: Any, package: str, commands_help: Mapping[str, str], modules: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **settings)
        self.package = package
        self.modules = modules or {}
        self.commands_help = commands_help

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.commands_help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands_help:
            return None
        module = f"{self.package}.{self.modules.get(cmd_name, cmd_name.replace('-', '_'))}"
        command: click.Command = importlib.import_module(module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self.commands_help.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # From the table: click would import every command to ask it for its help.
        names = [
            CompletionItem(name, help=line) for name, line in self.commands_help.items() if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)
