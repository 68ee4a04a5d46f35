"""The WebSocket conversations: websocket_client.py HOST:PORT NAME [TOKEN]

HOST:PORT is dialled, NAME goes into the Host header, TOKEN says who is calling. Each conversation prints one line of JSON,
[its name, what came of it], with nothing in it that may differ between two runs, so that the runs with and without a proxy
can be compared. What must come of it in any case is checked here; where it does not, the outcome begins with "FAILED".

The Autobahn suite asks about the same sections of RFC 6455 as the frames by hand, and more, where there is a Python 2.7 for it.
"""

import base64
import concurrent.futures
import hashlib
import json
import os
import socket
import struct
import sys

import websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory as Deflate
from websockets.sync.client import connect

ADDRESS = (sys.argv[1].rpartition(":")[0], int(sys.argv[1].rpartition(":")[2]))
NAME = sys.argv[2]
HEADERS = {"Authorization": "Bearer " + sys.argv[3]} if len(sys.argv) > 3 else {}
SIZES = (0, 1, 125, 126, 127, 65535, 65536, 65537, 1 << 20, 5 << 20)
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

conversations = {}


def conversation(name, *arguments):
    """Registers a function as a conversation, under its arguments too."""

    def register(function):
        conversations[" ".join([name, *map(str, arguments)])] = lambda: function(*arguments)
        return function

    return register


def dial():
    return socket.create_connection(ADDRESS, timeout=20)


def opened(path="/echo", **options):
    options = {"compression": None, "max_size": None, "ping_interval": None, "proxy": None, "close_timeout": 5} | options
    return connect(f"ws://{NAME}{path}", sock=dial(), additional_headers=HEADERS, **options)


def must(got, want):
    if got != want:
        raise AssertionError(f"got {brief(got)}, want {brief(want)}")


def brief(value):
    text = repr(value)
    return text if len(text) < 200 else f"{text[:100]}… of {len(text)}, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def ended(ws):
    """How the connection ended: the codes and reasons that were received and sent."""
    try:
        message = ws.recv(timeout=20)
        raise AssertionError(f"got {brief(message)}, want an end")
    except ConnectionClosed as end:
        return [[frame.code, frame.reason] if frame else None for frame in (end.rcvd, end.sent)]


# The library websockets, as its users have it.

