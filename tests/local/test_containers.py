# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs in containers: with the real podman, rootless, of two users; docker by its command line."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from cotenant.errors import InputError
from cotenant.local.attempts import launch, prepare, status
from cotenant.local.containers import Runtime, check_container, find_runtime, in_container
from cotenant.local.job_process import clean_up
from cotenant.local.run_files import Spec
from cotenant.node.devices.vendors import Vendor
from cotenant.wire.job_checks import decode_request
from cotenant.wire.job_requests import JobRequest
from tests.local.daemon import until
from tests.local.users import SystemDaemon, system_daemon

IMAGE = "localhost/tiny"
APPLETS = ("sh", "sleep", "id", "env", "cat", "echo", "touch", "ls")
WITHOUT_UNIFIED = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
"""crun refuses to run beside a hierarchy of version 2 that has controllers: this one is hidden from the daemon"""

needs_podman = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("podman") is None or shutil.which("busybox") is None,
    reason="needs root, podman and busybox-static",
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemDaemon]:
    image = tmp_path_factory.mktemp("image") / "image.tar"
    with tarfile.open(image, "w") as tar:
        tar.add(str(shutil.which("busybox")), "bin/busybox")
        for name in APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    prefix = ("unshare", "--mount", "sh", "-c", WITHOUT_UNIFIED, "sh")
    with system_daemon(prefix=prefix) as one:
        try:
            for user in (one.ada, one.bob):
                with image.open("rb") as content:
                    podman(user, "import", "-", IMAGE, stdin=content, prefix=prefix)
            yield one
        finally:
            for uid in (pwd.getpwnam(user).pw_uid for user in (one.ada, one.bob)):
                for name in (f"podman-run-{uid}", f"containers-user-{uid}"):
                    shutil.rmtree(Path(tempfile.gettempdir(), name), ignore_errors=True)


@pytest.fixture
def daemon(shared: SystemDaemon) -> Iterator[SystemDaemon]:
    yield shared
    shared.clear()


