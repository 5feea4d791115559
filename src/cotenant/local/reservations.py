# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Advance reservations of this machine: made, listed, cancelled and stored. Which jobs they keep from which GPUs is
decided by `core/queueing/advance.py`.

Each is stored under a key of its own before it is confirmed, with the UUIDs of its GPUs, so a daemon that is killed at
any moment finds it again.
"""

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from cotenant.core.model import Gpu, Job, Machine
from cotenant.core.queueing.advance import (
    SLACK,
    Advance,
    AdvanceReservation,
    Busy,
    Obstacle,
    choose,
    obstacles,
)
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.local import owners
from cotenant.local.account_settings import ReservationLimits
from cotenant.local.events import log_error
from cotenant.local.identity import KNOWN_S, Caller
from cotenant.local.journal import Journal
from cotenant.local.journal_schema import JournalError
from cotenant.local.owners import Owner
from cotenant.local.refusals import ForbiddenError, UnknownError
from cotenant.local.tenants import PlacedJob
from cotenant.wire.reservations import GpuReservation, ReservationRequest, ReservationView
from cotenant.wire.text import clock, counted

PREFIX, NEXT = "reservation/", "reservations-made"
"""the journal's keys: of each reservation, and of the number of the last one"""
LEAST_S = 60.0
LATE_S = 60.0
"""how far in the past a start may be: a request takes time"""
MOST = 1000
"""reservations of all users together"""
AHEAD_S = 366 * 86_400.0


class _Stored(msgspec.Struct, frozen=True):
    """A reservation as the journal stores it."""

    owner: Owner
    user: str | None
    group: str | None
    gpus: tuple[str, ...]
    start: float
    end: float
    evict: bool = False

    @property
    def whom(self) -> str:
        return self.user if self.user is not None else f"group {self.group}"


