# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for `nvidia-cuda-mps-control` and its server, with the command language of MPS v2.

    nvidia-cuda-mps-control -d     the control daemon, in the background; -f: in the foreground
    nvidia-cuda-mps-control        reads commands from its input and prints what the daemon answers

Clients are processes over the stand-in driver (mps.c). Each asks the control daemon on the socket `control` for the
server, and stays connected to the server until it ends. It is told its share and its memory limits when it connects:
as with the real MPS, a later change counts for later clients. To let a daemon or a server crash or hang, send it
SIGKILL or SIGSTOP. A kernel named `fault` is a fatal exception on the GPU: it ends all clients of the server.

Only the standard library, because every command starts a process.
"""

import contextlib
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

PIPE, LOGS = (Path(os.environ.get(f"CUDA_MPS_{kind}_DIRECTORY", "")) for kind in ("PIPE", "LOG"))
"""the real ones have defaults, which would let tests meet a daemon of the machine"""
PID_FILE = PIPE / "nvidia-cuda-mps-control.pid"
MOST_CLIENTS = int(os.environ.get("STANDIN_MPS_CLIENTS", "48"))
LONGEST = 65536
PATIENCE_S = 20
UNITS = {"G": 1 << 30, "M": 1 << 20, "K": 1 << 10, "B": 1}
LAUNCH_FAILED, NOT_READY, TOO_MANY, TERMINATED = 719, 807, 808, 810
"""as the driver numbers them"""


def log(who: str, text: str) -> None:
    name = "control.log" if who == "Control" else "server.log"
    stamp = time.strftime("%Y-%m-%d %H:%M:%S") + f".{time.time_ns() // 1_000_000 % 1000:03d}"
    with open(LOGS / name, "a") as file:
        file.write(f"[{stamp} {who} {os.getpid()}] {text}\n")


def ask(path: Path, message: str) -> str:
    """One request to a daemon or a server, and its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(PATIENCE_S)
        line.connect(str(path))
        line.send(message.encode())
        return line.recv(LONGEST).decode()


def listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    bound.bind(str(path))
    path.chmod(0o666)  # as NVIDIA's: what protects it is its folder
    bound.listen(128)
    return bound


def parse_bytes(text: str) -> int:
    """`512M` or `4G`."""
    unit = text[-1:].upper()
    return int(text[:-1]) * UNITS[unit] if unit in UNITS else int(text)


def parse_limits(text: str) -> dict[str, int]:
    """`0=1G,1=512M`: bytes by device."""
    return {device: parse_bytes(value) for device, _, value in (one.partition("=") for one in text.split(",") if one)}


class Server:
    """Admits clients, tells them their limits, and ends them all if one of them has a fatal exception."""

    def __init__(self, percent: float, limits: dict[str, int]) -> None:
        self.percent, self.limits = percent, limits
        self.clients: dict[socket.socket, int] = {}
        """their process IDs, by connection"""
        self.status = "ACTIVE"

    def run(self) -> None:
        path = PIPE / f"server-{os.getpid()}"
        bound, chosen = listen(path), selectors.DefaultSelector()
        chosen.register(bound, selectors.EVENT_READ)
        log("Server", "Volta MPS server started")
        print("ready", flush=True)
        while True:
            for key, _ in chosen.select():
                if key.fileobj is bound:
                    chosen.register(bound.accept()[0], selectors.EVENT_READ)
                    continue
                line = key.fileobj
                assert isinstance(line, socket.socket)
                try:
                    message = line.recv(LONGEST).decode()
                except OSError:
                    message = ""
                if not message or not self.hear(line, message):
                    chosen.unregister(line)
                    line.close()
                    self.leave(line)

    def hear(self, line: socket.socket, message: str) -> bool:
        """Answers one message; whether the connection stays."""
        word, _, rest = message.partition(" ")
        if word == "hello":
            return self.admit(line, rest)
        if word == "fault":
            self.fault(self.clients.get(line, 0))
            return True
        line.send(self.answer(word, rest.split()).encode() or b"\n")
        return False

    def admit(self, line: socket.socket, wish: str) -> bool:
        pid = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        problem = NOT_READY if self.status == "FAULT" else TOO_MANY if len(self.clients) >= MOST_CLIENTS else 0
        if problem:
            log("Server", f"Client {pid} refused: error {problem}")
            line.send(f"error {problem}".encode())
            return False
        percent, _, limits = wish.partition(" ")
        own = parse_limits(limits)
        merged = {one: min(own.get(one, 1 << 62), self.limits.get(one, 1 << 62)) for one in {*own, *self.limits}}
        share = min(float(percent or 100), self.percent)
        said = ",".join(f"{device}={amount}" for device, amount in sorted(merged.items()))
        line.send(f"ok {share:g} {said}".encode())
        self.clients[line] = pid
        log("Server", f"New client {pid} connected")
        return True

    def fault(self, pid: int) -> None:
        self.status = "FAULT"
        log("Server", f"Client {pid} caused a fatal exception on device 0; all clients of the device are ended")
        self.tell(self.clients, LAUNCH_FAILED)

    def tell(self, lines: "dict[socket.socket, int] | list[socket.socket]", error: int) -> None:
        for line in lines:
            with contextlib.suppress(OSError):
                line.send(f"error {error}".encode())

    def leave(self, line: socket.socket) -> None:
        pid = self.clients.pop(line, None)
        if pid is not None:
            log("Server", f"Client {pid} disconnected")
            if not self.clients:
                self.status = "ACTIVE"

    def answer(self, word: str, words: list[str]) -> str:
        match word, words:
            case "clients", []:
                return "\n".join(map(str, sorted(set(self.clients.values()))))
            case "status", []:
                return self.status
            case "get-percent", []:
                return f"{self.percent:.1f}"
            case "set-percent", [value]:
                self.percent = float(value)
            case "get-limit", [device]:
                return str(self.limits.get(device, 0))
            case "set-limit", [device, value]:
                self.limits[device] = parse_bytes(value)
            case "terminate", [pid]:
                gone = [line for line, client in self.clients.items() if client == int(pid)]
                self.tell(gone, TERMINATED)
                return "" if gone else f"Client {pid} not found"
        return ""


