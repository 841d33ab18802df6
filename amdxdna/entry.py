"""The edges of a command line's process: limits of the shell, the exit status.

Both command lines go through :func:`guarded`. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from types import FrameType

from amdxdna.streams import discard, flushed, require_streams

FAILED, USAGE, INTERRUPTED = 1, 2, 130

MANY = "the limit on processes and threads is reached (ulimit -u; in a container its limit on pids)"
_TOO_MANY = f"no thread can be started: {MANY}: raise it, or end other programs"

ADDRESS_SPACE, DATA = 424 << 20, 136 << 20
"""Bytes of address space (RLIMIT_AS) and of private memory (RLIMIT_DATA) that the main job takes beside its
threads' stacks: below, libraries abort or hang where an allocation fails. Measured with the built-in model,
with 8 MiB stacks on two cores: a text is answered from 380 and 160 MiB on, a picture from 400 and 180."""
_THREADS, _POOLS = 4, (64, 64, 16)
"""Threads on one core; and how many at most, one a core, numpy's OpenBLAS, the emulated kernels and the host
math have."""
_STACK, _LEAST_STACK = 2 << 20, 256 << 10
"""A thread's stack where no limit is set (ARCH_STACK_DEFAULT_SIZE of glibc's pthreaddef.h for x86-64), and
the least that is not refused: the main job crashes at 72 KiB and answers from 80 on, Python itself at 64."""
_MEMORY = (
    (resource.RLIMIT_AS, "the address space", "ulimit -v"),
    (resource.RLIMIT_DATA, "private memory", "ulimit -d"),
)
_ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h
_AFTER = 0.05
"""Seconds after which a finalizer's hook has surely returned."""


def guarded(
    body: Callable[[], int],
    tell: Callable[[str], None],
    failed: Callable[[BaseException], int],
    last: bool = False,
) -> int:
    """Runs a command and returns its exit status: 0, 1, 2 or 130, also where the streams are at fault.

    `tell` writes one line on stderr, `failed` reports an exception and returns its status. With
    `last` the process ends with the command, and from then on Ctrl-C is ignored: the second of an impatient
    person would be raised in the interpreter's end, where Python drops it with a page of text.
    """
    if not last or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return _told(body, tell, failed)
    stopping = False

    def inside() -> int:
        return body()

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        while frame is not None:
            if frame.f_code is inside.__code__:
                break
            frame = frame.f_back
        else:
            if stopping:
                return  # the command is over, and its end is being told
        stopping = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    try:
        status = _told(inside, tell, failed)
    except KeyboardInterrupt:  # the first, while a result was flushed
        status = _told(_stopped, tell, failed)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status


def _stopped() -> int:
    raise KeyboardInterrupt


def _told(
    body: Callable[[], int], tell: Callable[[str], None], failed: Callable[[BaseException], int]
) -> int:
    require_streams()
    sys.unraisablehook = _unraisable
    try:
        _require_stack()
        status = body()
        if take_back():
            raise KeyboardInterrupt
    except SystemError as error:
        # CPython's own, where a second Ctrl-C comes while it makes the first one's exception.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            return flushed(failed(error), tell)
        tell("stopped")
        status = INTERRUPTED
    except SystemExit as leaving:  # --help, --version
        status = leaving.code if isinstance(leaving.code, int) else FAILED
    except KeyboardInterrupt as stopped:
        if no_threads(stopped):
            tell(f"error: {_TOO_MANY}")
            status = FAILED
        else:
            tell(f"stopped: {stopped}" if str(stopped) else "stopped")
            status = INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout went away: there is nobody to tell.
        discard(1)
        status = FAILED
    except BaseException as error:  # Rust's panics are no Exception
        status = FAILED
        with contextlib.suppress(OSError, ValueError):  # of the streams, on which it is told
            status = failed(error)
    return flushed(status, tell)


def needed(bound: int, more: int = 0, cores: int = 0) -> int:
    """Bytes that RLIMIT_AS or RLIMIT_DATA must allow the main job, and `more`; cores 0: those here."""
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    stack = _STACK if stack == resource.RLIM_INFINITY else stack
    cores = cores or len(os.sched_getaffinity(0))
    threads = _THREADS + sum(min(cores, most) - 1 for most in _POOLS)
    return (ADDRESS_SPACE if bound == resource.RLIMIT_AS else DATA) + more + threads * stack


def require_memory(space: int = 0, data: int = 0) -> None:
    """Raises MemoryError where a limit of this process leaves less memory than loading takes.

    `space` bytes of address space and `data` of private memory are for what comes beside the main job.
    The libraries abort where it runs out under them, so it is asked for before they are loaded.
    """
    for (bound, what, how), more in zip(_MEMORY, (space, data), strict=True):
        soft, _ = resource.getrlimit(bound)
        if soft == resource.RLIM_INFINITY:
            continue
        need = needed(bound, more)
        if soft < need:
            raise MemoryError(
                f"{what} is limited to {soft >> 20:,} MiB ({how}) and at least {need >> 20:,} are needed: "
                "raise the limit"
            )
        _one_arena()


