# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Notices about jobs, which are sent with the rights of their owners.

A notice is stored in the transaction that changes the state of the job, so none is forgotten. It is sent by a
supervisor in a folder of its own, as a run of a job is: what has begun is never begun again, whenever the daemon is
killed; it has little time; and no process of it is left. So a notice is sent once, unless the machine goes down, or the
supervisor is killed, while it is sent: then it may not arrive.
"""

import asyncio
import json
import os
import shutil
import socket
from collections import Counter
from collections.abc import Mapping
from email.message import EmailMessage
from functools import partial
from typing import Any

import msgspec

from cotenant.client.endings import ending_of
from cotenant.errors import CotenantError
from cotenant.local import attempts, notifier
from cotenant.local.array_views import array_view
from cotenant.local.config import Resources
from cotenant.local.events import Events, log_error
from cotenant.local.journal import Journal
from cotenant.local.journal_rows import StoredNotice, array_id
from cotenant.local.lifecycle import ENDED, JobRecord, JobState, request_of, unreadable
from cotenant.local.logins import login_environment
from cotenant.local.run_files import Spec
from cotenant.local.runs import Runs
from cotenant.node.launch import ISOLATION
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView, shown_name
from cotenant.wire.notices import Way, When, parse_notice

MOST_AT_A_TIME, MOST_OF_A_USER = 8, 2
"""notices that are being sent"""
TIME_S, GRACE_S = 60.0, 2.0
"""that sending one may take, and between SIGTERM and SIGKILL"""
NOTIFIED, SENT = "notified", ": sent"
"""the kind of the event about a notice, and what its text has if the notice was sent"""
MOST_PROCESSES = 32
MOST_MEMORY_MIB = 1024
SENDMAIL_FOLDERS = "/usr/sbin:/usr/lib:/usr/bin"
LOG_BYTES = 64 * 1024
RETRY_S = 10.0
"""until the journal is read again, if that failed"""


class Notifications:
    """The notices of one daemon. Called from its event loop."""

    def __init__(self, journal: Journal, resources: Resources, events: Events, time_s: float = TIME_S) -> None:
        self._journal, self._resources, self._events, self._time_s = journal, resources, events, time_s
        self._runs = Runs(resources.jobs)
        self._runs.changed.subscribe(self._on_run_change)
        self._sending: dict[int, StoredNotice] = {}
        self._is_due = False

    def note(self, record: JobRecord) -> None:
        """Stores the notices about the state that a job has now, within the transaction that changed it."""
        if b'"notify"' not in record.request:
            return
        request, moments = request_of(record), _moments(record)
        view = _view(record)
        if record.array is not None:
            whole = self._end_of_array(record) if record.state in ENDED else None
            if whole is None:
                return
            moments, view = _moments_of_array(whole), whole
        for number, text in enumerate(request.notify):
            notice = parse_notice(text)
            chosen = [moment for moment in moments if moment in notice.when]
            if chosen:
                content = {"number": number, "when": chosen[0], "job": _facts(view, record, chosen[0])}
                self._journal.add_notice(record, msgspec.json.encode(content))
                self._send_soon()

    def _send_soon(self) -> None:
        """Sends what is due, once the transaction has ended."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.try_to_send)

    def try_to_send(self) -> None:
        """As `send`. If the journal cannot be read or written now, it is tried again later: jobs matter more."""
        self._is_due = False
        try:
            self.send()
        except (CotenantError, OSError) as error:
            log_error(f"notices cannot be sent now: {error}")
            asyncio.get_running_loop().call_later(RETRY_S, self._send_soon)

    def send(self) -> None:
        """Begins to send the notices that are due, in their order; those of one user at most two at a time."""
        users = Counter(one.uid for one in self._sending.values())
        for one in self._journal.oldest_notices(MOST_OF_A_USER):
            if len(self._sending) >= MOST_AT_A_TIME:
                return
            if one.number in self._sending or users[one.uid] >= MOST_OF_A_USER:
                continue
            record = self._journal.find(one.job)
            if record is None or unreadable(record._replace(slot=None)) is not None:
                log_error(f"a notice about {one.job} is not sent: this version cannot read the job")
                self._journal.remove_notice(one.number)
                continue
            users[one.uid] += 1
            self._sending[one.number] = one
            name = _run_name(one)
            if attempts.was_started(self._runs.folder(name, 1)):  # by a daemon that was killed
                self._runs.look(name, 1)
            else:
                self._runs.begin(name, 1, partial(self._start, one, record))

    def close(self) -> None:
        self._runs.close()

    def _end_of_array(self, record: JobRecord) -> JobView | None:
        """The array of an element that was the last to end; None: other elements have not ended."""
        number = record.array or 0
        array = self._journal.find_array(array_id(number)) if self._journal.has_ended(number) else None
        return None if array is None else array_view(self._journal, array, with_request=False)

    def _start(self, one: StoredNotice, record: JobRecord) -> None:
        folder = self._runs.folder(_run_name(one), 1)
        attempts.prepare(folder, self._spec(one, record))
        self._resources.launch(folder)

    def _spec(self, one: StoredNotice, record: JobRecord) -> Spec:
        request, content = request_of(record), msgspec.json.decode(one.content)
        notice = parse_notice(request.notify[content["number"]])
        spec = Spec(
            argv=list(notice.words) if notice.way is Way.COMMAND else ["notify"],
            cwd=request.cwd if notice.way is Way.COMMAND else "/",
            env={**self._environment(record, request), **_variables(content["job"])},
            program=None if notice.way is Way.COMMAND else os.path.abspath(notifier.__file__),
            time_s=self._time_s,
            grace_s=GRACE_S,
            max_processes=MOST_PROCESSES,
            rlimit_data_mib=MOST_MEMORY_MIB,
            log_bytes=LOG_BYTES,
            log_files=1,
        )
        told = {
            "id": f"{one.job}-{one.number}",
            "way": notice.way,
            "target": notice.words[0] or record.user,
            "sendmail": _sendmail(spec.env if self._resources.runtime is None else os.environ),
            "mail": message_of(notice.words[0] or record.user, content["job"]) if notice.way is Way.MAIL else None,
            "job": content["job"],
        }
        spec.env[notifier.VARIABLE] = msgspec.json.encode(told if spec.program else content["job"]).decode()
        if self._resources.runtime is None:
            return spec
        origin = self._journal.origin(record.id)
        umask = None if origin is None else origin.umask
        # Most mail systems have a sendmail with rights of its own, which puts mails into their queue.
        mails = notice.way is Way.MAIL
        return spec._replace(uid=record.uid, user=record.user, umask=umask, new_privileges=mails)

    def _environment(self, record: JobRecord, request: JobRequest) -> dict[str, str]:
        own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        base = own if self._resources.runtime is None else login_environment(record.owner)
        return {**base, **{name: value for name, value in request.env.items() if name != ISOLATION}}

    def _on_run_change(self, name: str, _attempt: int, status: attempts.Status) -> None:
        """A notice was sent, or it is known that it was not."""
        if status.state == "running":
            return
        number = int(name.rpartition("-")[2])
        one = self._sending[number]
        content = msgspec.json.decode(one.content)
        notice = parse_notice(request_of(self._journal.job(one.job)).notify[content["number"]])
        folder = self._runs.folder(name, 1)
        if status.exit is not None and status.exit.outcome == "exited" and status.exit.code == 0:
            text = f"{notice.text}{SENT} ({content['when']})"
        elif status.exit is not None:
            lines = attempts.last_lines(folder, 1)
            why = status.exit.error or (lines[0] if lines else f"exit code {status.exit.code}")
            text = f"{notice.text} failed ({content['when']}): {why}"[:500]
        else:
            text = f"{notice.text}: not known whether it was sent ({content['when']}): its supervisor was killed"
        with self._journal.transaction():
            self._journal.remove_notice(number)
            self._events.record(NOTIFIED, one.job, text)
        del self._sending[number]
        self._send_soon()