class Control:
    """Starts the server when the first client comes, and answers commands."""

    def __init__(self) -> None:
        self.percent, self.limits = 100.0, dict[str, int]()
        self.server: subprocess.Popen[bytes] | None = None
        self.quit_at: float | None = None

    def run(self, bound: socket.socket) -> None:
        bound.settimeout(0.1)
        while True:
            try:
                line = bound.accept()[0]
            except TimeoutError:
                if self.quit_at is not None and (time.monotonic() >= self.quit_at or not self.clients()):
                    return self.end()
                continue
            with line:
                line.settimeout(PATIENCE_S)
                with contextlib.suppress(OSError):
                    line.send(self.answer(line.recv(LONGEST).decode().split()).encode() or b"\n")

    def end(self) -> None:
        if self.alive():
            assert self.server is not None
            self.server.terminate()
            self.server.wait()
        for name in ("control", PID_FILE.name):
            (PIPE / name).unlink(missing_ok=True)
        log("Control", "Exit")

    def alive(self) -> bool:
        return self.server is not None and self.server.poll() is None

    def socket_of(self, pid: int) -> Path:
        return PIPE / f"server-{pid}"

    def started(self) -> int:
        """The process ID of the server, which is started if there is none."""
        if not self.alive():
            state = json.dumps([self.percent, self.limits])
            command = [sys.executable, "-IS", __file__, "nvidia-cuda-mps-server", state]
            self.server = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
            assert self.server.stdout is not None
            self.server.stdout.readline()
            log("Control", f"Starting new server {self.server.pid} for user {os.getuid()}")
        assert self.server is not None
        return self.server.pid

    def clients(self) -> list[str]:
        return ask(self.socket_of(self.started()), "clients").split() if self.alive() else []

    def answer(self, words: list[str]) -> str:
        if words == ["connect"]:
            return f"error {NOT_READY}" if self.quit_at is not None else str(self.socket_of(self.started()))
        log("Control", f"Received command: {' '.join(words)}")
        if len(words) > 1 and words[1].isdigit() and words[0] in OF_SERVERS:
            return self.of_server(words)
        match words:
            case ["get_server_list"]:
                return str(self.started()) if self.alive() else ""
            case ["start_server", "-uid", uid]:
                return "" if int(uid) == os.getuid() and self.started() else "Failed to start server"
            case ["get_default_active_thread_percentage"]:
                return f"{self.percent:.1f}"
            case ["set_default_active_thread_percentage", value]:
                self.percent = float(value)
                return f"{self.percent:.1f}"
            case ["get_default_device_pinned_mem_limit", device]:
                return str(self.limits.get(device, 0))
            case ["set_default_device_pinned_mem_limit", device, value]:
                self.limits[device] = parse_bytes(value)
                return ""
            case ["get_device_client_list"] | ["ps"]:
                return "\n".join(self.clients())
            case ["quit"] | ["quit", "-t", _]:
                self.quit_at = time.monotonic() + (float(words[2]) if len(words) > 2 else 1e9)
                return ""
        return f"Unknown command {' '.join(words)}"

    def of_server(self, words: list[str]) -> str:
        pid = int(words[1])
        if not self.alive() or self.started() != pid:
            return f"Server {pid} not found"
        return ask(self.socket_of(pid), " ".join([OF_SERVERS[words[0]], *words[2:]])).strip()


OF_SERVERS = {
    "get_server_status": "status",
    "get_client_list": "clients",
    "get_device_client_list": "clients",
    "get_active_thread_percentage": "get-percent",
    "set_active_thread_percentage": "set-percent",
    "get_device_pinned_mem_limit": "get-limit",
    "set_device_pinned_mem_limit": "set-limit",
    "terminate_client": "terminate",
}
"""commands whose first argument is the process ID of a server, in the words of the server"""


def daemon(background: bool) -> None:
    try:
        ask(PIPE / "control", "get_server_list")
    except OSError:
        pass
    else:
        sys.exit("An instance of this daemon is already running")
    bound = listen(PIPE / "control")
    if background:
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
    PID_FILE.write_text(str(os.getpid()))
    log("Control", "Start")
    Control().run(bound)


def main(words: list[str]) -> None:
    match words:
        case ["nvidia-cuda-mps-server", state]:
            Server(*json.loads(state)).run()
        case ["-d"] | ["-f"]:
            daemon(words == ["-d"])
        case []:
            for command in sys.stdin:
                try:
                    answer = ask(PIPE / "control", command.strip()).strip()
                except OSError:
                    sys.exit("Cannot find MPS control daemon process")
                if answer:
                    print(answer)
        case _:
            sys.exit(f"usage: nvidia-cuda-mps-control [-d | -f], not {' '.join(words)}")


if __name__ == "__main__":
    main(sys.argv[1:])
