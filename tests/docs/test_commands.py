# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The page of commands documents every command, option, default and exit code, and no others; its examples run."""

import re
import shlex
import shutil
import tempfile
from pathlib import Path

import click
import pytest

from cotenant.cli import main
from cotenant.client.problems import NeverFitsError, NoDaemonError, NotFoundError
from cotenant.core.placement.policies import ORDERS, QUEUES
from cotenant.errors import CotenantError, InputError
from cotenant.wire.diagnosis import ERRORS_EXIT, WARNINGS_EXIT
from tests.cli.command import environment, run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "commands.md").read_text()
CONTEXT = click.Context(main.cotenant)
COMMANDS = main.cotenant.list_commands(CONTEXT)


def command_of(name: str) -> click.Command:
    command = main.cotenant.get_command(CONTEXT, name)
    assert command is not None
    return command


def section(name: str) -> str:
    """What the page says of a command."""
    found = re.search(rf"^## cotenant {name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section '## cotenant {name}'"
    return found[1]


def rows(name: str) -> dict[str, list[str]]:
    """The cells of the options table, by each spelling of the option."""
    table: dict[str, list[str]] = {}
    for line in section(name).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0].startswith("`-"):
            table |= dict.fromkeys(re.findall(r"(?<![\w-])--?[a-z][\w-]*", cells[0]), cells)
    return table


def options_of(command: click.Command) -> list[click.Option]:
    """Its own options, and those of the commands below it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = [option for option in command.params if isinstance(option, click.Option)]
    return own + [option for one in below for option in options_of(one)]


def subcommands(command: click.Command, name: str) -> dict[str, click.Command]:
    """A command and those below it that are no groups, by full name such as `kube inspect gpu`."""
    if not isinstance(command, click.Group):
        return {name: command}
    below = (subcommands(one, f"{name} {word}") for word, one in command.commands.items())
    return {name: command for found in below for name, command in found.items()}


EVERY = {full: one for name in COMMANDS for full, one in subcommands(command_of(name), name).items()}


def spellings(command: click.Command) -> set[str]:
    return {spelling for option in options_of(command) for spelling in (*option.opts, *option.secondary_opts)}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_explained_and_no_other(name: str) -> None:
    assert set(rows(name)) - {"--help", "-h"} == spellings(command_of(name))


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_are_those_of_the_command(name: str) -> None:
    table = rows(name)
    for option in options_of(command_of(name)):
        if option.show_default is True:
            assert table[option.opts[0]][2] == f"`{option.default}`", option.opts


@pytest.mark.parametrize("name", COMMANDS)
def test_choices_are_those_of_the_command(name: str) -> None:
    table = rows(name)
    for option in options_of(command_of(name)):
        if isinstance(option.type, click.Choice):
            assert "\\|".join(option.type.choices) in table[option.opts[0]][0]


def test_every_command_is_on_the_page_and_no_other() -> None:
    assert {"simulate", "why"} <= set(COMMANDS)
    assert set(re.findall(r"^## cotenant ([\w-]+)$", PAGE, re.MULTILINE)) == set(COMMANDS)


def test_every_subcommand_is_on_the_page_and_no_other() -> None:
    below = {name for name in EVERY if " " in name}
    assert "kube inspect gpu" in below
    groups = {name.partition(" ")[0] for name in below}
    shown = [re.findall(rf"`cotenant ({group}(?: [a-z]+)+)", section(group)) for group in groups]
    assert {name for names in shown for name in names} == below


@pytest.mark.parametrize("name", [name for name in EVERY if " " in name])
def test_help_of_every_subcommand_has_an_example_of_it(name: str) -> None:
    epilog = EVERY[name].epilog or ""
    words = name.removeprefix("kube ")
    assert re.search(rf"Examples?:\n(.*\n)*  (?:cotenant|kubectl) (?:kube )?{words}\b", epilog), epilog


NOT_PLAIN = re.compile(r"\b(nobody|whoever|whose turn|so many|cards?|told|is asked|will do)\b", re.IGNORECASE)


@pytest.mark.parametrize("name", EVERY)
def test_help_is_in_plain_english_with_the_terms_of_the_glossary(name: str) -> None:
    command = EVERY[name]
    texts = [command.help or "", command.epilog or "", *(option.help or "" for option in options_of(command))]
    assert [found[0] for text in texts for found in NOT_PLAIN.finditer(text)] == []
    assert all(text and text.strip()[0].isupper() for text in texts[:1])


def test_help_lists_every_command_once_under_what_people_do() -> None:
    sections = re.findall(r"^(\S.*):\n((?:  [\w-]+ +.+\n)+)", run("--help").stdout, re.MULTILINE)
    listed = [line.split()[0] for title, lines in sections if title in main.SECTIONS for line in lines.splitlines()]
    assert listed == COMMANDS
    assert len(main.SECTIONS) > 2


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_an_example_of_it(name: str) -> None:
    epilog = command_of(name).epilog or ""
    assert re.search(rf"Examples?:\n(.*\n)*.*\bcotenant {name} ", epilog), epilog
    assert all(option.help for option in options_of(command_of(name)))


def test_every_policy_and_queue_order_is_named() -> None:
    assert [name for name in (*ORDERS, *QUEUES) if not re.search(rf"[`|\\]{name}[`|\\]", section("simulate"))] == []


def test_every_exit_code_is_explained() -> None:
    codes = {0, CotenantError.exit_code, InputError.exit_code, main.FAILED, main.INTERRUPTED, main.BROKEN_PIPE}
    codes |= {NoDaemonError.exit_code, NotFoundError.exit_code, NeverFitsError.exit_code}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == codes


def commands_in(page: Path) -> list[list[str]]:
    """The words of every `cotenant …` in the page's code blocks and between backticks, as far as they are the command's
    own."""
    text = page.read_text()
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    blocks = [block.replace("\\\n", " ") for language, block in found if language != "text"]  # that is output
    lines = re.findall(r"^\s*(?:\$ |\d\) |\w+=\S+ )*cotenant ([a-z][^|;&#\n)]*)", "\n".join(blocks), re.MULTILINE)
    rest = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += re.findall(r"`cotenant ([a-z][^`|;&#]*)`", rest)
    return [shlex.split(line.partition(" -- ")[0]) for line in lines if line.count("'") % 2 == 0]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.stem
)
def test_commands_shown_on_a_page_exist_with_their_options(page: Path) -> None:
    for name, *words in commands_in(page):
        assert name in COMMANDS
        command = command_of(name)
        while isinstance(command, click.Group) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= {*spellings(command), "--help"}, f"cotenant {name} {' '.join(words)}"


EXAMPLES = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name: str) -> None:
    assert f"$ cotenant {name} " in "".join(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.splitlines()[-1][2:])
def test_example_runs(example: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    state = Path(tempfile.mkdtemp(prefix="ct"))  # a socket's path must be short
    request.addfinalizer(lambda: shutil.rmtree(state, ignore_errors=True))
    env = environment(COTENANT_STATE=str(state), COTENANT_RUNTIME=str(state / "run"))
    if "cotenant up" in example:
        request.addfinalizer(lambda: run("down", "--wait", env=env))
    if "openb" in example:
        env["COTENANT_DATA"] = str(request.getfixturevalue("data"))
    for line in example.splitlines():
        prompt, command, *words = shlex.split(line)
        assert (prompt, command) == ("$", "cotenant")
        done = run(*words, cwd=tmp_path, env=env)
        findings = (WARNINGS_EXIT, ERRORS_EXIT) if words[0] == "doctor" else ()  # the machine may have some
        assert done.returncode in (0, *findings), done.stderr
        assert done.stdout
