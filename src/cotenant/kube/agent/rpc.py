# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The only module that imports gRPC: servers and calls on unix sockets, with errors of our own.

gRPC's threads do not survive a fork, so everything that may start a program runs before the first call here.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never, TypeVar

import grpc
from google.protobuf.message import Message

from cotenant.errors import CotenantError, InputError

Context = grpc.aio.ServicerContext[object, object]
Handler = grpc.GenericRpcHandler
Unary = tuple[Callable[[Any, Context], Awaitable[Message]], type[Message]]
"""A method with one answer, and the type of its request."""
Stream = tuple[Callable[[Any, Context], AsyncIterator[Message]], type[Message]]
"""A method with many answers, and the type of its request."""
A = TypeVar("A", bound=Message)


class RpcError(CotenantError):
    """A call that was not answered, or was refused."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens on a unix socket."""

    path: Path
    _server: grpc.aio.Server

    async def stop(self) -> None:
        """Ends all calls at once and removes the socket."""
        await self._server.stop(grace=None)
        self.path.unlink(missing_ok=True)


def handler_for(service: str, unary: Mapping[str, Unary], streams: Mapping[str, Stream]) -> Handler:
    """The methods of a service, by name."""
    methods: dict[str, Any] = {}
    for name, (method, request) in unary.items():
        methods[name] = grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=request.FromString, response_serializer=_encode
        )
    for name, (stream, request) in streams.items():
        methods[name] = grpc.unary_stream_rpc_method_handler(
            stream, request_deserializer=request.FromString, response_serializer=_encode
        )
    return grpc.method_handlers_generic_handler(service, methods)


async def serve(path: Path, *handlers: Handler) -> Server:
    """A server that only root can connect to; OSError or RpcError if it cannot listen there."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise RpcError(str(error)) from None
    path.chmod(0o600)
    await server.start()
    return Server(path, server)


async def call(
    socket: Path, method: str, request: Message, answer: type[A], *, timeout_s: float, most_bytes: int | None = None
) -> A:
    """The answer to one call; RpcError if there is none within the time.

    Each call has a connection of its own: one that is kept waits for up to minutes before it tries a restarted server.
    """
    options = [] if most_bytes is None else [("grpc.max_receive_message_length", most_bytes)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        question = channel.unary_unary(method, request_serializer=_encode, response_deserializer=answer.FromString)
        try:
            found: A = await question(request, timeout=timeout_s)
            return found
        except grpc.aio.AioRpcError as error:
            raise RpcError(error.details() or error.code().name) from None


async def refuse(context: Context, error: CotenantError) -> Never:
    """Ends a call with an error."""
    code = grpc.StatusCode.INVALID_ARGUMENT if isinstance(error, InputError) else grpc.StatusCode.INTERNAL
    await context.abort(code, str(error))
    raise AssertionError("abort raises")


def _encode(message: Message) -> bytes:
    return message.SerializeToString()