def _one_arena() -> None:
    """Keeps glibc's malloc from reserving 64 MiB of address space and more for each thread that allocates.

    Where that is limited, what comes later would find none.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def _require_stack() -> None:
    """Raises MemoryError where the stack is too small for libraries, which crash then."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != resource.RLIM_INFINITY and soft < _LEAST_STACK:
        raise MemoryError(
            f"the stack is limited to {soft >> 10:,} KiB (ulimit -s) and at least {_LEAST_STACK >> 10:,} are "
            "needed: raise the limit"
        )


def library_fault(error: BaseException) -> str | None:
    """What kept a library from loading, in one line out of the page that numpy writes; else None."""
    if not isinstance(error, ImportError):
        return None
    seen: BaseException = error
    while seen.__cause__ is not None:
        seen = seen.__cause__
    if not isinstance(seen, ImportError):
        return None
    first = next((line for line in str(seen).splitlines() if line.strip()), type(seen).__name__)
    name = getattr(error, "name", None) or ""
    if isinstance(seen, ModuleNotFoundError):
        return f"the package {name or first} is not installed: python -m pip install {name.partition('.')[0]}"
    remedy = "install it again"
    if "cannot allocate" in first.lower() or "failed to map" in first.lower():
        remedy = "memory or address space ran out (ulimit -v)"
    return f"a library cannot be loaded: {first}: {remedy}"


def thread_fault(error: BaseException) -> str | None:
    """One line for Python's error where no thread can be started, else None."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return _TOO_MANY + "".join(
            f"; or {what} is too small for its stack ({how})"
            for bound, what, how in _MEMORY
            if resource.getrlimit(bound)[0] != resource.RLIM_INFINITY
        )
    return None


def memory_fault(error: BaseException) -> str | None:
    """One line for an error of memory that ran out, with the limit it may have run into; else None."""
    if not isinstance(error, MemoryError) and not (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return None
    if isinstance(error, MemoryError) and "ulimit" in str(error):
        return f"out of memory: {error}"
    for bound, what, how in _MEMORY:
        soft, _ = resource.getrlimit(bound)
        if soft != resource.RLIM_INFINITY:
            return f"out of memory: {what} is limited to {soft >> 20:,} MiB ({how}): raise the limit"
    return None


def descriptor_fault(error: BaseException) -> str | None:
    """One line for an error of file descriptors that ran out, or one raised for it; else None."""
    seen: BaseException | None = error
    while seen is not None and (number := getattr(seen, "errno", None)) not in (errno.EMFILE, errno.ENFILE):
        seen = seen.__cause__ or seen.__context__
    if seen is None:
        return None
    if number == errno.ENFILE:
        return "file descriptors ran out on this machine (fs.file-max): end other programs"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"file descriptors ran out: {soft:,} may be open (ulimit -n): raise the limit"


def nearest(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The `known` names that `word` may have been meant for, the likeliest first."""
    names = {name.lower(): name for name in known}
    return [names[name] for name in difflib.get_close_matches(word.lower(), names, most, 0.65)]


def no_threads(stopped: KeyboardInterrupt) -> bool:
    """Whether it was numpy's OpenBLAS that raised SIGINT, which it does where it cannot start its threads.

    OpenBLAS, driver/others/blas_server.c, blas_thread_init: raise(SIGINT) after pthread_create failed.
    """
    frames = traceback.extract_tb(stopped.__traceback__)
    # Where amdxdna.signals.imports held it back, it comes out of that.
    if not any(f"{os.sep}numpy{os.sep}" in frame.filename or frame.name == "imports" for frame in frames):
        return False
    try:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    except RuntimeError:
        return True
    return False


_dropped: list[type[BaseException]] = []
"""Each Ctrl-C, or what is handled like it, that came in a finalizer, where Python drops exceptions."""
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def take_back() -> bool:
    """Whether a Ctrl-C that came in a finalizer was still to be sent again. It no longer is: the caller acts
    on it."""
    try:
        _dropped.pop()
    except IndexError:
        return False
    _dropped.clear()
    return True


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Sends a Ctrl-C that came in a finalizer once more, when the finalizer is over.

    Where SIGINT is ignored, as in a background job, it was SIGTERM or SIGHUP that raised it.
    """
    if not issubclass(what.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(what)
        return
    _dropped.append(what.exc_type)

    def again() -> None:
        time.sleep(_AFTER)
        handled = [number for number in _STOPPING if callable(signal.getsignal(number))]
        if handled and take_back():
            signal.pthread_kill(threading.main_thread().ident or 0, handled[0])

    with contextlib.suppress(RuntimeError):
        threading.Thread(target=again, daemon=True).start()
