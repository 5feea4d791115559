# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A recording of what an engine decided: JSON lines, each with its version, from which every decision can be replayed.

A line of type `begin` has all nodes. Each later decision has the nodes that changed since the line before, so that the
cluster of every decision is known exactly, and a line stays short.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import msgspec

from cotenant.core.model import Job, Slot
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.wire.decision import VERSION as DECISION_VERSION
from cotenant.wire.decision import (
    RecordedCompany,
    RecordedDecision,
    RecordedMildness,
    RecordedNode,
    RecordedSpec,
    check_decision,
    check_nodes,
    compact,
    find_problem,
)

VERSION = 1
LONGEST_LINE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The engine and its cluster, at the beginning of a recording and of each of its parts."""

    type: ClassVar[str] = "begin"
    at: Seconds
    engine: str
    """local or kubernetes"""
    cotenant: str
    """version of the program"""
    policy: str
    queue: str = "fifo"
    backfill: bool = True
    nodes: tuple[RecordedNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A job came, or came back into the queue."""

    type: ClassVar[str] = "job"
    at: Seconds
    job: Job
    name: str = ""
    """what its owner calls it"""
    user: str = ""
    team: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A job was placed, or refused. The slots are the answer; all other fields are what the policy was given."""

    type: ClassVar[str] = "decision"
    at: Seconds
    job: Job
    slots: tuple[Slot, ...]
    """none: it was refused, and waits"""
    policy: str
    queue: str = "fifo"
    waits: str = ""
    """why it was refused although the policy may find a slot, for instance a quota; a replay cannot find it again"""
    nodes: tuple[RecordedNode, ...] = ()
    """those that changed since the last line with nodes"""
    gone: tuple[str, ...] = ()
    """nodes that are no longer there"""
    offered: tuple[str, ...] | None = None
    """the only nodes that were considered; None: all but those in `closed`"""
    closed: tuple[str, ...] = ()
    crowding: float | None = 0.0
    mix: tuple[RecordedSpec, ...] | None = None
    """None: that of the last decision"""
    companies: tuple[RecordedCompany, ...] = field(default=())
    mildness: tuple[RecordedMildness, ...] = field(default=())
    partial: bool = False
    """the predicted speeds of this cluster were too many to be recorded"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job left its slot."""

    type: ClassVar[str] = "end"
    at: Seconds
    job: str
    outcome: str
    """finished, failed, cancelled, lost, or queued: it goes back into the queue"""
    started: Seconds | None = None
    speed: float | None = None
    """mean measured speed of the run, as a part of its speed alone; None: not measured"""


Line: TypeAlias = Begin | Arrived | Decided | Ended
_TYPES: dict[str, type[Line]] = {one.type: one for one in (Begin, Arrived, Decided, Ended)}


def encode_line(line: Line) -> bytes:
    """One line of a recording, with its line break."""
    content = compact(line)
    assert isinstance(content, dict)
    return msgspec.json.encode({"version": VERSION, "type": line.type, **content}) + b"\n"


def decode_lines(lines: Iterable[bytes], source: str) -> Iterator[tuple[int, Line]]:
    """The lines of a recording with their numbers; InputError names the line that cannot be read.

    A last line without a line break was cut off by a kill or a full disk, and is left out.
    """
    empty = True
    for number, content in enumerate(lines, 1):
        if not content.endswith(b"\n"):
            break
        if content.strip():
            empty = False
            yield number, _decode(content, f"{source}:{number}")
    if empty:
        raise InputError(f"{source}: no complete line; expected a recording of `cotenant decisions`")


def _decode(content: bytes, where: str) -> Line:
    if len(content) > LONGEST_LINE:
        raise InputError(f"{where}: longer than {LONGEST_LINE} bytes; expected a line of a recording")
    try:
        raw = msgspec.json.decode(content)
        version = raw.pop("version", None) if isinstance(raw, dict) else None
        if version is None:
            raise InputError(f"{where}: not a line of a recording; expected the output of `cotenant decisions`")
        if version != VERSION:
            newer = isinstance(version, int) and version > VERSION
            hint = "; it was written by a newer cotenant: use that version" if newer else ""
            raise InputError(f"{where}: version {version!r:.40} of recordings; this cotenant reads {VERSION}{hint}")
        kind = _TYPES.get(str(raw.pop("type", None)))
        if kind is None:
            raise InputError(f"{where}: unknown type of line; expected one of {', '.join(_TYPES)}")
        line = msgspec.convert(raw, kind)
        problem = find_problem(raw, line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{where}: not a line of a recording: {error}") from None
    if problem is not None:
        raise InputError(f"{where}: {problem}")
    if isinstance(line, Begin | Decided):
        check_nodes(line.nodes, where)
    return line


@dataclass(slots=True)
class Follower:
    """Follows the nodes of a recording from line to line."""

    nodes: dict[str, RecordedNode] = field(default_factory=dict)
    mix: tuple[RecordedSpec, ...] = ()

    def apply(self, line: Line) -> None:
        """Takes over what a line says of the nodes. Call it with every line, before `decision`."""
        if isinstance(line, Begin):
            self.nodes = {one.machine.name: one for one in line.nodes}
        elif isinstance(line, Decided):
            for name in line.gone:
                self.nodes.pop(name, None)
            self.nodes |= {one.machine.name: one for one in line.nodes}
            self.mix = self.mix if line.mix is None else line.mix

    def decision(self, line: Decided, source: str) -> RecordedDecision:
        """The decision of a line with everything that the policy was given; InputError if the line is inconsistent."""
        offered = None if line.offered is None else frozenset(line.offered)
        others = () if offered is None else tuple(name for name in self.nodes if name not in offered)
        found = RecordedDecision(
            version=DECISION_VERSION,
            policy=line.policy,
            queue=line.queue,
            job=line.job,
            now=line.at,
            nodes=tuple(self.nodes[name] for name in sorted(self.nodes)),
            slots=line.slots,
            mix=self.mix,
            crowding=line.crowding,
            closed=(*line.closed, *others),
            waits=line.waits,
            companies=line.companies,
            mildness=line.mildness,
        )
        check_decision(found, source)
        return found
