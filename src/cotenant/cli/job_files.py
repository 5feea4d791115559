# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Options of `cotenant submit` in files: `--file jobs.yaml`, and scripts with `#COTENANT` lines.

Both become words of a command line, which the options of `submit` themselves parse and check. So an option means the
same wherever it stands, and each error names the line of the file.
"""

import os
import shlex
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from cotenant.cli.options import CommandOfWords
from cotenant.client.requests import nearest
from cotenant.errors import CotenantError, InputError

if TYPE_CHECKING:
    from yaml import Node

MARK = "#COTENANT"
MOST_SCRIPT_BYTES = 256 * 1024
"""at the beginning of a script in which options are looked for"""
MOST_FILE_BYTES = 1024 * 1024
WORDS = "cotenant.words"
"""the key of a context under which the words of the command line are kept"""
NOT_IN_FILES = ("file", "dry_run", "wait", "interactive", "output", "on", "namespace", "kubeconfig", "context", "help")
"""options that say what the command does, not what a job is"""


class Line(NamedTuple):
    """Words of a command line that stand in a file."""

    number: int
    words: tuple[str, ...]


class FileJob(NamedTuple):
    """A job of a file."""

    number: int
    """of its first line"""
    command: tuple[str, ...]
    options: dict[str, Any]
    """by the names of the parameters of `submit`, as a command line would have them"""


class SubmitCommand(CommandOfWords):
    """`cotenant submit`, which also takes options from a script. The command line has precedence."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)
        rest = super().parse_args(ctx, list(args))
        command = ctx.params.get("command") or ()
        script = None if ctx.resilient_parsing or not command or ctx.params.get("file") else find_script(command[0])
        if script is not None:
            ctx.default_map = raw_options(self, script, script_lines(script))
            ctx.params.clear()
            rest = super().parse_args(ctx, list(args))
            ctx.params["command"] = (*interpreted(script), *command[1:])
        return rest


def find_script(word: str) -> Path | None:
    """The file that the first word of a command names, if it has `#COTENANT` lines."""
    path = Path(word)
    try:
        if ("/" not in word and shutil.which(word)) or not stat.S_ISREG(path.stat().st_mode):
            return None
        return path.absolute() if any(True for _ in script_lines(path)) else None
    except OSError:
        return None


