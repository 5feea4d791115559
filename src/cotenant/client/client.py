# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The client of the daemon, with which commands and Python programs submit, watch and change jobs."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from cotenant.client.addresses import Address, find_address, system_socket
from cotenant.client.http import Response, at, exchange
from cotenant.client.problems import JobFailedError, NoDaemonError, raise_problem
from cotenant.errors import CotenantError, InputError
from cotenant.wire.job_requests import JobList, JobRequest
from cotenant.wire.job_views import ENDED, JobView, decode_states

if TYPE_CHECKING:
    from typing import Unpack

    from cotenant.client.requests import JobOptions

T = TypeVar("T")
TIMEOUT_S = 30.0
POLL_S = 0.2
"""between two looks at a job that is waited for"""


class Client:
    """Sends requests to the daemon, decodes the answers into types and raises errors.

    Every method may be called from any thread; each request has a connection of its own.
    """

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        *,
        at: Path | None = None,
        url: str | None = None,
        token: str | None = None,
    ) -> None:
        """By default the daemon is found as the commands find it: by `COTENANT_URL` and `COTENANT_TOKEN_FILE`, else on
        this machine. `at` is the only unix socket that is tried. `url` and `token` are for a daemon that listens on
        TCP. `timeout_s` is the longest time until an answer begins."""
        self._timeout_s, self._at, self._url, self._token = timeout_s, at, url, token

    def submit(self, command: Sequence[str], **options: "Unpack[JobOptions]") -> "Job":
        """Submits a command, or an array of them if `array` or `grid` is given. When this returns, the job is accepted
        and on the disk of the daemon."""
        from cotenant.client.requests import make_request

        return self.submit_request(make_request(command, options))

    def submit_request(self, request: JobRequest) -> "Job":
        """Submits a request that was made before."""
        return Job(self, self.post("/v1/jobs", JobView, encoded(request)))

    def submit_requests(self, requests: Sequence[JobRequest], *, dry_run: bool = False) -> "list[Job]":
        """Submits several requests: all are accepted or none. With `dry_run` nothing is stored, and the jobs have no
        ID. A variable that all of them have is sent once."""
        first = requests[0].env if requests else {}
        shared = {name: value for name, value in first.items() if all(one.env.get(name) == value for one in requests)}
        own = [{name: value for name, value in one.env.items() if name not in shared} for one in requests]
        jobs = tuple(msgspec.structs.replace(one, env=env) for one, env in zip(requests, own, strict=True))
        body = encoded(JobList(jobs=jobs, env=shared))
        found = self.post(f"/v1/submissions?dry_run={int(dry_run)}", list[JobView], body)
        return [Job(self, one) for one in found]

    def job(self, name: str) -> "Job":
        """A job or an array, by its ID or its newest name."""
        return Job(self, self.view(name))

    def view(self, name: str) -> JobView:
        """A job or an array as it is now."""
        return self.get(f"/v1/jobs/{at(name)}", JobView)

    def jobs(self, state: str = "", *, mine: bool = False, limit: int = 1000) -> "list[Job]":
        """The newest jobs, oldest first: in these states (such as `queued,failed`; all if it is empty), and only those
        of the caller if `mine`."""
        query = f"state={at(','.join(decode_states(state)))}&limit={limit}&mine={int(mine)}&requests=1"
        return [Job(self, one) for one in self.get(f"/v1/jobs?{query}", list[JobView])]

    def act(self, name: str, verb: str) -> JobView:
        """Cancels, holds, releases or retries a job (the last part of the path of the request)."""
        return self.post(f"/v1/jobs/{at(name)}/{verb}", JobView)

    def wait_for(self, name: str, most_s: float = math.inf) -> JobView:
        """The job when it has ended, or as it is after `most_s`."""
        until = time.monotonic() + most_s
        while (view := self.view(name)).state not in ENDED and time.monotonic() < until:
            time.sleep(POLL_S)
        return view

    def log(
        self,
        name: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
        offset: int | None = None,
        on_headers: Callable[[Mapping[bytes, bytes]], None] | None = None,
    ) -> Iterator[bytes]:
        """Yields the output of a job as it arrives: of the latest or another attempt, from an offset or the last lines;
        with `follow` until the job has ended."""
        options = {"follow": int(follow), "tail": tail, "attempt": attempt, "offset": offset}
        query = "&".join(f"{key}={value}" for key, value in options.items() if value is not None)
        return self.lines(f"/v1/jobs/{at(name)}/log?{query}", on_headers)

    def get(self, path: str, kind: type[T]) -> T:
        return self._request("GET", path, kind)

    def post(self, path: str, kind: type[T], body: bytes = b"") -> T:
        return self._request("POST", path, kind, body)

    def lines(self, path: str, on_headers: Callable[[Mapping[bytes, bytes]], None] | None = None) -> Iterator[bytes]:
        """Yields the chunks of a streamed answer (a log, or events) as they arrive; the headers come first."""
        with self._response("GET", path, b"", timeout=None) as response:
            if on_headers is not None:
                on_headers(response.headers)
            yield from response.chunks()

    def _request(self, method: str, path: str, kind: type[T], body: bytes = b"") -> T:
        with self._response(method, path, body, self._timeout_s) as response:
            content = b"".join(response.chunks())
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise CotenantError(
                f"the daemon's answer cannot be decoded: {error}; is the daemon of another version?"
            ) from None

    @property
    def is_remote(self) -> bool:
        """Whether the daemon is asked over TCP."""
        return not isinstance(self._address().place, str)

    def _address(self) -> Address:
        return find_address(self._url, self._token) if self._at is None else Address(str(self._at))

    @contextmanager
    def _response(self, method: str, path: str, body: bytes, timeout: float | None) -> Iterator[Response]:
        address = self._address()
        try:
            with exchange(address.place, method, path, body, address.headers, timeout, address.tls) as response:
                if response.status >= 400:
                    raise_problem(response.status, b"".join(response.chunks()))
                yield response
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoDaemonError(_no_daemon(address)) from None
        except PermissionError:
            raise NoDaemonError(
                f"you may not open {address.place}: ask an administrator of this machine for access, or use a daemon "
                "of your own with `cotenant up --detach`"
            ) from None
        except TimeoutError:
            raise NoDaemonError(f"the daemon did not answer within {timeout:g} s") from None
        except (OSError, ValueError) as error:
            raise NoDaemonError(f"the daemon does not answer: {str(error) or type(error).__name__}") from None


