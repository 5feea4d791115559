# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What one user may try on the jobs of another, with a daemon for all users: each attempt is refused and changes
nothing.

Ada has a job that runs, one that is held and one that has ended. Bob tries each attempt of the table.
"""

import ctypes
import os
import pwd
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cotenant.client.terminal import connect
from cotenant.job.compute_lock import ACQUIRE
from cotenant.local.api import ENDPOINTS
from cotenant.local.endpoint import May
from cotenant.node.limits import VARIABLE
from cotenant.wire.agent import VERSION, Hello, encode
from tests.local.daemon import until
from tests.local.users import SystemDaemon, as_user, system_daemon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make users")
SECRET = "hunter2"
PTRACE_ATTACH = 16


@dataclass(frozen=True)
class Victim:
    """What belongs to Ada."""

    running: str
    held: str
    ended: str
    array: str
    shell: str
    """an interactive job"""
    pid: int
    """of the process of the running job"""
    token: str
    token_id: str
    reservation: str
    home: Path


@dataclass(frozen=True)
class Attempt:
    """What Bob has at hand."""

    daemon: SystemDaemon
    ada: Victim
    token: str
    """Bob's own"""

    @property
    def bob(self) -> str:
        return self.daemon.bob

    @property
    def home(self) -> Path:
        return Path(pwd.getpwnam(self.bob).pw_dir)

    @property
    def state(self) -> Path:
        return self.daemon.folder / "state"

    def is_forbidden(self, method: str, path: str, body: object = None) -> None:
        """Over the socket and over TCP."""
        answers = [self.daemon.ask(self.bob, method, path, body)]
        answers.append(self.daemon.ask_over_tcp(self.token, method, path, body))
        assert [one.status for one in answers] == [403, 403], answers
        assert all(SECRET.encode() not in one.body for one in answers)

    def says_nothing(self, path: str) -> None:
        """The answer is given, and has no secret of Ada."""
        for answer in (self.daemon.ask(self.bob, "GET", path), self.daemon.ask_over_tcp(self.token, "GET", path)):
            assert answer.status == 200
            assert SECRET.encode() not in answer.body
            assert str(self.ada.home).encode() not in answer.body

    def is_denied(self, act: Callable[[], object]) -> None:
        """By the kernel."""
        with pytest.raises(PermissionError):
            as_user(self.bob, act)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemDaemon]:
    accounts = tmp_path_factory.mktemp("accounts") / "accounts.yaml"
    accounts.write_text("default: {reservations: 2}")
    with system_daemon("--listen", "0", "--accounts", str(accounts)) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def victim(shared: SystemDaemon) -> Victim:
    home = Path(pwd.getpwnam(shared.ada).pw_dir)
    home.chmod(0o700)
    shutil.chown(home, shared.ada)
    (home / "data").write_text(SECRET)
    shutil.chown(home / "data", shared.ada)
    secrets = {"env": {"PASSWORD": SECRET}, "cwd": str(home)}
    code = f"echo {SECRET}; echo $$ > {home}/pid; while :; do sleep 1; done"
    running = shared.submit(shared.ada, "sh", "-c", code, **secrets).id
    ended = shared.submit(shared.ada, "sh", "-c", f"echo {SECRET}; exit 3", **secrets).id
    shared.ended(ended)
    held = shared.submit(shared.ada, "sh", "-c", f"echo {SECRET}", gpus=2, memory="100%", **secrets).id
    assert shared.ask(shared.ada, "POST", f"/v1/jobs/{held}/hold").status == 200
    array = shared.submit(
        shared.ada, "sh", "-c", f"echo {SECRET}", gpus=2, memory="100%", array={"indexes": "0-3"}, **secrets
    ).id
    assert shared.ask(shared.ada, "POST", f"/v1/jobs/{array}/hold").status == 200
    shell = shared.submit(shared.ada, "sh", terminal={"rows": 20, "columns": 50}, **secrets).id
    shared.running(shell)
    token = shared.ask(shared.ada, "POST", "/v1/tokens", {"label": "ada"}).json()
    wanted = {"start": time.time() + 3 * 86_400, "length_s": 3600, "gpus": 1}
    reservation = shared.ask(shared.ada, "POST", "/v1/reservations", wanted).json()["id"]
    pid = int(until(lambda: (home / "pid").read_text() if (home / "pid").exists() else None))
    return Victim(running, held, ended, array, shell, pid, token["token"], token["id"], reservation, home)