for size in SIZES:

    @conversation("binary", size)
    def binary(size):
        message = os.urandom(size)
        with opened() as ws:
            ws.send(message)
            must(ws.recv(timeout=20), message)

    @conversation("compressed text", size)
    def compressed_text(size):
        message = ("Größe, 大きさ, μέγεθος 🙂 " * (size // 20 + 1))[:size]
        with opened(compression="deflate") as ws:
            must([e.name for e in ws.protocol.extensions], ["permessage-deflate"])
            for _ in range(3):  # the second uses what the compressor remembers of the first
                ws.send(message)
                must(ws.recv(timeout=20), message)


for options in (
    {"server_no_context_takeover": True},
    {"client_no_context_takeover": True},
    {"server_max_window_bits": 9},
    {"client_max_window_bits": 9},
    {"server_no_context_takeover": True, "client_no_context_takeover": True, "server_max_window_bits": 15, "client_max_window_bits": 12},
):

    @conversation("deflate", options)
    def deflate(options):
        with opened(extensions=[Deflate(**options)]) as ws:
            for i in range(20):
                message = os.urandom(7 * i) + b"again and again " * i
                ws.send(message)
                must(ws.recv(timeout=20), message)
            return ws.response.headers["Sec-WebSocket-Extensions"]


for offered in (["v1.echo"], ["v1.echo", "v2.echo"], ["v2.echo", "no-such"]):

    @conversation("subprotocol of", offered)
    def subprotocol(offered):
        with opened(subprotocols=offered) as ws:
            must(ws.subprotocol, "v2.echo" if "v2.echo" in offered else "v1.echo")
            return ws.subprotocol


@conversation("no subprotocol in common")
def no_subprotocol():
    with opened(subprotocols=["no-such"]) as ws:
        must(ws.subprotocol, None)


@conversation("refused handshake")
def refused_handshake():
    try:
        opened("/refuse").close()
    except InvalidStatus as refused:
        must([refused.response.status_code, refused.response.body], [418, b"no WebSocket here\n"])
        return refused.response.headers["Content-Type"]
    raise AssertionError("opened")


@conversation("fragments to the job")
def fragments_to_the_job():
    with opened() as ws:
        ws.send(["eins ", "zwei ", "", "drei é", "🙂"])
        must(ws.recv(timeout=20), "eins zwei drei é🙂")
        ws.send([os.urandom(70_000)[:1] * 70_000, b"", b"end"])
        must(len(ws.recv(timeout=20)), 70_003)


@conversation("fragments from the job")
def fragments_from_the_job():
    with opened("/fragments") as ws:
        parts = list(ws.recv_streaming())
        must("".join(parts), "one two três")
        return [parts, ended(ws)]


@conversation("pings to the job")
def pings_to_the_job():
    with opened() as ws:
        for payload in (b"", b"hello", bytes(125)):
            must(ws.ping(payload).wait(20), True)
        ws.send("after")
        must(ws.recv(timeout=20), "after")


@conversation("pings from the job")
def pings_from_the_job():
    with opened("/ping") as ws:
        must(ws.recv(timeout=20), "you are")
        return ended(ws)


@conversation("a thousand messages from the job")
def many():
    with opened("/many") as ws:
        for i in range(1000):
            must(ws.recv(timeout=20), f"{i}:" + "x" * (i % 300))
        return ended(ws)


@conversation("a thousand messages to the job before one is read")
def pipelined():
    with opened(max_queue=None) as ws:
        for i in range(1000):
            ws.send(str(i))
        must([ws.recv(timeout=20) for _ in range(1000)], [str(i) for i in range(1000)])


@conversation("fifty connections at once")
def fifty():
    def one(number):
        with opened() as ws:
            for i in range(20):
                ws.send(f"{number} {i}")
                must(ws.recv(timeout=20), f"{number} {i}")

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        list(pool.map(one, range(50)))


for code in (1000, 1001, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999):

    @conversation("the job closes with", code)
    def job_closes(code):
        with opened(f"/close/{code}") as ws:
            must(how := ended(ws), [[code, f"told to: {code}"]] * 2)
            return how

    @conversation("the caller closes with", code)
    def caller_closes(code):
        with opened() as ws:
            ws.close(code, "é" * 61)  # 122 bytes; 123 is the most
            must(how := ended(ws), [[code, "é" * 61]] * 2)
            return how


@conversation("the job vanishes")
def job_vanishes():
    with opened("/vanish") as ws:
        must(how := ended(ws)[0], None)
        return how


# Another library.


@conversation("websocket-client")
def another_library():
    ws = websocket.create_connection(
        f"ws://{NAME}/echo", socket=dial(), timeout=20, subprotocols=["v1.echo"], header=[f"{k}: {v}" for k, v in HEADERS.items()]
    )
    must(ws.subprotocol, "v1.echo")
    for size in SIZES:
        ws.send_binary(message := os.urandom(size))
        must(ws.recv(), message)
    ws.send("Größe 🙂")
    must(ws.recv(), "Größe 🙂")
    ws.ping("still there?")
    must(ws.recv_data(control_frame=True), (PONG, b"still there?"))
    ws.send_close(4321, b"enough")
    opcode, payload = ws.recv_data(control_frame=True)
    must([opcode, payload], [CLOSE, struct.pack("!H", 4321) + b"enough"])
    ws.shutdown()


# Frames made by hand: what no library sends.


def frame(opcode, payload=b"", fin=1, rsv=0, masked=True, length=None):
    """length: an encoding of the length longer than needed, of so many bytes."""
    head = bytes([fin << 7 | rsv << 4 | opcode])
    mark = 0x80 if masked else 0
    if length == 8 or len(payload) > 65535:
        head += bytes([mark | 127]) + struct.pack("!Q", len(payload))
    elif length == 2 or len(payload) > 125:
        head += bytes([mark | 126]) + struct.pack("!H", len(payload))
    else:
        head += bytes([mark | len(payload)])
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + bytes(b ^ key[i % 4] for i, b in enumerate(payload))


def closing(code, reason=b""):
    return frame(CLOSE, struct.pack("!H", code) + reason)


class Raw:
    """A connection whose frames we write and read ourselves. early goes out in one write with the handshake."""

    def __init__(self, early=b"", chopped=False, key=None, version="13"):
        key = key or base64.b64encode(os.urandom(16)).decode()
        lines = [
            "GET /echo HTTP/1.1", f"Host: {NAME}", "Connection: Upgrade", "Upgrade: websocket",
            f"Sec-WebSocket-Version: {version}", f"Sec-WebSocket-Key: {key}", *(f"{k}: {v}" for k, v in HEADERS.items()),
        ]
        request = "\r\n".join(lines).encode() + b"\r\n\r\n" + early
        self.sock = dial()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in [request[i : i + 1] for i in range(len(request))] if chopped else [request]:
            self.sock.sendall(piece)
        self.file = self.sock.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        while self.file.readline() not in (b"\r\n", b""):
            pass

    def read(self):
        """The next frame as [opcode, fin, rsv, payload], or None at the end."""
        try:
            head = self.file.read(2)
            if len(head) < 2:
                return None
            length = head[1] & 0x7F
            if length >= 126:
                length = int.from_bytes(self.file.read(2 if length == 126 else 8), "big")
            payload = self.file.read(length)
        except ConnectionError:
            return None
        return [head[0] & 15, head[0] >> 7, head[0] >> 4 & 7, payload]

    def end(self, frames, code):
        """Says good-bye if it is the caller who is to close, and returns the frames and all that follow up to the end. A
        close is answered; it must be the last, with the code."""
        if code == 1000:
            self.sock.sendall(closing(1000, b"bye"))
        for got in frames:
            got[3] = brief(got[3])
        frames += (rest := self.rest())
        must([[f[0], f[3][0]] for f in rest], [[CLOSE, code]])
        return frames

    def rest(self):
        frames = []
        while got := self.read():
            if got[0] == CLOSE:
                # The words after the code are the library's own, and the same in both runs.
                got[3] = [int.from_bytes(got[3][:2], "big"), got[3][2:].decode()]
                try:
                    self.sock.sendall(frame(CLOSE, struct.pack("!H", got[3][0]) if got[3][0] else b""))
                except ConnectionError:
                    pass
            else:
                got[3] = brief(got[3])
            frames.append(got)
        self.sock.close()
        return frames


def raw(name, *frames, code, echoes=0, chopped=False):
    """Sends the frames at once, or byte by byte, reads so many answers, says good-bye if there is a reason left to, and
    checks with which code the job closes."""

    @conversation("by hand: " + name)
    def by_hand():
        connection = Raw()
        must(connection.status, 101)
        data = b"".join(frames)
        for piece in [data[i : i + 1] for i in range(len(data))] if chopped else [data]:
            connection.sock.sendall(piece)
        return connection.end([connection.read() for _ in range(echoes)], code)


raw("a text", frame(TEXT, b"hello"), echoes=1, code=1000)
raw("byte by byte", frame(PING, b"p"), frame(TEXT, "Größe 🙂".encode()), frame(BINARY, bytes(200)), echoes=3, code=1000, chopped=True)
raw("a ping between fragments", frame(TEXT, b"a", fin=0), frame(PING, b"p"), frame(CONTINUATION, b"b"), echoes=2, code=1000)
raw("a character in two fragments", frame(TEXT, b"\xf0\x9f", fin=0), frame(CONTINUATION, b"\x99\x82"), echoes=1, code=1000)
raw("a pong that nobody asked for", frame(PONG, b"p"), code=1000)
raw("ten pings", *[frame(PING, bytes([i])) for i in range(10)], echoes=10, code=1000)
raw("length in 2 bytes that fits in 7 bits", frame(TEXT, b"hello", length=2), echoes=1, code=1000)
raw("length in 8 bytes that fits in 7 bits", frame(TEXT, b"hello", length=8), echoes=1, code=1000)
raw("a close without a code", frame(CLOSE), code=0)
raw("text after a close", closing(4000), frame(TEXT, b"late"), code=4000)
raw("no mask", frame(TEXT, b"hello", masked=False), code=1002)
for bit in (1, 2, 4):
    raw(f"reserved bits {bit}", frame(TEXT, b"hello", rsv=bit), code=1002)
for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15):
    raw(f"reserved opcode {opcode}", frame(opcode, b"hello"), code=1002)
raw("a ping of 126 bytes", frame(PING, bytes(126)), code=1002)
raw("a ping in fragments", frame(PING, b"p", fin=0), frame(CONTINUATION, b"q"), code=1002)
raw("a continuation of nothing", frame(CONTINUATION, b"a"), code=1002)
raw("a text within a text", frame(TEXT, b"a", fin=0), frame(TEXT, b"b"), code=1002)
raw("a close of 1 byte", frame(CLOSE, b"\x03"), code=1002)
for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2999, 5000, 65535):
    raw(f"close code {code}", closing(code), code=1002)