class Job:
    """A job that the daemon has accepted, or an array of jobs."""

    def __init__(self, client: Client, view: JobView) -> None:
        self.client, self._view = client, view

    def __repr__(self) -> str:
        return f"<Job {self.id} ({self._view.state})>"

    @property
    def id(self) -> str:
        """Such as `j-000001`, or `a-000001` for an array."""
        return self._view.id

    @property
    def view(self) -> JobView:
        """What was last heard of it; `refresh` asks again."""
        return self._view

    def refresh(self) -> JobView:
        """The job as it is now: state, GPUs, reason, outcome, request."""
        self._view = self.client.view(self.id)
        return self._view

    @property
    def state(self) -> str:
        """Its state now: `queued`, `starting`, `running`, `finished`, `cancelled`, `interrupted` or `lost`."""
        return self.refresh().state

    def wait(self, timeout: float | None = None, *, check: bool = False) -> JobView:
        """Waits until it has ended, and returns how. TimeoutError if it has not after `timeout` seconds; with `check`,
        JobFailedError if it did not exit with code 0."""
        self._view = self.client.wait_for(self.id, math.inf if timeout is None else timeout)
        return checked_end(self._view, check)

    def log(self, *, follow: bool = False, tail: int | None = None, attempt: int | None = None) -> Iterator[bytes]:
        """Yields its output as it arrives; with `follow` until it has ended."""
        return self.client.log(self.id, follow=follow, tail=tail, attempt=attempt)

    def attach(self, *, read_only: bool = False) -> JobView | None:
        """Connects the terminal of this process with that of an interactive job, when it runs. Returns how the job
        ended; None: the user has left it with Ctrl-] d, and it continues."""
        from cotenant.client.terminal import use_terminal

        return use_terminal(self.client, self.id, read_only=read_only)

    def output(self) -> str:
        """Its output so far, of the latest attempt."""
        return b"".join(self.log()).decode(errors="replace")

    def cancel(self) -> JobView:
        """Stops it, or removes it from the queue; does not wait for its end."""
        self._view = self.client.act(self.id, "cancel")
        return self._view

    def hold(self) -> JobView:
        """Keeps it in the queue until it is released."""
        self._view = self.client.act(self.id, "hold")
        return self._view

    def release(self) -> JobView:
        """Lets it start after a hold."""
        self._view = self.client.act(self.id, "release")
        return self._view

    def retry(self) -> JobView:
        """Runs it again after it has ended."""
        self._view = self.client.act(self.id, "retry")
        return self._view

    def elements(self) -> "list[Job]":
        """The elements of an array, in the order of their indexes."""
        found = self.client.get(f"/v1/jobs?array={at(self.id)}&limit=20000", list[JobView])
        return [Job(self.client, one) for one in found]


def checked_end(view: JobView, check: bool) -> JobView:
    """The job itself; TimeoutError if it has not ended, and with `check` JobFailedError if it did not end well."""
    from cotenant.client.endings import ending_of, exit_code

    if view.state not in ENDED:
        raise TimeoutError(f"{view.id} is {view.state}: it has not ended in time")
    if check and exit_code(view) != 0:
        raise JobFailedError(ending_of(view))
    return view


def encoded(request: msgspec.Struct) -> bytes:
    """Encodes a request as JSON, which cannot carry text that is not valid UTF-8."""
    try:
        return msgspec.json.encode(request)
    except UnicodeEncodeError:
        raise InputError("the command, the working directory or an environment variable is not valid UTF-8") from None


def _no_daemon(address: Address) -> str:
    if address.place == str(system_socket()):
        return (
            "the daemon for all users of this machine does not run: an administrator starts it with "
            "`systemctl start cotenant`, or `cotenant up --system`"
        )
    return "no daemon is running; start it with `cotenant up --detach`"