@pytest.fixture(scope="module")
def bobs_token(shared: SystemDaemon) -> str:
    return str(shared.ask(shared.bob, "POST", "/v1/tokens").json()["token"])


@pytest.fixture
def attempt(shared: SystemDaemon, victim: Victim, bobs_token: str) -> Iterator[Attempt]:
    """Ada's jobs, files, tokens and the GPUs are afterwards as they were."""
    before = everything(shared, victim)
    yield Attempt(shared, victim, bobs_token)
    assert everything(shared, victim) == before


def everything(daemon: SystemDaemon, victim: Victim) -> object:
    jobs = [daemon.job(job) for job in (victim.running, victim.held, victim.ended, victim.shell)]
    own = [job for job in daemon.ask(daemon.admin, "GET", "/v1/jobs?arrays=1").json() if job["user"] == daemon.ada]
    gpus = [(gpu["cordoned"], gpu["healthy"]) for gpu in daemon.ask(daemon.admin, "GET", "/v1/gpus").json()]
    return (
        [(job.state, job.attempts, job.held, job.started, job.ended, job.outcome) for job in jobs],
        [job["id"] for job in own],
        gpus,
        daemon.ask(daemon.ada, "GET", "/v1/reservations").json(),
        [token["id"] for token in daemon.ask(daemon.ada, "GET", "/v1/tokens").json()],
        (victim.home / "data").read_text(),
        sorted(path.name for path in victim.home.iterdir()),
        Path(f"/proc/{victim.pid}").exists(),
        daemon.process.poll(),
        daemon.ask_over_tcp(victim.token, "GET", f"/v1/jobs/{victim.running}/log").body,
    )


def fails(at: Attempt, cwd: str) -> None:
    """A job of Bob with this working directory does not start, and reads nothing there."""
    job = at.daemon.submit(at.bob, "cat", "data", "journal.db", cwd=cwd)
    end = at.daemon.ended(job.id)
    assert (end.outcome, end.code) == ("exec-failed", 127)
    assert "cannot enter the working directory" in str(end.error)
    assert at.daemon.log(at.bob, job.id) == ""


def by_link(at: Attempt, target: Path) -> None:
    link = at.home / f"to{target.name}"
    as_user(at.bob, lambda: os.symlink(target, link))
    fails(at, str(link))


def links_in_output(at: Attempt) -> None:
    """The log goes through a pipe: a link in Bob's folder leads root nowhere."""
    for name in ("log", "exit", "run", "log.1"):
        as_user(at.bob, lambda name=name: os.symlink(at.ada.home / "data", at.home / name))  # type: ignore[misc]
    job = at.daemon.submit(at.bob, "sh", "-c", "echo overwritten; echo overwritten > log", cwd=str(at.home))
    assert at.daemon.ended(job.id).code != 0
    assert "denied" in at.daemon.log(at.bob, job.id)


def code_in_the_supervisor(at: Attempt) -> None:
    """Variables of a job reach its process only: the supervisor runs as root, without them."""
    trap = f"import os; open('{at.home}/ran-as-' + str(os.geteuid()), 'w')"
    as_user(at.bob, lambda: (at.home / "sitecustomize.py").write_text(trap))
    names = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "BASH_ENV", "IFS")
    env = dict.fromkeys(names, str(at.home))
    at.daemon.output(at.bob, "/bin/true", cwd=str(at.home), env=env)
    assert not (at.home / "ran-as-0").exists()