for name, text in {
    "invalid": b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited", "overlong": b"\xc0\xaf", "cut": b"\xf0\x9f\x99",
    "surrogate": b"\xed\xb0\x80", "beyond Unicode": b"\xf4\x90\x80\x80", "lonely": b"\x80",
}.items():
    raw(f"UTF-8 that is {name}", frame(TEXT, text), code=1007)
raw("a close whose reason is no UTF-8", closing(1000, b"\xff"), code=1007)
raw("a message that is too long", frame(BINARY, b"", fin=0)[:-4].replace(b"\x80", b"\xff") + struct.pack("!Q", 1 << 40) + b"mask", code=1009)


@conversation("by hand: frames in one write with the handshake")
def early_frames():
    connection = Raw(early=frame(TEXT, b"early") + frame(BINARY, bytes(70_000)))
    must(connection.status, 101)
    return connection.end([connection.read(), connection.read()], 1000)


@conversation("by hand: a handshake byte by byte")
def chopped_handshake():
    connection = Raw(chopped=True, early=frame(TEXT, b"early"))
    must(connection.status, 101)
    return connection.end([connection.read()], 1000)


@conversation("by hand: the caller's half is closed behind a close, the answer arrives")
def half_closed():
    for _ in range(20):  # a proxy that closes both halves may win the race once
        connection = Raw()
        must(connection.status, 101)
        connection.sock.sendall(frame(BINARY, bytes(500_000)) + closing(4000))
        connection.sock.shutdown(socket.SHUT_WR)
        connection.end([], 4000)


@conversation("by hand: the caller vanishes in the middle of a frame")
def vanishes():
    connection = Raw()
    must(connection.status, 101)
    connection.sock.sendall(frame(BINARY, bytes(500))[:300])
    connection.sock.shutdown(socket.SHUT_WR)
    return connection.rest()


for key in ("not base64!", base64.b64encode(bytes(15)).decode()):

    @conversation("by hand: a handshake with the key", key)
    def bad_key(key):
        must(Raw(key=key).status, 400)


@conversation("by hand: a handshake of version 12")
def old_version():
    must(Raw(version="12").status, 400)  # 426 would be better; it is the job's word


for name, converse in conversations.items():
    try:
        outcome = converse()
    except Exception as failure:
        outcome = f"FAILED: {type(failure).__name__}: {failure}"
    print(json.dumps([name, outcome]), flush=True)
