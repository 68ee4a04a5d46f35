"""A job for the WebSocket conversations: it answers at YT_PORT_0 with the library websockets, differently by path."""

import asyncio
import os
import signal

from websockets.asyncio.server import serve


def refuse(connection, request):
    if request.path == "/refuse":
        return connection.respond(418, "no WebSocket here\n")
    return None


def select(connection, offered):
    return next((name for name in ("v2.echo", "v1.echo") if name in offered), None)


async def answer(connection):
    path = connection.request.path
    if path.startswith("/close/"):
        code = int(path.removeprefix("/close/"))
        await connection.close(code, f"told to: {code}")
    elif path == "/vanish":
        connection.transport.abort()
    elif path == "/fragments":

        async def parts():
            for part in ("one ", "", "two ", "três"):
                yield part

        await connection.send(parts())
        await connection.close()
    elif path == "/ping":
        for payload in (b"", b"are you there", bytes(125)):
            await (await connection.ping(payload))
        await connection.send("you are")
        await connection.close()
    elif path == "/many":
        for i in range(1000):
            await connection.send(f"{i}:" + "x" * (i % 300))
        await connection.close()
    else:  # an echo
        async for message in connection:
            await connection.send(message)


async def main():
    end = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.cancel)
    async with serve(
        answer,
        "127.0.0.1",
        int(os.environ["YT_PORT_0"]),
        process_request=refuse,
        select_subprotocol=select,
        max_size=32 << 20,
        ping_interval=None,
        close_timeout=2,
    ):
        try:
            await end
        except asyncio.CancelledError:
            pass


asyncio.run(main())