def set_user_id(at: Attempt) -> None:
    """A set-user-ID program of root gains no rights in a job."""
    program = at.daemon.folder / "setuid-id"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4755)
    uid = pwd.getpwnam(at.bob).pw_uid
    assert at.daemon.output(at.bob, str(program), "-u") == f"{uid}\n"


def signals(at: Attempt) -> None:
    """A job of Bob signals the job, its supervisor and the daemon."""
    pids = [
        at.ada.pid,
        at.daemon.process.pid,
        int(Path(f"/proc/{at.ada.pid}/stat").read_text().rsplit(")", 1)[1].split()[1]),
    ]
    code = "; ".join(f"kill -9 {pid} 2>/dev/null && echo killed {pid}" for pid in pids)
    assert at.daemon.output(at.bob, "sh", "-c", code) == ""


def traces(at: Attempt) -> None:
    def attach() -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        return int(libc.ptrace(PTRACE_ATTACH, at.ada.pid, None, None))

    assert as_user(at.bob, attach) == -1
    for name in ("environ", "mem", "cwd/data", "fd/1", "root"):
        path = f"/proc/{at.ada.pid}/{name}"
        at.is_denied(lambda path=path: os.listdir(path) if path.endswith("root") else open(path).read())  # type: ignore[misc] # noqa: SIM115


def reports_for_another_job(at: Attempt) -> None:
    """The agent identifies a job by its process, so that a report for another job ends the connection."""

    def report() -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
            agent.settimeout(20)
            agent.connect(str(at.daemon.socket.parent / "agent.sock"))
            agent.send(encode(Hello(v=VERSION, job=at.ada.running, pid=os.getpid())))
            return agent.recv(4096)

    assert as_user(at.bob, report) == b""


def takes_the_compute_lock(at: Attempt) -> None:
    """Only processes of jobs can hold the lock of a simulated GPU."""

    def acquire() -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as lock:
            lock.settimeout(20)
            lock.connect(str(at.daemon.socket.parent / "engine-0.sock"))
            try:
                lock.send(ACQUIRE)
                return lock.recv(16)
            except (BrokenPipeError, ConnectionResetError):
                return b""

    assert as_user(at.bob, acquire) == b""


def lifts_the_own_limit(at: Attempt) -> None:
    """The limits file of a job belongs to root."""
    code = f'(echo 0 > "${VARIABLE}"; rm -f "${VARIABLE}"; ulimit -n 1000000) && echo lifted; exec sleep 60'
    job = at.daemon.submit(at.bob, "sh", "-c", code)
    at.daemon.running(job.id)
    limits = at.daemon.socket.parent / "limits" / job.id
    assert (limits.stat().st_uid, limits.stat().st_mode & 0o777) == (0, 0o444)
    at.is_denied(lambda: limits.write_text(""))
    at.is_denied(limits.unlink)
    at.daemon.ask(at.bob, "POST", f"/v1/jobs/{job.id}/cancel")
    at.daemon.ended(job.id)
    assert "lifted" not in at.daemon.log(at.bob, job.id)


def outlives_the_end(at: Attempt) -> None:
    """Processes that leave the session and the environment of a job end with it."""
    code = "setsid env -i sleep 987 & sleep 0.2"
    job = at.daemon.submit(at.bob, "sh", "-c", code)
    at.daemon.ended(job.id)
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert b"sleep\x00987\x00" not in commands


def names_a_user(at: Attempt) -> None:
    """No field of a request names the owner of a job."""
    wanted = {"command": ["true"], "cwd": "/"}
    for field in ("user", "uid", "owner", "gid", "umask", "limits"):
        assert at.daemon.ask(at.bob, "POST", "/v1/jobs", {**wanted, field: at.daemon.ada}).status == 400


