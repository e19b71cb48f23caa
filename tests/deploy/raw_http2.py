"""As much HTTP/2 as a test needs to misbehave: frames, and headers that are never compressed.

Answers are frames; their header blocks are not decoded.
"""

import socket
import struct
import time

DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
MAX_CONCURRENT_STREAMS = 3
FRAME_BYTES = 16384


def _integer(value, prefix_bits):
    """RFC 7541, 5.1, with the rest of the first byte zero."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([value])
    value -= most
    out = bytes([most])
    while value >= 128:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def header_block(headers):
    """Literals without indexing and without Huffman codes (RFC 7541, 6.2.2)."""
    out = b""
    for name, value in headers:
        out += b"\0" + _integer(len(name), 7) + name.encode() + _integer(len(value), 7) + value.encode()
    return out


class Connection:
    """One connection; `frames` keeps (type, flags, stream, payload) of all that came."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.frames = []
        self.closed = False
        self._bytes = b""
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self._frame(SETTINGS, 0, 0, b""))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    @staticmethod
    def _frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    def call(self, stream, path, message=None, more=()):
        """Sends a gRPC call; without a message it stays open."""
        block = header_block([(":method", "POST"), (":scheme", "http"), (":path", path),
                              (":authority", "ringfill"), ("content-type", "application/grpc"),
                              ("te", "trailers"), *more])
        parts = [block[i:i + FRAME_BYTES] for i in range(0, len(block), FRAME_BYTES)]
        out = bytearray()
        for i, part in enumerate(parts):
            last = END_HEADERS if i + 1 == len(parts) else 0
            out += self._frame(HEADERS if i == 0 else CONTINUATION, last, stream, part)
        if message is not None:
            framed = b"\0" + struct.pack(">I", len(message)) + message
            out += self._frame(DATA, END_STREAM, stream, framed)
        try:
            self.socket.sendall(out)
        except OSError:
            self.closed = True  # the other end has had enough

    def read(self, until, seconds=10):
        """Reads until `until()`, the end of the connection or the time; returns whether until()."""
        deadline = time.monotonic() + seconds
        while not until() and not self.closed:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.socket.settimeout(left)
            try:
                got = self.socket.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                got = b""
            if not got:
                self.closed = True
            self._take(got)
        return until()

    def _take(self, got):
        self._bytes += got
        while len(self._bytes) >= 9:
            size = int.from_bytes(self._bytes[:3], "big")
            if len(self._bytes) < 9 + size:
                return
            kind, flags, stream = struct.unpack(">BBI", self._bytes[3:9])
            payload = self._bytes[9:9 + size]
            self._bytes = self._bytes[9 + size:]
            self.frames.append((kind, flags, stream, payload))
            if kind in (SETTINGS, PING) and not flags & ACK:
                answer = payload if kind == PING else b""
                self.socket.sendall(self._frame(kind, ACK, 0, answer))

    def setting(self, number):
        """What the other end set."""
        self.read(lambda: any(kind == SETTINGS and not flags & ACK for kind, flags, _, _ in self.frames))
        for kind, flags, _, payload in self.frames:
            if kind == SETTINGS and not flags & ACK:
                pairs = dict(struct.iter_unpack(">HI", payload))
                return pairs.get(number)
        return None

    def ended(self, stream):
        """Whether the other end has ended a stream."""
        return any(its == stream and (kind == RST_STREAM or kind in (DATA, HEADERS) and flags & END_STREAM)
                   for kind, flags, its, _ in self.frames)

    def data(self, stream):
        return b"".join(payload for kind, _, its, payload in self.frames
                        if kind == DATA and its == stream)


def health(port, service="ringfill.v1.Ringfill", more=()):
    """What the health service says, as a probe asks: SERVING, NOT_SERVING, or None without an answer."""
    message = b"\x0a" + bytes([len(service)]) + service.encode() if service else b""
    with Connection(port) as connection:
        connection.call(1, "/grpc.health.v1.Health/Check", message, more)
        connection.read(lambda: connection.ended(1))
        answers = {b"\0\0\0\0\2\x08\1": "SERVING", b"\0\0\0\0\2\x08\2": "NOT_SERVING"}
        return answers.get(connection.data(1))
