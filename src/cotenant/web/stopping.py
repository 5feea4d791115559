# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Ends open streams when the server stops: their viewers connect to the next server, and this one need not wait."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


def ending_streams(app: ASGIApp, stop: asyncio.Event) -> ASGIApp:
    """The application; when `stop` is set, it sees all its clients disconnect, and their responses are completed."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        is_open = False

        async def send_noted(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        async def receive_until_stopped() -> Message:
            tasks = [asyncio.ensure_future(receive()), asyncio.ensure_future(stop.wait())]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                received = tasks[0]
                return received.result() if received.done() else {"type": "http.disconnect"}  # type: ignore[return-value]
            finally:
                for task in tasks:
                    task.cancel()

        await app(scope, receive_until_stopped, send_noted)
        if is_open and stop.is_set():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return serve
