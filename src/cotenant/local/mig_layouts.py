# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Changes the MIG layouts of GPUs, all of them or none.

The file `mig.json` is written before anything is changed, and removed when everything is done or undone. As long as it
exists, the former layouts may have to be restored: after a failure at once, after a kill by the next daemon.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from cotenant.core.model import Machine
from cotenant.core.placement.mig_moves import Moves, Place, Placed
from cotenant.core.placement.repartition import Slices
from cotenant.errors import CotenantError, DeviceError
from cotenant.local.run_files import write_durably

RECORD = "mig.json"


class Layouts(Protocol):
    """What NVML can do with MIG instances."""

    def places(self, uuid: str) -> dict[str, Place]: ...

    def numbers(self, uuid: str) -> dict[str, int]: ...

    def layout(self, uuid: str, *, strict: bool = True) -> list[Placed]: ...

    def make(self, uuid: str, instance: Placed) -> None: ...

    def remove(self, uuid: str, number: int) -> None: ...

    def complete(self, uuid: str) -> None: ...


class _Change(msgspec.Struct, frozen=True, kw_only=True):
    gpu: str
    before: list[Placed]
    after: list[Placed]


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """The content of mig.json."""

    version: int = 1
    changes: list[_Change]


class RollbackError(CotenantError):
    """The former layouts could not be restored; the record stays, and the next start tries again."""


class LayoutChanges:
    """One set of changes at a time. Its methods wait for the driver, so they are called from a thread."""

    def __init__(self, state: Path, layouts: Layouts, step: Callable[[str], None] = lambda _: None) -> None:
        self._path, self._layouts = state / RECORD, layouts
        self._step = step
        """told before each step that changes something; tests kill the process there"""

    def begin(self, before: Mapping[str, Sequence[Placed]], moves: Mapping[str, Moves]) -> None:
        """Records what is going to be changed."""
        if self._path.exists():
            raise DeviceError("an earlier change of MIG layouts is not undone yet; restart the daemon to try again")
        changes = []
        for uuid, (remove, make) in moves.items():
            kept = [one for one in before[uuid] if one not in remove]
            changes.append(_Change(gpu=uuid, before=list(before[uuid]), after=[*kept, *make]))
        self._step("record")
        write_durably(str(self._path), msgspec.to_builtins(_Record(changes=changes)))

    def carry_out(self, moves: Mapping[str, Moves]) -> None:
        """Removes and makes instances. DeviceError, with the former layouts restored, if that fails."""
        try:
            for uuid, (remove, make) in moves.items():
                for old in remove:
                    self._step(f"remove {old.profile}")
                    self._layouts.remove(uuid, old.number)
                for new in make:
                    self._step(f"make {new.profile}")
                    self._layouts.make(uuid, new)
            record = self._recorded()
            self._step("verify")
            if record is None or not self._is_done(record):
                raise DeviceError("the driver made other instances than it was asked for")
        except DeviceError as error:
            self.restore()
            raise DeviceError(f"{error}; the former layouts are restored") from None
        self.forget()

    def restore(self) -> str | None:
        """Undoes what was begun and not done; a sentence if there was something. RollbackError if that fails."""
        record = self._recorded()
        if record is None:
            return None
        try:
            if self._is_done(record):
                text = "a change of MIG layouts was complete when the daemon was killed"
            else:
                for change in record.changes:
                    self._restore(change)
                text = "the former MIG layouts are restored"
        except DeviceError as error:
            raise RollbackError(f"the former MIG layouts cannot be restored: {error}") from None
        self.forget()
        return f"{text}: GPU {' '.join(change.gpu for change in record.changes)}"

    def recorded_gpus(self) -> tuple[str, ...]:
        """The GPUs that the record names; none if it cannot be read."""
        try:
            record = self._recorded()
        except RollbackError:
            record = None
        return () if record is None else tuple(change.gpu for change in record.changes)

    def forget(self) -> None:
        """Nothing has to be restored any more."""
        self._step("forget")
        self._path.unlink(missing_ok=True)

    def _restore(self, change: _Change) -> None:
        wanted = {_where(one): one for one in change.before}
        for found in self._layouts.layout(change.gpu, strict=False):
            if wanted.pop(_where(found), None) is None:
                if found.in_use:
                    raise DeviceError(f"GPU {change.gpu}: a process uses its new instance {found.profile}")
                self._step(f"undo {found.profile}")
                self._layouts.remove(change.gpu, found.number)
        for missing in wanted.values():
            self._step(f"restore {missing.profile}")
            self._layouts.make(change.gpu, missing)
        self._layouts.complete(change.gpu)

    def _is_done(self, record: _Record) -> bool:
        for change in record.changes:
            try:
                found = self._layouts.layout(change.gpu)
            except DeviceError:
                return False
            if sorted(map(_where, found)) != sorted(map(_where, change.after)):
                return False
        return True

    def _recorded(self) -> _Record | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError:
            broken = self._path.with_suffix(".unreadable")
            os.replace(self._path, broken)
            raise RollbackError(f"{broken}: cannot be read, so former MIG layouts are not known") from None


def _where(instance: Placed) -> tuple[str, int]:
    return instance.profile, instance.start


def slices_of(layouts: Layouts | None, machine: Machine) -> dict[str, Slices]:
    """What the driver says of the slices of partitioned GPUs; without those that do not answer."""
    found: dict[str, Slices] = {}
    if layouts is None:
        return found
    for card in {gpu.card for gpu in machine.gpus if gpu.card is not None}:
        with suppress(DeviceError):
            begins = {one.number: one.start for one in layouts.layout(card)}
            starts = {uuid: begins[number] for uuid, number in layouts.numbers(card).items() if number in begins}
            found[card] = Slices(layouts.places(card), starts)
    return found
