# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps a device plugin registered with kubelet.

Kubelet forgets every plugin and removes its socket when it restarts. It may also start later than the agent, or be away
for long. So the agent looks at kubelet's socket once a second, and registers again if it is another one.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.agent.rpc import Handler, RpcError, Server, call, serve
from cotenant.kube.api.error_log import ErrorLog, to_stderr

REGISTER = "/v1beta1.Registration/Register"
VERSION = "v1beta1"
KUBELET = "kubelet.sock"
LONGEST_NAME = 24
"""Characters of a resource in the name of a socket, whose whole path may have 107 bytes."""
LOOK_S = 1.0
MOST_LOOKS = 5
"""Looks within which kubelet must begin to watch the devices after a registration."""
LONGEST_PAUSE_S = 8.0
PATIENCE_S = 10.0
"""Time for kubelet's answer: it connects to the plugin before it answers."""


async def keep_registered(
    folder: Path,
    resource: str,
    options: pb.DevicePluginOptions,
    handler: Handler,
    error_log: ErrorLog,
    *,
    before: Callable[[], Awaitable[None]],
    watched: Callable[[], bool],
    say: Callable[[str], object] = to_stderr,
    look_s: float = LOOK_S,
) -> None:
    """Serves a plugin in kubelet's folder until cancelled; `before` is awaited before each registration.

    `watched` says whether kubelet watches the plugin's devices. If it does not, kubelet has dropped the plugin.
    """
    server: Server | None = None
    registered_with: tuple[int, ...] | None = None
    generation, unwatched, pause_s = 0, 0, look_s
    _remove_sockets(folder, resource)
    try:
        while True:
            kubelet = _identity(folder / KUBELET)
            unwatched = 0 if watched() else unwatched + 1
            if kubelet is None:
                error_log.report(f"no kubelet for {resource}", f"nothing at {folder / KUBELET}; waiting for it")
            elif server is None or kubelet != registered_with or unwatched > MOST_LOOKS or not server.path.exists():
                try:
                    if server is not None and not server.path.exists():
                        await server.stop()
                        server = None
                    if server is None:
                        # Each socket has a name of its own, because the old server may still remove its socket.
                        generation += 1
                        server = await serve(folder / _socket_name(resource, generation), handler)
                    await before()
                    await _register(folder / KUBELET, server.path.name, resource, options)
                    registered_with, unwatched, pause_s = kubelet, 0, look_s
                    say(f"device plugin: kubelet knows {resource} at {server.path.name}")
                except (OSError, RpcError) as error:
                    reason = str(error) or type(error).__name__
                    error_log.report(f"registration of {resource}", f"{reason}; trying again")
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)
    finally:
        if server is not None:
            await server.stop()


async def _register(kubelet: Path, endpoint: str, resource: str, options: pb.DevicePluginOptions) -> None:
    request = pb.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=options)
    await call(kubelet, REGISTER, request, pb.Empty, timeout_s=PATIENCE_S)


def _identity(path: Path) -> tuple[int, ...] | None:
    """Which socket it is. The inode's number alone is not enough, since it may be used again."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_ctime_ns


def _socket_name(resource: str, generation: int) -> str:
    return f"{_stem(resource)}-{generation}.sock"


def _stem(resource: str) -> str:
    readable = re.sub(r"[^a-z0-9]+", "-", resource.lower())[:LONGEST_NAME]
    return f"cotenant-{readable}-{hashlib.sha256(resource.encode()).hexdigest()[:8]}"


def _remove_sockets(folder: Path, resource: str) -> None:
    """Removes sockets that a killed agent has left."""
    for path in folder.glob(f"{_stem(resource)}-*.sock"):
        path.unlink(missing_ok=True)