def takes_over_a_name(at: Attempt) -> None:
    """A job of Bob with the name, or almost the ID, of a job of Ada is his, and never stands for hers."""
    for name in ("../../etc", "/etc/passwd", at.ada.running, "a/b", "x\n"):
        assert at.daemon.ask(at.bob, "POST", "/v1/jobs", {"command": ["true"], "cwd": "/", "name": name}).status == 400
    own = at.daemon.submit(at.daemon.bob, "true", name="shared-name").id
    other = at.daemon.submit(at.daemon.admin, "true", name="shared-name").id
    after = at.daemon.submit(at.bob, "true", after=("shared-name:any",)).id
    assert [at.daemon.ended(job).code for job in (own, other, after)] == [0, 0, 0]
    assert own in str(at.daemon.ask(at.bob, "GET", f"/v1/jobs/{after}").json()["request"]["after"])
    assert at.daemon.ask(at.daemon.ada, "GET", f"/v1/jobs/{at.ada.running}").json()["user"] == at.daemon.ada


def guesses_tokens(at: Attempt) -> None:
    wrong = at.ada.token[:-1] + ("A" if at.ada.token[-1] != "A" else "B")
    for token in (
        wrong,
        at.ada.token_id,
        f"ct_{at.ada.token_id}_",
        "",
        "ct__",
        at.token.replace(at.token[3:15], at.ada.token_id),
    ):
        assert at.daemon.ask_over_tcp(token, "GET", "/v1/jobs").status == 401


def uses_a_revoked_token(at: Attempt) -> None:
    made = at.daemon.ask(at.bob, "POST", "/v1/tokens").json()
    assert at.daemon.ask_over_tcp(made["token"], "GET", "/v1/jobs").status == 200
    assert at.daemon.ask(at.bob, "POST", f"/v1/tokens/{made['id']}/revoke").status == 200
    assert at.daemon.ask_over_tcp(made["token"], "GET", "/v1/jobs").status == 401


def makes_tokens(at: Attempt) -> None:
    assert at.daemon.ask(at.bob, "POST", "/v1/tokens", {"user": at.daemon.ada}).status == 403
    assert at.daemon.ask_over_tcp(at.token, "POST", "/v1/tokens").status == 403
    assert at.daemon.ask(at.bob, "POST", "/v1/tokens", {"user": "nobody-has-this-name"}).status == 400
    for user in ("root", at.daemon.ada):  # who has it runs commands as that user: an administrator is not root
        assert at.daemon.ask(at.daemon.admin, "POST", "/v1/tokens", {"user": user}).status == 403


def lists_tokens(at: Attempt) -> None:
    listed = at.daemon.ask(at.bob, "GET", "/v1/tokens").body
    assert at.ada.token_id.encode() not in listed
    assert at.token.encode() not in listed


def reads_events(at: Attempt) -> None:
    def read() -> bytes:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(20)
            stream.connect(str(at.daemon.socket))
            stream.sendall(b"GET /v1/events?after=0 HTTP/1.1\r\nHost: x\r\n\r\n")
            found = b""
            while at.ada.ended.encode() not in found or b"finished" not in found:
                found += stream.recv(65536)
            return found

    assert SECRET.encode() in as_user(at.daemon.ada, read)
    assert SECRET.encode() not in as_user(at.bob, read)


def asks_what_if(at: Attempt) -> None:
    answer = at.daemon.ask(at.bob, "POST", "/v1/whatif", {"memory": "900MiB"})
    assert answer.status == 200
    assert SECRET.encode() not in answer.body


def submits_ten_thousand(at: Attempt) -> None:
    """A large array of Bob keeps no job of others waiting for an answer, and goes as a whole."""
    array = at.daemon.submit(at.bob, "true", gpus=2, memory="100%", array={"indexes": "0-9999"}, name="flood")
    assert at.daemon.ask(at.daemon.ada, "POST", f"/v1/jobs/{array.id}/cancel").status == 403
    assert at.daemon.ask(at.daemon.ada, "GET", f"/v1/jobs/{at.ada.running}").status == 200
    assert at.daemon.ask(at.bob, "POST", f"/v1/jobs/{array.id}/cancel").status == 200
    assert at.daemon.job(array.id).state == "cancelled"


