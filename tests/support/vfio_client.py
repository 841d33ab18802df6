"""A client of the vfio-user server."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from pathlib import Path

HEADER = struct.Struct("<HHIII")
PAGE = 4096


def sealed(size: int, data: bytes = b"") -> int:
    """Guest memory as QEMU makes it: a memfd that cannot shrink."""
    fd = os.memfd_create("ram", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


class Client:
    """QEMU's side."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.number = 0

    def message(self, command: int, body: bytes, flags: int = 0) -> bytes:
        """A request's bytes."""
        self.number += 1
        return HEADER.pack(self.number, command, 16 + len(body), flags, 0) + body

    def send(self, data: bytes, fds: list[int] | None = None) -> None:
        """Sends bytes, descriptors beside the first of them."""
        if fds:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())]
            sent = self.socket.sendmsg([data], ancillary)
            data = data[sent:]
        self.socket.sendall(data)

    def reply(self) -> tuple[int, int, bytes]:
        """(message id, error, body) of the next reply."""
        header = self._exactly(16)
        number, _, size, flags, error = HEADER.unpack(header)
        assert flags & 1, "not a reply"
        assert bool(flags & 0x20) == bool(error)
        return number, error, self._exactly(size - 16)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionError
            data += part
        return data

    def ask(self, command: int, body: bytes = b"", fds: list[int] | None = None) -> bytes:
        """A request without error; the reply's body."""
        self.send(self.message(command, body), fds)
        number, error, reply = self.reply()
        assert (number, error) == (self.number, 0)
        return reply
