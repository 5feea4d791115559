# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant completion`: what makes a shell complete commands, options, jobs and GPUs."""

import click

EPILOG = """\b
Examples:
  eval "$(cotenant completion bash)"                                in ~/.bashrc
  eval "$(cotenant completion zsh)"                                 in ~/.zshrc
  cotenant completion fish > ~/.config/fish/completions/cotenant.fish
"""


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints the script that makes your shell complete commands, options, jobs and GPUs."""
    from click.shell_completion import shell_complete

    root = context.find_root().command
    context.exit(shell_complete(root, {}, "cotenant", "_COTENANT_COMPLETE", f"{shell}_source"))