def reserves_for_others(at: Attempt) -> None:
    """For another user, for a group of others, with the eviction of jobs, over a reservation, or beyond the limits."""
    hour = {"length_s": 3600, "start": time.time() + 3600}
    for more in ({"user": at.daemon.ada}, {"group": "root"}, {"evict": True}, {"length_s": 90_000}):
        at.is_forbidden("POST", "/v1/reservations", {**hour, **more})
    for more in (
        {"user": "nobody-has-this-name"},
        {"owner": at.daemon.ada},
        {"start": 0},
        {"length_s": 0},
        {"gpus": 3},
    ):
        assert at.daemon.ask(at.bob, "POST", "/v1/reservations", {**hour, **more}).status == 400
    taken = at.daemon.ask(at.bob, "GET", f"/v1/reservations/{at.ada.reservation}").json()
    over = {"start": taken["start"], "length_s": 60, "on": [str(gpu) for gpu in taken["gpus"]]}
    assert at.daemon.ask(at.bob, "POST", "/v1/reservations", over).status == 400


def raises_the_priority(at: Attempt) -> None:
    """By a submission, an array, a change or a copy; administrators may, also for a job of Bob."""
    wanted = {"command": ["true"], "cwd": "/", "gpus": 2, "memory": "100%"}
    for more in ({"priority": 1}, {"priority": 1000, "array": {"indexes": "0-1"}}):
        assert at.daemon.ask(at.bob, "POST", "/v1/jobs", {**wanted, **more}).status == 400
        assert at.daemon.ask_over_tcp(at.token, "POST", "/v1/jobs", {**wanted, **more}).status == 400
    own = at.daemon.submit(at.bob, "true", gpus=2, memory="100%", priority=-1).id
    assert at.daemon.ask(at.bob, "POST", f"/v1/jobs/{own}/hold").status == 200
    assert at.daemon.ask(at.bob, "POST", f"/v1/jobs/{own}/change", {"priority": 1}).status == 400
    assert at.daemon.ask(at.bob, "POST", f"/v1/jobs/{own}/change", {"priority": 0}).status == 200
    assert at.daemon.ask(at.daemon.admin, "POST", f"/v1/jobs/{own}/change", {"priority": 7}).status == 200
    assert at.daemon.ask(at.bob, "POST", f"/v1/jobs/{own}/rerun").status == 400
    assert at.daemon.ask(at.bob, "POST", f"/v1/jobs/{own}/cancel").status == 200


def runs_in_a_reservation(at: Attempt) -> None:
    wanted = {"command": ["true"], "cwd": "/", "reservation": at.ada.reservation}
    assert at.daemon.ask(at.bob, "POST", "/v1/jobs", wanted).status == 400
    assert at.daemon.ask_over_tcp(at.token, "POST", "/v1/jobs", wanted).status == 400


def removes_ended_jobs(at: Attempt) -> None:
    """By ID, by a name of hers, by her name, or with those of everybody; his own selection leaves hers."""
    for wanted in ({"jobs": [at.ada.ended]}, {"jobs": [at.ada.array]}, {"user": at.daemon.ada}, {"all_users": True}):
        at.is_forbidden("POST", "/v1/clean", wanted)
        at.is_forbidden("POST", "/v1/clean", {**wanted, "dry_run": True})
    own: tuple[dict[str, object], ...] = ({}, {"older_than_s": 0}, {"state": "failed"}, {"user": at.bob})
    for chosen in own:
        for answer in (
            at.daemon.ask(at.bob, "POST", "/v1/clean", chosen),
            at.daemon.ask_over_tcp(at.token, "POST", "/v1/clean", chosen),
        ):
            assert answer.status == 200, answer.body
            assert {one["user"] for one in answer.json()["jobs"]} <= {at.bob}


