# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""docs/reference/help.md: every command as `--help` describes it, made from the commands."""

import re
from collections.abc import Iterator

import click

from cotenant.cli import main
from tools.reference.marked import table

HEAD = """# Help of every command

For users who look up an option: every command with its options and examples, as `--help` prints them. This page is
generated from the code by `make reference`. [Commands](commands.md) explains more, with exit codes, variables and
examples that the tests run.
"""


def page(_: str) -> str:
    """The page, whatever it was before."""
    context = click.Context(main.cotenant, info_name="cotenant")
    names = [(name, main.cotenant.get_command(context, name)) for name in main.cotenant.list_commands(context)]
    return "\n".join([HEAD, *(_section(path, one) for name, top in names if top for path, one in _leaves(name, top))])


def _leaves(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command, or those below it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, below in command.commands.items():
        yield from _leaves(f"{path} {name}", below)


def _section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"cotenant {path}")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    parts = [f"## cotenant {path}\n", f"```\n{usage}\n```\n", f"{_plain(command.help or '')}\n"]
    if options:
        parts.append(table(("Option", "Meaning", "Default"), [_row(one, context) for one in options]))
    if command.epilog:
        parts.append(_examples(command.epilog))
    return "\n".join(parts)


def _row(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    takes = "" if option.is_flag or option.count else f" `{option.make_metavar(context)}`"
    shown = option.show_default
    default = f"`{option.get_default(context)}`" if shown is True else f"`{shown}`" if isinstance(shown, str) else ""
    return f"{names}{takes}", _plain(option.help or ""), default + (" (required)" if option.required else "")


def _examples(epilog: str) -> str:
    lines = [line.strip() for line in epilog.replace("\b", "").splitlines() if line.startswith("  ") and line.strip()]
    return "```\n" + "\n".join(lines) + "\n```\n"


def _plain(text: str) -> str:
    """Paragraphs without the marks of click."""
    paragraphs = re.split(r"\n\s*\n", text.replace("\b", ""))
    return "\n\n".join(" ".join(one.split()) for one in paragraphs).replace("<", "&lt;")
