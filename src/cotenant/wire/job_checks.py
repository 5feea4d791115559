# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests from outside, checked beyond their types: each fault is an InputError that says what is expected instead."""

import re

import msgspec

from cotenant.errors import InputError
from cotenant.wire.arrays import ARRAY_ID, ELEMENT_ID
from cotenant.wire.codec import decode
from cotenant.wire.job_demands import demand_of
from cotenant.wire.job_requests import JOB_ID, JobChange, JobList, JobRequest
from cotenant.wire.notices import When, parse_notice

MOST_SHARED_BYTES = 32 * 1024 * 1024
"""of the variables that the jobs of a list share, counted once for each job, because each job stores them"""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def decode_request(content: bytes) -> JobRequest:
    """A request from outside, checked beyond its types; InputError says what is expected instead."""
    return checked_request(decode(content, JobRequest, "a job"))


def decode_list(content: bytes) -> list[JobRequest]:
    """Several requests from outside, each with all of its variables; `checked_request` checks them beyond their
    types."""
    found = decode(content, JobList, "a list of jobs")
    size = len(found.jobs) * len(msgspec.json.encode(found.env))
    if size > MOST_SHARED_BYTES:
        raise InputError(
            f"the variables of {len(found.jobs)} jobs would be {size >> 20} MiB, and may be "
            f"{MOST_SHARED_BYTES >> 20} MiB: submit fewer jobs at a time, or with fewer variables"
        )
    return [msgspec.structs.replace(one, env={**found.env, **one.env}) for one in found.jobs]


def change_text(change: JobChange) -> str:
    """The new values, as options."""
    names = ("priority", "memory", "compute", "name")
    texts = [f"--{name} {value}" for name in names if (value := getattr(change, name)) is not None]
    return " ".join([*texts, *([] if change.time_s is None else [f"--time {change.time_s:g}s"])])


def changed_by(request: JobRequest, change: JobChange) -> JobRequest:
    """The request with other values; InputError if they contradict it."""
    values = {name: value for name in change.__struct_fields__ if (value := getattr(change, name)) is not None}
    return checked_request(msgspec.structs.replace(request, **values))


def checked_request(request: JobRequest) -> JobRequest:
    """The request itself; InputError says what is wrong with it."""
    demand_of(request)
    if request.name is not None and any(form.fullmatch(request.name) for form in (JOB_ID, ARRAY_ID, ELEMENT_ID)):
        raise InputError(f"--name {request.name}: this is the form of a job ID; choose another name")
    for notice in map(parse_notice, request.notify):
        if request.array is not None and notice.when == {When.START}:
            raise InputError("--notify start: notices about an array are sent at its end; use end, ok or failed")
    for name, value in request.env.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in value:
            raise InputError(f"environment variable {name!r}: expected letters, digits and _ in its name")
    if request.terminal is not None and request.array is not None:
        raise InputError("--interactive: an array has no terminal; submit one job")
    if any("\0" in word for word in (*request.command, request.cwd)):
        raise InputError("the command contains a NUL character")
    return request
