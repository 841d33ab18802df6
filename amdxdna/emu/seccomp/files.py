"""Answers to the calls that name files: open, stat, access, listings and so on of the node and its sysfs."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass

from amdxdna._native import ffi
from amdxdna.emu.driver.errors import error
from amdxdna.emu.seccomp.rights import thread_status
from amdxdna.emu.seccomp.tree import MAJOR, NODE_INODE, Tree

# arch/x86/entry/syscalls/syscall_64.tbl
OPEN, STAT, FSTAT, LSTAT, MMAP, IOCTL, ACCESS, READLINK, CHMOD = 2, 4, 5, 6, 9, 16, 21, 89, 90
OPENAT, NEWFSTATAT, READLINKAT, FCHMODAT, FACCESSAT = 257, 262, 267, 268, 269
STATX, OPENAT2, FACCESSAT2 = 332, 437, 439
GETXATTR, LGETXATTR, LISTXATTR, LLISTXATTR = 191, 192, 194, 195
CHDIR, FCHDIR, GETCWD, GETDENTS, GETDENTS64 = 80, 81, 79, 78, 217
LSEEK, PREAD, PWRITE, EXECVE, EPOLL_CTL, OPEN_TREE = 8, 17, 18, 59, 233, 428
TRUNCATE, FALLOCATE = 76, 285
# After those with names: preadv, pwritev, preadv2, pwritev2, sendfile, splice, copy_file_range, ftruncate,
# fsync, fdatasync, readahead.
CONTENTS = frozenset({PREAD, PWRITE, FALLOCATE, 295, 296, 327, 328, 40, 275, 326, 77, 74, 75, 187})
"""Calls on a descriptor that only a file with contents can answer."""
_HAVE_FOLDER = {OPENAT, OPENAT2, NEWFSTATAT, STATX, FACCESSAT, FACCESSAT2, READLINKAT, FCHMODAT}
OPENS = {OPEN, OPENAT, OPENAT2}
_XATTRS = {GETXATTR, LGETXATTR, LISTXATTR, LLISTXATTR}
CALLS = {OPEN, STAT, LSTAT, ACCESS, READLINK, CHMOD, CHDIR, TRUNCATE} | _XATTRS | _HAVE_FOLDER
AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH = -100, 0x100, 0x1000
STATX_BASIC = 0x7FF
_STAT = struct.Struct("<QQQIII4xQqqq6Q24x")
_STATX = struct.Struct("<IIQIIIH2xQQQQ" + "qI4x" * 4 + "IIII112x")
_OPEN_HOW = struct.Struct("<Q")
_DT_CHR = 2
_DIRENT = struct.Struct("<QqH")
_MOST_ENTRIES = 1 << 16
_LONGEST_ENTRY = 280
"""Bytes of struct linux_dirent64 with a name of 255."""
_libc = ctypes.CDLL(None, use_errno=True)
_OWN_FD = re.compile(r"/proc/(?:self|thread-self|(\d+)(?:/task/\d+)?)/(fd/\d+|cwd)")


def path_argument(nr: int) -> int:
    """Which argument of a call of CALLS is the path."""
    return int(nr in _HAVE_FOLDER)


@dataclass
class Caller:
    """Who calls: the thread, its process, its effective user and groups."""

    thread: int
    process: int
    user: int
    groups: frozenset[int]

    @classmethod
    def of(cls, thread: int) -> Caller:
        """Reads /proc. Raises OSError when the thread is gone."""
        fields = thread_status(thread)
        groups = {int(group) for group in fields["Groups"].split()} | {int(fields["Gid"].split()[1])}
        return cls(thread, int(fields["Tgid"]), int(fields["Uid"].split()[1]), frozenset(groups))


class Files:
    """Path lookups of the program. `node_mode` is what chmod of the node changes."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.node_mode = 0o666

    def folder(self, nr: int, thread: int, arguments: list[int]) -> str:
        """Where a call's relative paths begin. Raises OSError when that cannot be told."""
        number = int(struct.unpack("<i", struct.pack("<I", arguments[0] & 0xFFFFFFFF))[0])
        at = "cwd" if nr not in _HAVE_FOLDER or number == AT_FDCWD else f"fd/{number}"
        return os.readlink(f"/proc/{thread}/{at}")

    def descriptor(self, thread: int, path: str) -> str | None:
        """The same link under the caller's own number, when the path is that of a process's descriptor or
        folder."""
        match = _OWN_FD.fullmatch(path)
        return None if match is None else f"/proc/{match[1] or thread}/{match[2]}"

    def plain(self, path: str) -> str | None:
        """The program's path of what is in the tree; None for what is not."""
        root = self.tree.root
        if path != root and not path.startswith(root + "/"):
            return None
        return path[len(root) :] or "/"

    def entries(self, fd: int, nr: int, size: int, folder: str) -> bytes:
        """What getdents tells of the node's folder, where the node is a character device, and of a folder
        that has paths of the tree, which begins with them.

        `fd` shares its position with the program's. Raises OSError.
        """
        size = min(size, _MOST_ENTRIES)
        added = self.tree.additions.get(folder)
        if added and not os.lseek(fd, 0, os.SEEK_CUR):
            first = b"".join(_dirent(nr, *entry) for entry in added)
            if size >= len(first) + _LONGEST_ENTRY:
                return first + self._real_entries(fd, nr, size - len(first))
        return self._real_entries(fd, nr, size)

    def _real_entries(self, fd: int, nr: int, size: int) -> bytes:
        data = ffi.new("char[]", size)
        count = int(_libc.syscall(nr, fd, ctypes.c_void_p(int(ffi.cast("uintptr_t", data))), len(data)))
        if count < 0:
            raise error(ctypes.get_errno())
        listed = bytearray(ffi.buffer(data, count))
        name = os.fsencode(os.path.basename(self.tree.node))
        at = 0
        while at < count:
            length = int.from_bytes(listed[at + 16 : at + 18], "little")
            start = at + (19 if nr == GETDENTS64 else 18)
            if bytes(listed[start : at + length]).partition(b"\0")[0] == name:
                listed[at : at + 8] = NODE_INODE.to_bytes(8, "little")
                listed[at + 18 if nr == GETDENTS64 else at + length - 1] = _DT_CHR
            at += length
        return bytes(listed)

    def open_flags(self, nr: int, arguments: list[int], read: Callable[[int, int], bytes]) -> int:
        """The flags of an open."""
        if nr == OPENAT2:
            return int(_OPEN_HOW.unpack(read(arguments[2], _OPEN_HOW.size))[0])
        return arguments[1 if nr == OPEN else 2] & 0xFFFFFFFF

    def check_node(self, flags: int, caller: Caller) -> None:
        """What the kernel checks before the driver's open: type and permission. Raises OSError."""
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise error(errno.EEXIST)
        if flags & os.O_DIRECTORY:
            raise error(errno.ENOTDIR)
        if flags & os.O_PATH:
            return
        wanted = {os.O_RDONLY: os.R_OK, os.O_WRONLY: os.W_OK}.get(flags & os.O_ACCMODE, os.R_OK | os.W_OK)
        self._permit(wanted, caller)

    def _permit(self, wanted: int, caller: Caller) -> None:
        """The node belongs to user 0 and group 0."""
        if caller.user == 0:
            return
        bits = self.node_mode >> 3 & 7 if 0 in caller.groups else self.node_mode & 7
        if wanted & ~bits:
            raise error(errno.EACCES)

    def check_entry(self, entry: int, flags: int) -> None:
        """What an open of a file, folder or link of the tree checks at any rate. Raises OSError."""
        mode = os.fstat(entry).st_mode
        if flags & os.O_DIRECTORY and not stat.S_ISDIR(mode):
            raise error(errno.ENOTDIR)
        if stat.S_ISLNK(mode):
            raise error(errno.ELOOP)

    def open_entry(self, entry: int, flags: int) -> int:
        """A descriptor of a file or folder of the tree. Raises OSError as the open would."""
        self.check_entry(entry, flags)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise error(errno.EISDIR if stat.S_ISDIR(os.fstat(entry).st_mode) else errno.EACCES)
        return os.open(f"/proc/self/fd/{entry}", os.O_RDONLY | os.O_CLOEXEC)

    # -- calls about a path; each returns the call's value, and what to write where

    def follows(self, nr: int, arguments: list[int]) -> bool:
        """Whether a call that is no open follows a link at the path's end."""
        if nr in (NEWFSTATAT, FACCESSAT2):
            return not arguments[3] & AT_SYMLINK_NOFOLLOW
        if nr == STATX:
            return not arguments[2] & AT_SYMLINK_NOFOLLOW
        return nr not in (LSTAT, READLINK, READLINKAT, LGETXATTR, LLISTXATTR)

    def answer(
        self, nr: int, arguments: list[int], entry: int | None, caller: Callable[[], Caller]
    ) -> tuple[int, int, bytes]:
        """The value of a call about `entry` of the tree, None for the node, and bytes to write at an address.

        Raises OSError with the call's errno.
        """
        a = arguments
        is_node = entry is None
        if nr in (ACCESS, FACCESSAT, FACCESSAT2):
            self._access(a[1 if nr == ACCESS else 2] & 7, entry, caller)
            return 0, 0, b""
        if nr in (CHMOD, FCHMODAT):
            if not is_node or caller().user != 0:
                raise error(errno.EPERM)
            self.node_mode = a[1 if nr == CHMOD else 2] & 0o777
            return 0, 0, b""
        if nr in (READLINK, READLINKAT):
            if entry is None or not stat.S_ISLNK(os.fstat(entry).st_mode):
                raise error(errno.EINVAL)
            return self.link(nr, a, os.readlink("", dir_fd=entry))
        if nr == CHDIR:
            raise error(errno.ENOTDIR)
        if nr == TRUNCATE:
            raise error(errno.EINVAL if is_node else errno.EACCES)
        if nr in _XATTRS:
            if nr in (GETXATTR, LGETXATTR):
                raise error(errno.ENODATA)
            return 0, 0, b""
        return self.status(nr, a, self.node_status() if entry is None else os.fstat(entry))

    def link(self, nr: int, arguments: list[int], target: str) -> tuple[int, int, bytes]:
        """The answer to a readlink."""
        at, size = arguments[1:3] if nr == READLINK else arguments[2:4]
        data = os.fsencode(target)[: size & 0xFFFFFFFF]
        return len(data), at, data

    def status(self, nr: int, arguments: list[int], status: os.stat_result) -> tuple[int, int, bytes]:
        """The answer to a call of the stat family."""
        if nr == STATX:
            return 0, arguments[4], statx_bytes(status)
        return 0, arguments[2 if nr == NEWFSTATAT else 1], stat_bytes(status)

    def _access(self, mode: int, entry: int | None, caller: Callable[[], Caller]) -> None:
        if entry is None:
            if mode & os.X_OK:
                raise error(errno.EACCES)
            self._permit(mode, caller())
        else:
            status = os.fstat(entry)
            if mode & os.W_OK or (mode & os.X_OK and not stat.S_ISDIR(status.st_mode)):
                raise error(errno.EACCES)

    def node_status(self) -> os.stat_result:
        """What stat tells of the node: a character device."""
        return os.stat_result(
            (stat.S_IFCHR | self.node_mode, NODE_INODE, 5, 1, 0, 0, 0, 0, 0, 0),
            {
                "st_rdev": os.makedev(MAJOR, self.tree.number),
                "st_blksize": 4096,
                "st_blocks": 0,
                "st_atime_ns": 0,
                "st_mtime_ns": 0,
                "st_ctime_ns": 0,
            },
        )


