# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Stays registered with kubelet, which forgets every plugin and removes its socket whenever it is restarted.

It may also come later than we do, or be away for long: we look once a second and begin again.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.api.error_log import ErrorLog, to_stderr

REGISTER = "/v1beta1.Registration/Register"
VERSION = "v1beta1"
KUBELET = "kubelet.sock"
LONGEST_NAME = 24
"""of a resource in the name of a socket, whose whole path may have 107 bytes"""
LOOK_S = 1.0
MOST_LOOKS = 5
"""until kubelet must follow the devices that it was told of"""
LONGEST_PAUSE_S = 8.0
PATIENCE_S = 10.0
"""kubelet connects back to us before it answers"""


@dataclass(frozen=True, slots=True)
class Served:
    """A plugin that listens."""

    path: Path
    server: grpc.aio.Server


async def keep_registered(
    folder: Path,
    resource: str,
    options: pb.DevicePluginOptions,
    handler: grpc.GenericRpcHandler,
    error_log: ErrorLog,
    *,
    before: Callable[[], Awaitable[None]],
    watched: Callable[[], bool],
    say: Callable[[str], object] = to_stderr,
    look_s: float = LOOK_S,
) -> None:
    """Serves a plugin in kubelet's folder until cancelled; `before` is awaited each time before kubelet is told.

    Kubelet gives a plugin up when it no longer hears from it; `watched` says whether it listens.
    """
    served: Served | None = None
    told: tuple[int, ...] | None = None
    generation, unheard, pause_s = 0, 0, look_s
    _remove_sockets(folder, resource)
    try:
        while True:
            kubelet = _identity(folder / KUBELET)
            unheard = 0 if watched() else unheard + 1
            if kubelet is None:
                error_log.report(f"no kubelet for {resource}", f"nothing at {folder / KUBELET}; waiting for it")
            elif served is None or kubelet != told or unheard > MOST_LOOKS or not served.path.exists():
                try:
                    if served is not None and not served.path.exists():
                        await _stop(served)
                        served = None
                    if served is None:
                        # A name of its own each time: the old server may still remove its socket.
                        generation += 1
                        served = await _serve(folder / _socket_name(resource, generation), handler)
                    await before()
                    await _register(folder / KUBELET, served.path.name, resource, options)
                    told, unheard, pause_s = kubelet, 0, look_s
                    say(f"device plugin: kubelet knows {resource} at {served.path.name}")
                except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
                    reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                    error_log.report(f"registration of {resource}", f"{reason or type(error).__name__}; trying again")
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)
    finally:
        if served is not None:
            await _stop(served)


async def _serve(path: Path, handler: grpc.GenericRpcHandler) -> Served:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{path}")  # RuntimeError where it cannot listen there
    path.chmod(0o600)
    await server.start()
    return Served(path, server)


async def _stop(served: Served) -> None:
    await served.server.stop(grace=None)
    served.path.unlink(missing_ok=True)


async def _register(kubelet: Path, endpoint: str, resource: str, options: pb.DevicePluginOptions) -> None:
    async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
        call = channel.unary_unary(
            REGISTER,
            request_serializer=pb.RegisterRequest.SerializeToString,
            response_deserializer=pb.Empty.FromString,
        )
        request = pb.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=options)
        await call(request, timeout=PATIENCE_S)


def _identity(path: Path) -> tuple[int, ...] | None:
    """Which socket it is; the inode's number alone may be used again."""
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
    """What an agent has left that was killed."""
    for path in folder.glob(f"{_stem(resource)}-*.sock"):
        path.unlink(missing_ok=True)
