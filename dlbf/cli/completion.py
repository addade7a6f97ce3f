"""``dlbf completion``: the script that makes a shell complete dlbf's commands, options and paths."""

import click

__all__ = ["command"]

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script for a shell: commands, options, paths and, after PATH, keys of the store.

    \b
    bash   dlbf completion bash > ~/.local/share/bash-completion/completions/dlbf
    zsh    dlbf completion zsh > "${fpath[1]}/_dlbf"    (before compinit runs)
    fish   dlbf completion fish > ~/.config/fish/completions/dlbf.fish

    For this session only: source <(dlbf completion bash)

    In bash the path in --engine URL completes once a colon is no end of a word: COMP_WORDBREAKS=${COMP_WORDBREAKS//:}
    """
    from click.shell_completion import ShellComplete, get_completion_class

    shell_class = get_completion_class(shell)
    assert shell_class is not None  # click brings these three
    root = click.get_current_context().find_root()
    # Not shell_class.source(): click's bash class looks for a bash to run, which is of no use in a package build.
    click.echo(ShellComplete.source(shell_class(root.command, {}, "dlbf", "_DLBF_COMPLETE")))
