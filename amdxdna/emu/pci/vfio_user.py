"""A vfio-user server for one PCI function and one client (QEMU); standard library only.

Message formats follow the vfio-user specification (QEMU: docs/interop/vfio-user.rst): a 16-byte header of
message id, command, size, flags and error, then the command's own body; descriptors travel beside the
message they belong to.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .msix import Interrupts

(
    VERSION,
    DMA_MAP,
    DMA_UNMAP,
    GET_INFO,
    GET_REGION_INFO,
    GET_REGION_IO_FDS,
    GET_IRQ_INFO,
    SET_IRQS,
    REGION_READ,
    REGION_WRITE,
    DMA_READ,
    DMA_WRITE,
    RESET,
    _,
    REGION_WRITE_MULTI,
) = range(1, 16)

CONFIG_REGION = 7
_REGIONS = 9
_IRQ_KINDS = 5
_MSIX = 2

_HEADER = struct.Struct("<HHIII")
_REPLY, _NO_REPLY, _ERROR = 0x1, 0x10, 0x20
_DEVICE_RESET, _DEVICE_PCI = 1, 2
_REGION_READ_WRITE = 3
_IRQ_EVENTFD, _IRQ_NORESIZE = 1, 8
_SET_NONE, _SET_EVENTFD = 1, 4
_UNMAP_ALL = 2
# Descriptors beyond QEMU's own limit would be dropped by the kernel unseen.
_MAX_FDS = 16
_LARGEST_BODY = 2 << 20


class Function(Protocol):
    """What the server serves. Regions 0-5 are the BARs, 7 is configuration space."""

    interrupts: Interrupts

    def region_size(self, region: int) -> int:
        """Size in bytes; 0 for a region the function does not have."""

    def read(self, region: int, offset: int, count: int) -> bytes:
        """The `count` bytes that a read by the guest gets."""

    def write(self, region: int, offset: int, data: bytes) -> None:
        """Takes a write by the guest."""

    def map_dma(self, address: int, size: int, fd: int, offset: int) -> None:
        """Makes guest memory reachable; `fd` stays the server's and is closed after the call."""

    def unmap_dma(self, address: int, size: int) -> None:
        """Makes that guest memory unreachable."""

    def unmap_all(self) -> None:
        """Makes all guest memory unreachable."""

    def reset(self) -> None:
        """Resets the function."""


def _answers(path: Path) -> bool:
    """Whether a server listens on a socket."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as trial:
        trial.setblocking(False)
        try:
            trial.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # Not even a place in its queue, or not ours to connect to: somebody's.
            return True
        return True


def _check_seal(fd: int) -> None:
    """Raises OSError for memory that could be cut off: an access behind a file's end would end this process.

    QEMU's memory-backend-memfd seals its file unless told otherwise.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise OSError(errno.EINVAL, "guest memory that is no memfd sealed against shrinking")