def calls_every_route(at: Attempt) -> None:
    """Also those that are added later: no route that belongs to owners or administrators is open to Bob."""
    own = {"{job}": at.ada.running, "{reservation}": at.ada.reservation, "{token}": at.ada.token_id, "{gpu}": "0"}
    for endpoint in ENDPOINTS:
        path = endpoint.path
        for word, name in own.items():
            path = path.replace(word, name)
        if endpoint.may is not May.EVERYONE:
            at.is_forbidden(endpoint.method, path)
        elif endpoint.method == "GET" and path != "/v1/events" and path != "/v1/history":
            at.says_nothing(path)


def takes_the_terminal(at: Attempt) -> None:
    """The terminal of an interactive job: its socket, its address, and the folder of all sockets."""
    path = at.daemon.socket.parent / "terminals" / at.ada.shell
    until(path.exists)
    at.is_forbidden("GET", f"/v1/jobs/{at.ada.shell}/terminal")
    at.is_denied(lambda: connect(str(path)).close())
    at.is_denied(path.unlink)
    at.is_denied(lambda: (path.parent / "j-999999").touch())
    at.is_denied(lambda: os.listdir(path.parent))


def sends_notices(at: Attempt) -> None:
    """The command of a notice has the rights of Bob, in a folder that he may enter, without a way to become root."""
    at.daemon.folder.joinpath("told").mkdir(mode=0o777, exist_ok=True)
    told = at.daemon.folder / "told" / "by"
    told.parent.chmod(0o777)
    code = f"id -u > {told}; cat {at.ada.home}/data >> {told}; cat {at.state}/journal.db >> {told}; echo end >> {told}"
    at.daemon.ended(at.daemon.submit(at.bob, "true", notify=[f"end:sh -c '{code}'"]).id)
    text = until(lambda: written if told.exists() and (written := told.read_text()).endswith("end\n") else None)
    assert text == f"{pwd.getpwnam(at.bob).pw_uid}\nend\n"
    for notify in ([f"end:{'x' * 5000}"], ["end:true"] * 6):
        answer = at.daemon.ask(at.bob, "POST", "/v1/jobs", {"command": ["true"], "cwd": "/", "notify": notify})
        assert answer.status == 400, answer.body


def leaves_the_control_group(at: Attempt) -> None:
    """A job of Bob cannot leave its control groups, nor change their limits."""
    code = (
        "find /sys/fs/cgroup -maxdepth 3 \\( -name cgroup.procs -o -name tasks -o -name memory.max -o -name cpu.max "
        "-o -name memory.limit_in_bytes -o -name cpu.cfs_quota_us \\) -writable"
    )
    assert at.daemon.output(at.bob, "sh", "-c", code, cwd="/tmp", cpus=0.5, host_memory="200MiB") == ""


def submits_a_list(at: Attempt) -> None:
    """A list of jobs is one request of one user: it names no other, and follows no name of Ada."""
    job = {"command": ["true"], "cwd": "/"}
    for wanted in (
        {"jobs": [{**job, "user": at.daemon.ada}]},
        {"jobs": [job], "user": at.daemon.ada},
        {"jobs": [{**job, "reservation": at.ada.reservation}]},
        {"jobs": [{**job, "priority": 1000}, job]},
    ):
        for answer in (
            at.daemon.ask(at.bob, "POST", "/v1/submissions", wanted),
            at.daemon.ask_over_tcp(at.token, "POST", "/v1/submissions", wanted),
        ):
            assert answer.status == 400, answer.body