class Reservations:
    """The reservations that have not ended."""

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.time) -> None:
        self._journal, self._clock = journal, clock
        self._stored: dict[str, _Stored] = {}
        self._members: dict[str, tuple[float, frozenset[str]]] = {}
        """groups of users, and when they were looked up: that takes long"""
        for key, text in sorted(journal.recalled(PREFIX).items()):
            try:
                self._stored[key.removeprefix(PREFIX)] = msgspec.json.decode(text, type=_Stored)
            except msgspec.MsgspecError as error:
                log_error(f"the reservation {key.removeprefix(PREFIX)} cannot be read and is ignored: {error}")

    # Commands

    def make(
        self,
        request: ReservationRequest,
        caller: Caller,
        machine: Machine,
        placed: Iterable[PlacedJob],
        limits: ReservationLimits,
    ) -> ReservationView:
        """Stores a reservation durably; InputError or ForbiddenError if it is refused."""
        now = self._clock()
        start = now if request.start is None else max(now, request.start)
        if request.start is not None and request.start < now - LATE_S:
            raise InputError(f"--from: {clock(request.start, now)} is in the past; reserve from now on, or later")
        if request.length_s < LEAST_S:
            raise InputError(f"--for: a reservation takes at least {LEAST_S:.0f} s")
        if start > now + AHEAD_S:
            raise InputError("--from: a reservation starts within a year")
        end = start + request.length_s
        wanted = self._addressed(request, caller)
        count = len(set(request.on)) or request.gpus
        self.expire()
        if not caller.administrator:
            self._refuse_above(limits, caller.owner, count, request.length_s, start - now)
        if len(self._stored) >= MOST:
            raise InputError(f"there are {MOST} reservations; cancel some with `cotenant reserve cancel ID`")
        trial = AdvanceReservation(id="", gpus=frozenset(), start=Seconds(start), end=Seconds(end))
        busy = self._busy(wanted, machine, placed)
        found = obstacles(machine, busy, self._advances(), trial.start, trial.end, evict=request.evict)
        chosen = self._chosen(request, count, machine, found, busy)
        stored = msgspec.structs.replace(
            wanted, gpus=tuple(machine.gpus[i].uuid for i in chosen), start=start, end=end, evict=request.evict
        )
        name = self._store(stored)
        leaving = [one for index in chosen for one in busy.get(index, ())]
        return msgspec.structs.replace(self._view(name, machine), notes=tuple(self._notes(leaving, start, request)))

    def cancel(self, name: str, machine: Machine) -> ReservationView:
        """Removes a reservation durably; the jobs that run in it continue."""
        view = msgspec.structs.replace(self.view(name, machine), state="cancelled")
        self._remove(name)
        return view

    def expire(self) -> None:
        """Forgets reservations that have ended. On a full disk they stay in the journal until the next start."""
        for name in [name for name, one in self._stored.items() if one.end <= self._clock()]:
            try:
                self._remove(name)
            except JournalError as error:
                log_error(str(error))
                del self._stored[name]

    # Answers

    def owner(self, name: str) -> Owner:
        """Who may cancel it; UnknownError if there is none."""
        return self._found(name).owner

    def view(self, name: str, machine: Machine) -> ReservationView:
        self._found(name)
        return self._view(name, machine)

    def views(self, machine: Machine) -> list[ReservationView]:
        """All of them, the first to start first."""
        current = (name for name, one in self._stored.items() if one.end > self._clock())
        return sorted((self._view(name, machine) for name in current), key=lambda one: (one.start, one.id))

    def by_gpu(self) -> dict[str, tuple[GpuReservation, ...]]:
        """The reservations of each GPU by UUID, the first to start first."""
        found: dict[str, tuple[GpuReservation, ...]] = {}
        for name, one in sorted(self._stored.items(), key=lambda item: item[1].start):
            shown = GpuReservation(id=name, whom=one.whom, start=one.start, end=one.end)
            if one.end > self._clock():
                found |= {uuid: (*found.get(uuid, ()), shown) for uuid in one.gpus}
        return found

    def next_change(self) -> float | None:
        """The next time at which a reservation starts or ends; None: no such time is known."""
        now = self._clock()
        return min((at for one in self._stored.values() for at in (one.start, one.end) if at > now), default=None)

    def advance(self, machine: Machine) -> Advance | None:
        """What a pass must know; None: nothing is reserved."""
        if not self._stored:
            return None
        everything = frozenset(gpu.uuid for gpu in machine.gpus)
        return Advance(self._advances(), self._admits, everything)

    def check_job(self, name: str, owner: Owner, gpus: int) -> None:
        """InputError if a user cannot submit such a job for a reservation."""
        found = self._found(name)
        if not self._is_for(found, owner.user):
            raise InputError(f"--reservation {name}: it is for {found.whom}; `cotenant reserve list` lists yours")
        if gpus > len(found.gpus):
            raise InputError(f"--reservation {name}: it has {counted(len(found.gpus), 'GPU')}, the job needs {gpus}")

    def evicting(self) -> list[tuple[str, AdvanceReservation]]:
        """The reservations that have started and whose GPUs others must leave, each with the sentence for them."""
        now = self._clock()
        return [
            (f"{one.whom} has reserved its GPU until {clock(one.end, now)} ({name})", self._as_advance(name, one))
            for name, one in self._stored.items()
            if one.evict and one.start <= now < one.end
        ]

    def admits(self, reservation: AdvanceReservation, job: Job) -> bool:
        """Whether a job may use the GPUs of a reservation while it lasts."""
        return self._admits(reservation, job)

    def refuse_longer(self, job: Job, gpus: Iterable[Gpu], ends: float | None) -> None:
        """InputError if a job that runs on these GPUs would reach into a reservation of others with another time
        limit, which ends it at this time (None: never)."""
        now, held = self._clock(), {gpu.uuid for gpu in gpus}
        for one in self._advances():
            late = ends is None or ends + SLACK > one.start
            if late and one.end > now and held & one.gpus and not self._admits(one, job):
                stored = self._stored[one.id]
                raise InputError(
                    f"--time: its GPU is reserved for {stored.whom} from {clock(one.start, now)} on ({one.id}); "
                    "the job must end before"
                )

    def why(self, job: Job, now: Seconds, machine: Machine) -> str:
        """Why reservations keep a job from some GPUs; empty: they do not."""
        advance = self.advance(machine)
        if advance is None:
            return ""
        own = advance.own(job)
        if own is not None and own.start > now:
            return f"its reservation {own.id} starts at {clock(own.start, now)}"
        if own is not None:
            return f"it is for the reservation {own.id} and starts on its GPUs only"
        return "; ".join(self._why_blocked(one, job, now, machine) for one in advance.blocking(job, now))

    def _why_blocked(self, one: AdvanceReservation, job: Job, now: Seconds, machine: Machine) -> str:
        stored = self._stored[one.id]
        indices = [str(i) for i, gpu in enumerate(machine.gpus) if gpu.uuid in one.gpus]
        what = f"GPU{'s' * (len(indices) > 1)} {' '.join(indices)} {'are' if len(indices) > 1 else 'is'} reserved for"
        if one.start <= now:
            return f"{what} {stored.whom} until {clock(one.end, now)} ({one.id})"
        length = "this job has no time limit" if job.limit is None else "this job could run longer"
        return f"{what} {stored.whom} from {clock(one.start, now)} on ({one.id}), and {length}"

    # Parts

    def _found(self, name: str) -> _Stored:
        found = self._stored.get(name)
        if found is None or found.end <= self._clock():
            raise UnknownError(f"no reservation {name[:40]!r} here; `cotenant reserve list` lists them")
        return found

    def _view(self, name: str, machine: Machine) -> ReservationView:
        one = self._stored[name]
        return ReservationView(
            id=name,
            owner=one.owner.user,
            user=one.user,
            group=one.group,
            gpus=tuple(i for i, gpu in enumerate(machine.gpus) if gpu.uuid in one.gpus),
            start=one.start,
            end=one.end,
            state="active" if one.start <= self._clock() else "pending",
            evict=one.evict,
        )

    def _addressed(self, request: ReservationRequest, caller: Caller) -> _Stored:
        """For whom it is, and who may cancel it: a user whom it is for, else who made it."""
        if request.user is not None and request.group is not None:
            raise InputError("give --user or --group, not both")
        if request.evict and not caller.administrator:
            raise ForbiddenError("--evict stops jobs of others, which only administrators may do")
        owner, user = caller.owner, None if request.group is not None else caller.user
        if request.user is not None and request.user != caller.user:
            owner, user = owners.account_named(request.user).owner, request.user
            if not caller.administrator:
                raise ForbiddenError(
                    f"only administrators reserve GPUs for others: ask one, or leave out --user {user}"
                )
        if request.group is not None:
            owners.check_group(request.group)
            if request.group not in caller.groups and not caller.administrator:
                raise ForbiddenError(
                    f"{caller.user} is not in the group {request.group}; only administrators reserve for it"
                )
        return _Stored(owner, user, request.group, (), 0.0, 0.0)

    def _refuse_above(
        self, limits: ReservationLimits, owner: Owner, count: int, length_s: float, ahead_s: float
    ) -> None:
        """ForbiddenError if an ordinary user reserves too much."""
        have = sum(one.owner.uid == owner.uid for one in self._stored.values())
        text = None
        if limits.most == 0:
            text = f"{owner.user} may not reserve GPUs: no `reservations` in the accounts file allows it"
        elif have >= limits.most:
            text = f"{owner.user} has {have} of at most {counted(limits.most, 'reservation')}"
        elif length_s > limits.hours * 3600:
            text = f"{owner.user} may reserve for at most {limits.hours:g} h"
        elif limits.gpus is not None and count > limits.gpus:
            text = f"{owner.user} may use at most {limits.gpus:g} GPUs"
        elif ahead_s > limits.days_ahead * 86_400:
            text = f"{owner.user} may reserve at most {limits.days_ahead:g} days ahead"
        if text is not None:
            raise ForbiddenError(f"{text}; administrators are not limited")

    def _busy(self, wanted: _Stored, machine: Machine, placed: Iterable[PlacedJob]) -> dict[int, list[Busy]]:
        """The jobs on each GPU that a reservation would not be for."""
        found: dict[int, list[Busy]] = {}
        for one in placed:
            job = one.placement.job
            if job.account and self._is_for(wanted, job.account[-1]):
                continue
            until = None if job.limit is None else Seconds(one.started + job.limit)
            for gpu in one.gpus:
                found.setdefault(gpu, []).append(Busy(job.id, until))
        return found

    def _chosen(
        self,
        request: ReservationRequest,
        count: int,
        machine: Machine,
        found: list[Obstacle | None],
        busy: Mapping[int, list[Busy]],
    ) -> tuple[int, ...]:
        """The GPUs of a new reservation; InputError says what is in the way."""
        if not request.on:
            chosen = choose(count, found, busy)
            if chosen is None:
                free = found.count(None)
                raise InputError(
                    f"{counted(free, 'GPU')} of {len(found)} can be reserved then, not {count}: "
                    f"{'; '.join(self._sentences(found)) or 'there are no more'}; reserve fewer, or another time"
                )
            return chosen
        indices = tuple(_index(machine, name) for name in dict.fromkeys(request.on))
        there = [one if index in indices else None for index, one in enumerate(found)]
        if any(there):
            raise InputError(f"{'; '.join(self._sentences(there))}; reserve other GPUs, or another time")
        return tuple(sorted(set(indices)))

    def _sentences(self, found: list[Obstacle | None]) -> Iterable[str]:
        now = self._clock()
        for index, one in enumerate(found):
            if one is None:
                continue
            if one.reserved is not None:
                stored, name = self._stored[one.reserved.id], one.reserved.id
                until = clock(stored.end, now)
                yield f"GPU {index} is reserved for {stored.whom} from {clock(stored.start, now)} to {until} ({name})"
            elif one.busy is not None:
                until = "has no time limit" if one.busy.until is None else f"may run until {clock(one.busy.until, now)}"
                yield f"{one.busy.job} on GPU {index} {until}"
            else:
                yield f"GPU {index} is {one.unusable}"

    def _notes(self, leaving: list[Busy], start: float, request: ReservationRequest) -> Iterable[str]:
        now = self._clock()
        for one in sorted(set(leaving)):
            late = one.until is None or one.until + SLACK > start
            if late and request.evict:
                yield f"{one.job} is stopped and queued again at {clock(start, now)} if it still runs"
            elif one.until is not None:
                yield f"{one.job} runs there now, and its time limit ends it by {clock(one.until, now)}"

    def _store(self, stored: _Stored) -> str:
        """A number is never used twice, so a job cannot get into a later reservation."""
        number = int(self._journal.recall(NEXT) or "0") + 1
        name = f"r-{number:06d}"
        with self._journal.transaction():
            self._journal.remember(NEXT, str(number))
            self._journal.remember(PREFIX + name, msgspec.json.encode(stored).decode())
        self._stored[name] = stored
        return name

    def _remove(self, name: str) -> None:
        self._journal.remember(PREFIX + name, None)
        del self._stored[name]

    def _advances(self) -> tuple[AdvanceReservation, ...]:
        now = self._clock()
        return tuple(self._as_advance(name, one) for name, one in self._stored.items() if one.end > now)

    def _as_advance(self, name: str, one: _Stored) -> AdvanceReservation:
        return AdvanceReservation(id=name, gpus=frozenset(one.gpus), start=Seconds(one.start), end=Seconds(one.end))

    def _admits(self, reservation: AdvanceReservation, job: Job) -> bool:
        stored = self._stored.get(reservation.id)
        return stored is not None and bool(job.account) and self._is_for(stored, job.account[-1])

    def _is_for(self, one: _Stored, user: str) -> bool:
        return one.user == user if one.user is not None else one.group in self._groups(user)

    def _groups(self, user: str) -> frozenset[str]:
        at, found = self._members.get(user, (0.0, frozenset[str]()))
        if not at or time.monotonic() - at > KNOWN_S:
            found = owners.groups_of(user)
            self._members[user] = time.monotonic(), found
        return found


def _index(machine: Machine, name: str) -> int:
    found = next((i for i, gpu in enumerate(machine.gpus) if name in (str(i), gpu.uuid)), None)
    if found is None:
        raise InputError(f"--on {name[:40]}: no such GPU here; `cotenant gpus` lists them")
    return found