def script_lines(script: Path) -> Iterator[Line]:
    """The options in the comment lines at the beginning of a script."""
    with script.open("rb") as file:
        head = file.read(MOST_SCRIPT_BYTES).decode(errors="replace")
    for number, line in enumerate(head.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        mark, _, rest = line.partition(" ")
        if mark == MARK:
            try:
                yield Line(number, tuple(shlex.split(rest, comments=True)))
            except ValueError as error:
                raise InputError(f"{script}:{number}: {str(error).lower()}") from None


def interpreted(script: Path) -> tuple[str, ...]:
    """The command that runs a script; one that is not executable is run by the program that its first line names."""
    if os.access(script, os.X_OK):
        return (str(script),)
    with script.open("rb") as file:
        first = file.readline(4096).decode(errors="replace").strip()
    if not first.startswith("#!") or not first[2:].split():
        raise InputError(f"{script}:1: expected a line such as #!/bin/sh, because the file is not executable")
    program, *argument = first[2:].strip().split(None, 1)  # the kernel passes the rest on as one word
    return (program, *argument, str(script))


def raw_options(command: click.Command, path: Path, lines: Iterator[Line] | Sequence[Line]) -> dict[str, Any]:
    """The options of some lines by the names of their parameters; later lines replace earlier ones, and a repeatable
    option is added. InputError names the line with an option that is not valid."""
    context = click.Context(command, info_name=command.name)
    parameters = {one.name: one for one in command.params}
    found: dict[str, Any] = {}
    for line in lines:
        where = f"{path}:{line.number}"
        try:
            values, _, _ = command.make_parser(context).parse_args(list(line.words))
            rest = values.pop("command", None)
            if isinstance(rest, tuple | list) and rest:  # else click's mark for no value
                raise InputError(f"expected options only, not {rest[0][:60]!r}")
            for name, value in values.items():
                if name in NOT_IN_FILES:
                    raise InputError(f"{max(parameters[name].opts, key=len)}: give it on the command line")
                with context:
                    parameters[name].handle_parse_result(context, {name: value}, [])
        except click.UsageError as error:
            raise InputError(f"{where}: {error.format_message()}") from None
        except CotenantError as error:
            raise InputError(f"{where}: {error}") from None
        for name, value in values.items():
            many = getattr(parameters[name], "multiple", False)
            found[name] = [*found.get(name, []), *value] if many else value
    return found


def read_jobs(command: click.Command, path: Path) -> list[FileJob]:
    """The jobs of a YAML file: one mapping, a list of them, or `defaults` and `jobs`."""
    import yaml

    from cotenant.wire.codec import read_bounded

    content = read_bounded(path, MOST_FILE_BYTES, "a YAML file with jobs")
    try:
        root = yaml.compose(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        at = "" if mark is None else f":{mark.line + 1}"
        raise InputError(f"{path}{at}: not YAML: {getattr(error, 'problem', None) or 'it cannot be read'}") from None
    if root is None:
        raise InputError(f"{path}: expected at least one job")
    defaults: list[Line] = []
    if isinstance(root, yaml.MappingNode) and any(key.value == "jobs" for key, _ in root.value):
        parts = dict(_entries(path, root, ("defaults", "jobs")))
        if "defaults" in parts:
            defaults = _lines(command, path, parts["defaults"])[1]
        root = parts["jobs"]
    nodes = root.value if isinstance(root, yaml.SequenceNode) else [root]
    if not nodes:
        raise InputError(f"{path}:{_number(root)}: expected at least one job")
    jobs = []
    for node in nodes:
        words, lines = _lines(command, path, node)
        if not words:
            raise InputError(
                f"{path}:{_number(node)}: the job has no command; add for example command: python train.py"
            )
        options = {**raw_options(command, path, defaults), **raw_options(command, path, lines)}
        jobs.append(FileJob(_number(node), words, options))
    return jobs


def _lines(command: click.Command, path: Path, node: "Node") -> tuple[tuple[str, ...], list[Line]]:
    """The command of a job, and its options as words of a command line."""
    known = {
        opt.removeprefix("--"): one
        for one in command.params
        if isinstance(one, click.Option) and one.name not in NOT_IN_FILES
        for opt in one.opts
        if opt.startswith("--")
    }
    words: tuple[str, ...] = ()
    lines = []
    for key, value in _entries(path, node, ("command", *known)):
        number = _number(value)
        if key == "command":
            words = _command(path, value)
        elif known[key].is_flag:
            if (text := _scalar(path, key, value)) not in ("true", "false"):
                raise InputError(f"{path}:{number}: {key}: expected true or false, not {text[:60]!r}")
            lines += [Line(number, (f"--{key}",))] if text == "true" else []
        else:
            lines += [Line(number, (f"--{key}={text}",)) for text in _texts(path, key, value, known[key].multiple)]
    return words, lines


def _entries(path: Path, node: "Node", known: Sequence[str]) -> Iterator[tuple[str, "Node"]]:
    """Keys and values of a mapping; InputError names the line of a key that is unknown, or comes twice."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path}:{_number(node)}: expected keys and values, for example command: python train.py")
    seen = set()
    for key, value in node.value:
        name = str(key.value).replace("_", "-") if isinstance(key, yaml.ScalarNode) else ""
        if name not in known:
            raise InputError(f"{path}:{_number(key)}: unknown key {name[:60]!r}{nearest(name, list(known))}")
        if name in seen:
            raise InputError(f"{path}:{_number(key)}: the key {name!r} comes a second time")
        seen.add(name)
        yield name, value


def _command(path: Path, node: "Node") -> tuple[str, ...]:
    """The words of a command: a list, or a text that is split as a shell would; no shell runs it."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return tuple(_scalar(path, "command", one) for one in node.value)
    try:
        return tuple(shlex.split(_scalar(path, "command", node)))
    except ValueError as error:
        raise InputError(f"{path}:{_number(node)}: command: {str(error).lower()}") from None


def _texts(path: Path, key: str, node: "Node", multiple: bool) -> list[str]:
    """The values of an option: one, or a list or a mapping if it can be repeated."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return [_scalar(path, key, node)]
    if not multiple:
        raise InputError(f"{path}:{_number(node)}: {key}: expected one value")
    if isinstance(node, yaml.SequenceNode):
        return [_scalar(path, key, one) for one in node.value]
    for _, value in node.value:
        if isinstance(value, yaml.MappingNode):  # aliases could make it endless
            raise InputError(f"{path}:{_number(value)}: {key}: expected one value, or a list of them")
    return [f"{_scalar(path, key, name)}={','.join(_texts(path, key, value, True))}" for name, value in node.value]


def _scalar(path: Path, key: str, node: "Node") -> str:
    """The text of a value as it stands in the file: a number keeps its form."""
    import yaml

    if not isinstance(node, yaml.ScalarNode) or node.tag.endswith(":null"):
        raise InputError(f"{path}:{_number(node)}: {key}: expected a value")
    return str(node.value)


def _number(node: "Node") -> int:
    return int(node.start_mark.line) + 1