def waits_for_a_job_of_others(at: Attempt) -> None:
    """Who waits for a job of Ada learns how it ended, which everybody sees, and nothing else."""
    own = at.daemon.submit(at.bob, "true", after=(f"{at.ada.ended}:failed",)).id
    assert at.daemon.ended(own).code == 0
    for path in (f"/v1/jobs/{own}", f"/v1/jobs/{own}/why"):
        assert SECRET.encode() not in at.daemon.ask(at.bob, "GET", path).body


def keeps_a_job_from_removal(at: Attempt) -> None:
    """A job that waits for one of another user does not keep that user from removing it; administrators spare both."""
    hers = at.daemon.submit(at.daemon.admin, "true").id
    at.daemon.ended(hers)
    own = at.daemon.submit(at.bob, "true", after=(f"{hers}:any",), gpus=2, memory="100%").id
    assert at.daemon.ask(at.bob, "POST", f"/v1/jobs/{own}/hold").status == 200
    kept = at.daemon.ask(at.daemon.admin, "POST", "/v1/clean", {"jobs": [hers]}).json()
    assert [one["id"] for one in kept["kept"]] == [hers]  # an administrator, who may remove the jobs of all
    assert at.daemon.ask(at.bob, "POST", f"/v1/jobs/{own}/cancel").status == 200
    another = at.daemon.submit(at.bob, "true").id
    at.daemon.ended(another)
    waits = at.daemon.submit(at.daemon.admin, "true", after=(f"{another}:any",), gpus=2, memory="100%").id
    assert at.daemon.ask(at.daemon.admin, "POST", f"/v1/jobs/{waits}/hold").status == 200
    removed = at.daemon.ask(at.bob, "POST", "/v1/clean", {"jobs": [another]}).json()
    assert [one["id"] for one in removed["jobs"]] == [another]
    assert at.daemon.ask(at.daemon.admin, "POST", f"/v1/jobs/{waits}/cancel").status == 200


def opens_a_trap(at: Attempt) -> None:
    """A socket of Bob in place of a daemon's gets nothing of Ada."""
    path = at.home / "cotenant.sock"

    def listen() -> None:
        with socket.socket(socket.AF_UNIX) as trap:
            trap.bind(str(path))
            os.chmod(path, 0o777)

    as_user(at.bob, listen)
    at.is_denied(lambda: (at.daemon.socket.parent / "cotenant.sock").unlink())
    at.is_denied(lambda: (at.daemon.socket.parent / "other.sock").touch())