def _dirent(nr: int, name: str, inode: int, kind: int) -> bytes:
    """An entry of getdents. Who seeks to what follows it gets it once more: its position is the first."""
    text = os.fsencode(name) + b"\0"
    before = bytes([kind]) if nr == GETDENTS64 else b""
    after = b"" if nr == GETDENTS64 else bytes([kind])
    length = -(-(_DIRENT.size + len(before + text + after)) // 8) * 8
    body = _DIRENT.pack(inode, 0, length) + before + text
    return body.ljust(length - len(after), b"\0") + after


def stat_bytes(s: os.stat_result) -> bytes:
    """struct stat of x86-64; every file belongs to root."""
    times = [part for ns in (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns) for part in divmod(ns, 10**9)]
    return _STAT.pack(
        s.st_dev,
        s.st_ino,
        s.st_nlink,
        s.st_mode,
        0,
        0,
        s.st_rdev,
        s.st_size,
        s.st_blksize,
        s.st_blocks,
        *times,
    )


def statx_bytes(s: os.stat_result) -> bytes:
    """struct statx with the basic fields."""
    times = [part for ns in (s.st_atime_ns, 0, s.st_ctime_ns, s.st_mtime_ns) for part in divmod(ns, 10**9)]
    return _STATX.pack(
        STATX_BASIC,
        s.st_blksize,
        0,
        s.st_nlink,
        0,
        0,
        s.st_mode,
        s.st_ino,
        s.st_size,
        s.st_blocks,
        0,
        *times,
        os.major(s.st_rdev),
        os.minor(s.st_rdev),
        os.major(s.st_dev),
        os.minor(s.st_dev),
    )