def podman(user: str, *words: str, stdin: object = None, prefix: tuple[str, ...] = ()) -> str:
    entry = pwd.getpwnam(user)
    command = [*prefix, "setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "podman"]
    env = {"HOME": entry.pw_dir, "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [*command, *words],
        env=env,
        cwd=entry.pw_dir,
        stdin=stdin,
        capture_output=True,
        text=True,
        check=False,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def submit(daemon: SystemDaemon, user: str, *command: str, **fields: object) -> str:
    home = pwd.getpwnam(user).pw_dir
    return daemon.submit(user, *command, **{"container": IMAGE, "cwd": home, "memory": "300MiB", **fields}).id


def processes_of(user: str, *words: str) -> list[int]:
    """Living processes of a user whose command line begins with these words."""
    uid, found = pwd.getpwnam(user).pw_uid, []
    begin = "\0".join(words).encode()
    for entry in (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        with suppress(OSError):
            if entry.stat().st_uid == uid and (entry / "cmdline").read_bytes().startswith(begin):
                found.append(int(entry.name))
    return found


@needs_podman
@pytest.mark.slow
def test_a_command_runs_in_the_image_as_its_owner_with_the_slice(daemon: SystemDaemon) -> None:
    home = Path(pwd.getpwnam(daemon.ada).pw_dir)
    script = "id -u; ls -d /usr 2>&1; ls $COTENANT_LIMITS $COTENANT_AGENT; echo $GREETING; touch made; exit 7"
    job = submit(daemon, daemon.ada, "/bin/sh", "-c", script, env={"GREETING": "good morning"})
    assert daemon.ended(job).code == 7
    uid, usr, *rest = daemon.log(daemon.ada, job).splitlines()
    assert int(uid) == pwd.getpwnam(daemon.ada).pw_uid
    assert "No such file" in usr  # it is another root
    assert any(line.endswith("agent.sock") for line in rest)
    assert rest[-1] == "good morning"
    assert (home / "made").stat().st_uid == pwd.getpwnam(daemon.ada).pw_uid


@needs_podman
@pytest.mark.slow
def test_a_container_reaches_files_with_the_rights_of_its_owner_only(daemon: SystemDaemon, tmp_path: Path) -> None:
    secret = Path(pwd.getpwnam(daemon.bob).pw_dir) / "secret"
    secret.parent.chmod(0o700)
    secret.write_text("of bob")
    shutil.chown(secret, daemon.bob)
    job = submit(daemon, daemon.ada, "/bin/cat", "/b/secret", volumes=[f"{secret.parent}:/b:ro"])
    assert daemon.ended(job).code != 0
    assert "of bob" not in daemon.log(daemon.ada, job)
    job = submit(daemon, daemon.bob, "/bin/cat", "/b/secret", volumes=[f"{secret.parent}:/b:ro"])
    assert daemon.ended(job).code == 0
    assert "of bob" in daemon.log(daemon.bob, job)


@needs_podman
@pytest.mark.slow
def test_cancelling_ends_the_container_and_removes_it(daemon: SystemDaemon) -> None:
    job = submit(daemon, daemon.ada, "/bin/sleep", "98765")
    until(lambda: processes_of(daemon.ada, "/bin/sleep", "98765"))
    until(lambda: daemon.job(job).state == "running")
    daemon.ask(daemon.ada, "POST", f"/v1/jobs/{job}/cancel")
    assert daemon.ended(job).state == "cancelled"
    assert processes_of(daemon.ada, "/bin/sleep", "98765") == []


@needs_podman
@pytest.mark.slow
def test_a_time_limit_ends_the_container(daemon: SystemDaemon) -> None:
    job = submit(daemon, daemon.ada, "/bin/sleep", "87654", time_s=2.0, grace_s=1.0)
    assert daemon.ended(job).outcome == "time-limit"
    assert processes_of(daemon.ada, "/bin/sleep", "87654") == []


@needs_podman
@pytest.mark.slow
def test_nothing_of_a_container_is_left_after_its_supervisor_was_killed(daemon: SystemDaemon) -> None:
    job = submit(daemon, daemon.ada, "/bin/sleep", "76543")
    until(lambda: processes_of(daemon.ada, "/bin/sleep", "76543"))
    run = next((daemon.folder / "state" / "jobs" / job).glob("*/intent"))
    pid = json.loads(run.read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    assert daemon.ended(job).state == "lost"
    until(lambda: not processes_of(daemon.ada, "/bin/sleep", "76543"))


@needs_podman
@pytest.mark.slow
def test_the_values_of_variables_are_in_no_command_line(daemon: SystemDaemon) -> None:
    submit(daemon, daemon.ada, "/bin/sleep", "65432", env={"PASSWORD": "hunter2"})
    until(lambda: processes_of(daemon.ada, "/bin/sleep", "65432"))
    lines = [(entry / "cmdline") for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    uid = pwd.getpwnam(daemon.ada).pw_uid
    for line in lines:
        with suppress(OSError):
            assert line.stat().st_uid != uid or b"hunter2" not in line.read_bytes()


@needs_podman
@pytest.mark.slow
def test_an_image_that_does_not_exist_fails_with_the_words_of_the_runtime(daemon: SystemDaemon) -> None:
    job = submit(daemon, daemon.ada, "/bin/true", container="localhost/there-is-no-such-image")
    assert daemon.ended(job).code == 125
    assert "there-is-no-such-image" in daemon.log(daemon.ada, job)


# Without a runtime, and the command lines


def request(**fields: object) -> JobRequest:
    return JobRequest(command=("python", "train.py"), cwd="/work", container="team/train:1", **fields)  # type: ignore[arg-type]


def test_a_missing_runtime_is_a_sentence_at_submission() -> None:
    with pytest.raises(InputError, match="neither podman nor docker; install one"):
        check_container(request(), None, as_root=False)


def test_a_daemon_whose_unit_forbids_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("Name:\tx\nNoNewPrivs:\t1\n")
    runtime = Runtime("podman", "/usr/bin/podman")
    with pytest.raises(InputError, match="systemctl edit cotenant"):
        check_container(request(), runtime, as_root=False, proc=tmp_path)
    check_container(request(), runtime, as_root=True, proc=tmp_path)


@pytest.mark.parametrize("volume", ["data", "/a:b", "/a,rw", "/a:/b:rw", "/a:/b:ro:z", ""])
def test_a_volume_that_is_none_is_refused(volume: str) -> None:
    with pytest.raises(InputError, match="--volume"):
        check_container(request(volumes=(volume,)), Runtime("podman", "/usr/bin/podman"), as_root=True)


@pytest.mark.parametrize("cwd", ["/a:b", "/a:/etc", "/a,b"])
def test_a_folder_that_cannot_be_mounted_is_refused_at_submission(cwd: str) -> None:
    wanted = JobRequest(command=("x",), cwd=cwd, container="tiny")
    with pytest.raises(InputError, match="its name has a colon or a comma"):
        check_container(wanted, Runtime("podman", "/usr/bin/podman"), as_root=True)


def test_volumes_need_a_container() -> None:
    with pytest.raises(InputError, match="needs --container"):
        check_container(JobRequest(command=("x",), cwd="/", volumes=("/data",)), None, as_root=True)


@pytest.mark.parametrize("image", ["--privileged", "-v/:/host", "a b", "", "x\n"])
def test_an_image_cannot_be_an_option_of_the_runtime(image: str) -> None:
    with pytest.raises(InputError):
        decode_request(msgspec.json.encode({"command": ["x"], "cwd": "/", "container": image}))


def spec(**fields: object) -> Spec:
    env = {
        "PATH": "/usr/bin",
        "HOME": "/srv/ada",
        "SECRET": "hunter2",
        "LD_PRELOAD": "/lib/libvgpu.so",
        "COTENANT_LIMITS": "/run/cotenant/slices/j-1/limits",
        "COTENANT_AGENT": "/run/cotenant/agent.sock",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
    }
    return Spec(["python", "train.py"], "/work", env, **fields)  # type: ignore[arg-type]


def test_docker_gets_the_slice_the_user_and_the_gpus() -> None:
    docker = Runtime("docker", "/usr/bin/docker")
    made = in_container(
        spec(uid=1000, host_memory_mib=512),
        request(env={"SECRET": "hunter2"}, volumes=("/data:/in:ro",)),
        docker,
        "cotenant-j-1-1",
        Vendor.NVIDIA,
        ["GPU-1"],
        100,
    )
    words = made.argv
    assert words[:5] == ["/usr/bin/docker", "run", "--rm", "--name", "cotenant-j-1-1"]
    assert words[-3:] == ["team/train:1", "python", "train.py"]
    volumes = [words[i + 1] for i, word in enumerate(words) if word == "--volume"]
    assert volumes == [
        "/work:/work",
        "/data:/in:ro",
        "/dev/shm:/dev/shm",
        "/run/cotenant/slices/j-1:/run/cotenant/slices/j-1",
        "/run/cotenant:/run/cotenant",
        "/lib/libvgpu.so:/lib/libvgpu.so:ro",
    ]
    assert "--user=1000:100" in words
    assert "--memory=512m" in words
    assert words[words.index("--gpus") + 1] == '"device=GPU-1"'
    assert "LD_PRELOAD=/lib/libvgpu.so" in words
    assert "LD_PRELOAD" not in made.env  # else it would be loaded into the runtime
    assert not any("hunter2" in word for word in words)
    assert "SECRET" in words
    assert "HOME" not in words
    assert made.after == ["/usr/bin/docker", "rm", "--force", "cotenant-j-1-1"]


def test_a_container_of_docker_is_removed_by_name_even_if_its_client_is_killed(tmp_path: Path) -> None:
    """A stand-in for docker: its container is a process of another tree, which only `rm` ends."""
    said, docker = tmp_path / "said", tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$1" >> {said}\n[ "$1" = run ] && exec sleep 600\nexit 0\n')
    docker.chmod(0o755)
    runtime = Runtime("docker", str(docker))
    folder = tmp_path / "run"
    asked = request()
    run = in_container(
        Spec(["x"], "/", {"PATH": os.environ["PATH"]}), asked, runtime, "cotenant-j-1-1", Vendor.SIMULATED, [], None
    )
    prepare(folder, run)
    launch(folder)
    until(lambda: said.exists())
    running = status(folder)
    assert running.pidfd is not None
    signal.pidfd_send_signal(running.pidfd, signal.SIGKILL)  # the supervisor; its keeper cleans up
    os.close(running.pidfd)
    until(lambda: said.read_text().split() == ["run", "rm"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_removing_a_container_as_its_owner_does_not_change_the_owner_of_dev_null() -> None:
    """Its owner could forbid all other users to open the device."""
    before, user = os.stat(os.devnull), pwd.getpwnam("nobody")
    assert before.st_uid != user.pw_uid
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        removal = ["sh", "-c", f"id -u > {folder}/said"]
        try:
            clean_up(Spec(["x"], "/", {"PATH": os.environ["PATH"]}, uid=user.pw_uid, user="nobody", after=removal))
            after = os.stat(os.devnull)
        finally:
            os.chown(os.devnull, before.st_uid, before.st_gid)
        assert Path(folder, "said").read_text() == f"{user.pw_uid}\n"
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)


def test_the_runtime_of_a_daemon_for_all_users_is_one_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "podman"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_runtime(for_all_users=False)
    assert found == Runtime("podman", str(fake))
    trusted = find_runtime(for_all_users=True)
    assert trusted is None or not trusted.path.startswith(str(tmp_path))