ATTEMPTS: dict[str, Callable[[Attempt], None]] = {
    "cancel a job": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.running}/cancel"),
    "hold a job": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.running}/hold"),
    "pause a job": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.running}/pause"),
    "resume a job": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.running}/resume"),
    "change a running job": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.running}/change", {"time_s": 1}),
    "pause an array": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.array}/pause"),
    "release a job": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.held}/release"),
    "run a job again": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.ended}/retry"),
    "submit a copy of a job": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.ended}/rerun"),
    "change a job": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.held}/change", {"priority": -1}),
    "read the output of a running job": lambda at: at.is_forbidden("GET", f"/v1/jobs/{at.ada.running}/log?follow=1"),
    "read the output of an ended job": lambda at: at.is_forbidden("GET", f"/v1/jobs/{at.ada.ended}/log?attempt=1"),
    "read the last lines by why": lambda at: at.is_forbidden("GET", f"/v1/jobs/{at.ada.ended}/why"),
    "profile a job": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.running}/profile?seconds=1"),
    "read command and environment": lambda at: at.says_nothing(f"/v1/jobs/{at.ada.running}"),
    "read them in the list": lambda at: at.says_nothing("/v1/jobs?requests=1&limit=20000"),
    "read them in the metrics": lambda at: at.says_nothing("/metrics"),
    "read them in the history": lambda at: at.says_nothing("/v1/history?kind=tenant&quantity=speed"),
    "read them in the profiles": lambda at: at.says_nothing("/v1/profiles"),
    "read them in the status": lambda at: at.says_nothing("/v1/status"),
    "cancel an array": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.array}/cancel"),
    "release an element of an array": lambda at: at.is_forbidden("POST", f"/v1/jobs/{at.ada.array}_0/release"),
    "read an array": lambda at: at.says_nothing(f"/v1/jobs/{at.ada.array}"),
    "read its elements": lambda at: at.says_nothing(f"/v1/jobs?requests=1&array={at.ada.array}"),
    "read arrays in the list": lambda at: at.says_nothing("/v1/jobs?requests=1&arrays=1"),
    "read the accounts": lambda at: at.says_nothing("/v1/accounts"),
    "read the events": reads_events,
    "ask what if": asks_what_if,
    "download all decisions": lambda at: at.is_forbidden("GET", "/v1/decisions"),
    "cordon a GPU": lambda at: at.is_forbidden("POST", "/v1/gpus/0/cordon"),
    "drain a GPU": lambda at: at.is_forbidden("POST", "/v1/gpus/0/drain", {"evict": True}),
    "remove files of jobs": lambda at: at.is_forbidden("POST", "/v1/prune", {"older_than_s": 0}),
    "remove an ended job": removes_ended_jobs,
    "change MIG layouts": lambda at: at.is_forbidden("POST", "/v1/mig/apply", {}),
    "remove profiles": lambda at: at.is_forbidden("POST", "/v1/profiles/remove?workload=x"),
    "stop the daemon": lambda at: at.is_forbidden("POST", "/v1/shutdown"),
    "revoke a token": lambda at: at.is_forbidden("POST", f"/v1/tokens/{at.ada.token_id}/revoke"),
    "make a token of another user": makes_tokens,
    "list tokens of others": lists_tokens,
    "guess a token": guesses_tokens,
    "use a revoked token": uses_a_revoked_token,
    "list the state folder": lambda at: at.is_denied(lambda: os.listdir(at.state)),
    "read the journal": lambda at: at.is_denied((at.state / "journal.db").read_bytes),
    "read the log file": lambda at: at.is_denied((at.state / "jobs" / at.ada.running / "1" / "log").read_bytes),
    "replace the specification of a run": lambda at: at.is_denied(
        lambda: (at.state / "jobs" / at.ada.held / "spec.json").write_text("{}")
    ),
    "replace the socket": opens_a_trap,
    "run in a private folder": lambda at: fails(at, str(at.ada.home)),
    "run in a linked private folder": lambda at: by_link(at, at.ada.home),
    "run in the linked state folder": lambda at: by_link(at, at.state),
    "write output through links": links_in_output,
    "load code into the supervisor": code_in_the_supervisor,
    "gain rights by a set-user-ID program": set_user_id,
    "signal a job, its supervisor and the daemon": signals,
    "trace a job": traces,
    "report steps of another job": reports_for_another_job,
    "take the compute lock without a job": takes_the_compute_lock,
    "lift the limits of a job": lifts_the_own_limit,
    "leave a process behind": outlives_the_end,
    "submit as another user": names_a_user,
    "take over a name": takes_over_a_name,
    "submit an array of ten thousand": submits_ten_thousand,
    "read the accounts file again": lambda at: at.is_forbidden("POST", "/v1/accounts/reload"),
    "raise the own priority": raises_the_priority,
    "cancel a reservation": lambda at: at.is_forbidden("POST", f"/v1/reservations/{at.ada.reservation}/cancel"),
    "reserve for others or too much": reserves_for_others,
    "run in a reservation of others": runs_in_a_reservation,
    "call every route": calls_every_route,
    "take over a terminal": takes_the_terminal,
    "have root send a notice": sends_notices,
    "leave the control group": leaves_the_control_group,
    "submit a list for another user": submits_a_list,
    "wait for a job of another user": waits_for_a_job_of_others,
    "keep a job of another user from removal": keeps_a_job_from_removal,
}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_is_refused_and_changes_nothing(name: str, attempt: Attempt) -> None:
    ATTEMPTS[name](attempt)