class Server:
    """Listens on a Unix socket and serves one client after another until `close`.

    `serve` runs in the calling thread; `close` may be called from any other, or a signal's handler.
    Only the socket's owner can connect. A socket that a server left behind is replaced. Raises OSError where
    it cannot listen, EADDRINUSE where another server does.
    """

    def __init__(
        self, path: str | os.PathLike[str], function: Function, log: Callable[[str], None] = lambda _: None
    ) -> None:
        self.path = Path(path)
        self._function = function
        self._log = log
        self._fds: list[int] = []
        self._client: socket.socket | None = None
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._inode = self._listen()
        except BaseException:
            self._listener.close()
            raise
        self._handlers: dict[int, Callable[[bytes], bytes]] = {
            VERSION: self._version,
            DMA_MAP: self._dma_map,
            DMA_UNMAP: self._dma_unmap,
            GET_INFO: self._info,
            GET_REGION_INFO: self._region_info,
            GET_IRQ_INFO: self._irq_info,
            SET_IRQS: self._set_irqs,
            REGION_READ: self._read,
            REGION_WRITE: self._write,
            REGION_WRITE_MULTI: self._write_multi,
            RESET: self._reset,
        }

    def _listen(self) -> int:
        """Binds the socket; its inode."""
        # Of two servers that start at once the second must see the first's socket, not replace it.
        folder = os.open(self.path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if self.path.is_socket():
                if _answers(self.path):
                    raise OSError(errno.EADDRINUSE, "another server listens there")
                self.path.unlink()
            # The mode that bind gives the file, less the umask (Linux, net/unix/af_unix.c): nobody else may
            # connect even for a moment.
            os.fchmod(self._listener.fileno(), 0o600)
            self._listener.bind(str(self.path))
            self._listener.listen(1)
            return self.path.stat().st_ino
        finally:
            os.close(folder)

    def serve(self) -> None:
        """Serves one connection after another until closed."""
        while not self._closed:
            try:
                self._client, _ = self._listener.accept()
            except OSError:
                break
            self._log("client connected")
            try:
                if not self._closed:  # by a signal's handler, which did not know this client
                    self._session(self._client)
            except (ConnectionError, OSError) as reason:
                if not self._closed:
                    self._log(f"client lost: {reason}")
            finally:
                self._client.close()
                self._drop_descriptors()
                self._function.interrupts.disconnect()
                self._function.unmap_all()
            self._log("client gone")

    def close(self) -> None:
        """Stops serving and removes the socket. Idempotent."""
        self._closed = True
        for each in (self._client, self._listener):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()

    # -- messages

    def _receive(self, client: socket.socket, count: int, *, descriptors: bool = False) -> bytes:
        """Exactly `count` bytes. A message's header is read alone, so that descriptors stay with it."""
        data = b""
        while len(data) < count:
            if descriptors:
                part, ancillary, _, _ = client.recvmsg(count - len(data), socket.CMSG_SPACE(4 * _MAX_FDS))
                for level, kind, payload in ancillary:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        fds = array.array("i")
                        fds.frombytes(payload[: len(payload) - len(payload) % 4])
                        self._fds += fds
            else:
                part = client.recv(count - len(data))
            if not part:
                raise ConnectionError("connection closed")
            data += part
        return data

    def _session(self, client: socket.socket) -> None:
        while True:
            try:
                header = self._receive(client, _HEADER.size, descriptors=True)
            except ConnectionError:
                return
            number, command, size, flags, _ = _HEADER.unpack(header)
            if not _HEADER.size <= size <= _LARGEST_BODY:
                raise ConnectionError(f"a message of {size} bytes")
            body = self._receive(client, size - _HEADER.size)
            error, reply = self._answer(command, body)
            self._drop_descriptors()
            if not flags & _NO_REPLY:
                kind = _REPLY | (_ERROR if error else 0)
                client.sendall(_HEADER.pack(number, command, _HEADER.size + len(reply), kind, error) + reply)

    def _drop_descriptors(self) -> None:
        """Closes what came with a message and was not taken."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def _answer(self, command: int, body: bytes) -> tuple[int, bytes]:
        handler = self._handlers.get(command)
        if handler is None:
            self._log(f"command {command} is not implemented")
            return errno.EOPNOTSUPP, b""
        try:
            return 0, handler(body)
        except struct.error:
            return errno.EINVAL, b""
        except OSError as reason:
            self._log(f"command {command}: {reason}")
            return reason.errno or errno.EIO, b""
        except Exception as reason:  # a fault of the model must not look like a guest that hangs
            self._log(f"command {command}: {type(reason).__name__}: {reason}")
            traceback.print_exc()
            return errno.EIO, b""

    def _version(self, body: bytes) -> bytes:
        major, minor = struct.unpack_from("<HH", body)
        capabilities = {
            "max_msg_fds": _MAX_FDS,
            "max_data_xfer_size": 1 << 20,
            "pgsizes": 4096,
            "max_dma_maps": 65535,
        }
        text = json.dumps({"capabilities": capabilities}).encode()
        return struct.pack("<HH", major, min(minor, 1)) + text + b"\0"

    def _dma_map(self, body: bytes) -> bytes:
        _, _, offset, address, size = struct.unpack_from("<IIQQQ", body)
        # Ranges without a descriptor (ROM, MMIO) can only be reached by messages; nothing here needs them.
        if self._fds:
            _check_seal(self._fds[0])
            self._function.map_dma(address, size, self._fds[0], offset)
        return b""

    def _dma_unmap(self, body: bytes) -> bytes:
        _, flags, address, size = struct.unpack_from("<IIQQ", body)
        if flags & _UNMAP_ALL:
            self._function.unmap_all()
        else:
            self._function.unmap_dma(address, size)
        return body[:24]

    def _info(self, body: bytes) -> bytes:
        return struct.pack("<IIII", 16, _DEVICE_RESET | _DEVICE_PCI, _REGIONS, _IRQ_KINDS)

    def _region_info(self, body: bytes) -> bytes:
        _, _, region, _ = struct.unpack_from("<IIII", body)
        size = self._function.region_size(region)
        return struct.pack("<IIIIQQ", 32, _REGION_READ_WRITE if size else 0, region, 0, size, 0)

    def _irq_info(self, body: bytes) -> bytes:
        _, _, kind, _ = struct.unpack_from("<IIII", body)
        count = self._function.interrupts.count if kind == _MSIX else 0
        return struct.pack("<IIII", 16, _IRQ_EVENTFD | _IRQ_NORESIZE if count else 0, kind, count)

    def _set_irqs(self, body: bytes) -> bytes:
        _, flags, kind, start, count = struct.unpack_from("<IIIII", body)
        interrupts = self._function.interrupts
        if kind != _MSIX:
            return b""
        if start + count > interrupts.count:
            raise OSError(errno.EINVAL, f"vectors {start} to {start + count} of {interrupts.count}")
        if flags & _SET_EVENTFD:
            for vector in range(start, start + count):
                if self._fds:
                    interrupts.connect(vector, self._fds.pop(0))
                else:
                    interrupts.disconnect(vector)
        elif flags & _SET_NONE and count == 0:
            interrupts.disconnect()
        return b""

    def _read(self, body: bytes) -> bytes:
        offset, region, count = struct.unpack_from("<QII", body)
        if count > _LARGEST_BODY:
            raise OSError(errno.EINVAL, f"a read of {count} bytes")
        return body[:16] + self._function.read(region, offset, count)

    def _write(self, body: bytes) -> bytes:
        offset, region, count = struct.unpack_from("<QII", body)
        self._function.write(region, offset, body[16 : 16 + count])
        return body[:16]

    def _write_multi(self, body: bytes) -> bytes:
        (count,) = struct.unpack_from("<Q", body)
        for i in range(count):
            at = 8 + 24 * i
            offset, region, size = struct.unpack_from("<QII", body, at)
            self._function.write(region, offset, body[at + 16 : at + 16 + min(size, 8)])
        return body[:8]

    def _reset(self, body: bytes) -> bytes:
        self._function.reset()
        return b""