def _run_name(one: StoredNotice) -> str:
    """Of the run that sends a notice: its folder is in that of the job, and is removed with it."""
    return f"{one.job}/notice-{one.number}"


def _moments(record: JobRecord) -> tuple[When, ...]:
    """What there is to say about a job in this state."""
    if record.state is JobState.RUNNING:
        return (When.START,)
    if record.state not in ENDED:
        return ()
    if record.state is JobState.CANCELLED:
        return (When.END,)
    done = record.state is JobState.FINISHED and record.outcome == "exited" and record.code == 0
    return (When.OK, When.END) if done else (When.FAILED, When.END)


def _moments_of_array(view: JobView) -> tuple[When, ...]:
    if view.outcome == "cancelled":
        return (When.END,)
    return (When.OK, When.END) if view.code == 0 else (When.FAILED, When.END)


def _view(record: JobRecord) -> JobView:
    request = request_of(record)
    return JobView(
        id=record.id,
        user=record.user,
        name=shown_name(request.name, request.command[0]),
        state=record.state,
        submitted=record.submitted,
        started=record.started,
        ended=record.ended,
        outcome=record.outcome,
        code=record.code,
        signal=record.signal,
        error=record.error,
        attempts=record.attempts,
    )


def _facts(view: JobView, record: JobRecord, moment: When) -> dict[str, Any]:
    """What a notice says."""
    text = f"{view.id} has started" if moment is When.START else ending_of(view)
    return {
        "event": "start" if moment is When.START else "end",
        "id": view.id,
        "name": view.name,
        "user": record.user,
        "host": socket.gethostname(),
        "state": view.state,
        "outcome": view.outcome,
        "code": view.code,
        "signal": view.signal,
        "error": view.error,
        "submitted": view.submitted,
        "started": view.started,
        "ended": view.ended,
        "text": f"{text} ({view.name})",
    }


def _sendmail(environment: Mapping[str, str]) -> str | None:
    """The path of the program that takes mails; None: there is none. For other users than that of the daemon it is one
    of the machine, never of the user, because it keeps its own rights."""
    return shutil.which("sendmail", path=f"{environment.get('PATH', '')}:{SENDMAIL_FOLDERS}")


def message_of(address: str, facts: dict[str, Any]) -> str:
    """The text of a mail. It is made here, because the sender may not be able to import what this needs."""
    message = EmailMessage()
    # `=?` would begin an encoded word, in which the name of a job could hide a line break or invalid characters.
    subject = " ".join(f"cotenant: {facts['text']}".split()).replace("=?", "= ?")[:200]
    message["To"], message["Subject"] = address, subject
    message.set_content(f"{facts['text']}\n\n{json.dumps(facts, indent=2)}\n")
    return message.as_string()


def _variables(facts: dict[str, Any]) -> dict[str, str]:
    """The same for commands, as variables."""
    names = ("event", "id", "name", "state", "outcome", "code", "signal", "error", "text")
    return {f"COTENANT_JOB_{name.upper()}": str(facts[name]) for name in names if facts[name] is not None}
