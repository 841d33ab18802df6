"""The error table and the exception tree."""

from __future__ import annotations

import errno
import inspect
import pickle

import pytest

from amdxdna import errors
from amdxdna.causes import CAUSES, explain, from_errno
from amdxdna.errors import XdnaError
from amdxdna.ioctl import REQUESTS

TREE = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, XdnaError)]


def test_the_tree_is_one():
    assert len(TREE) > 15
    assert all(issubclass(c, OSError) for c in TREE)
    for builtin, kind in (
        (ValueError, errors.BadArgument),
        (TimeoutError, errors.WaitTimeout),
        (MemoryError, errors.OutOfMemory),
        (ValueError, errors.BadXclbin),
    ):
        assert issubclass(kind, builtin)


def test_what_an_error_does_not_say_is_nothing():
    assert errors.NoFreeContext("full").certain and errors.NoFreeContext("full").holders == ()
    heap = errors.OutOfHeap("full")
    assert (heap.requested, heap.used, heap.size, heap.limit) == (0, 0, 0, 0)
    assert (errors.CommandFailed("no").state, errors.CommandFailed("no").index) == (0, None)
    assert [kind("no").in_flight for kind in (errors.CommandTimeout, errors.CommandInFlight)] == [False, True]
    assert errors.BadXclbin("no").offset == errors.BadElf("no").offset == 0


@pytest.mark.parametrize("row", sorted(CAUSES), ids=lambda r: f"{r[0]}-{errno.errorcode[r[1]]}")
def test_every_row_says_what_and_what_to_do(row):
    error = from_errno(*row)
    assert error.call == row[0] and error.errno == row[1]
    assert isinstance(error, CAUSES[row].error)
    for text in (error.meaning, error.remedy):
        assert len(text) > 8 and text == text.strip() and not text.endswith(".")
    shown = str(error)
    name = "EOPNOTSUPP" if row[1] == errno.EOPNOTSUPP else errno.errorcode[row[1]]
    assert name in shown and error.meaning in shown and error.remedy in shown


@pytest.mark.parametrize(
    ("call", "code", "kind"),
    [
        # What a person meets first.
        ("open", errno.ENOENT, errors.NoDevice),
        ("open", errno.EACCES, errors.PermissionDenied),
        ("open", errno.ENODEV, errors.NoDevice),
        ("open", errno.EOPNOTSUPP, errors.NoDevice),
        ("open", errno.EINVAL, errors.NoDevice),
        ("open", errno.EBUSY, errors.DeviceBusy),
        ("CREATE_BO DEV", errno.EAGAIN, errors.OutOfHeap),
        ("CREATE_BO DEV", errno.EINVAL, errors.OutOfHeap),
        ("CREATE_BO SHARE", errno.ENOSPC, errors.OutOfMemory),
        ("CREATE_BO DEV_HEAP", errno.ENOSPC, errors.OutOfHeap),
        ("CREATE_BO userptr", errno.EPERM, errors.OutOfMemory),
        ("CREATE_BO userptr", errno.EFAULT, errors.BadArgument),
        ("CREATE_HWCTX", errno.EINVAL, errors.NoFreeContext),
        ("CREATE_HWCTX", errno.ENODEV, errors.DeviceLost),
        ("CREATE_HWCTX", errno.ENOSPC, errors.OutOfHeap),
        ("CREATE_HWCTX", errno.EBUSY, errors.NoFreeContext),
        ("CREATE_HWCTX", errno.ETIME, errors.DeviceLost),
        ("CREATE_HWCTX", errno.ENOENT, errors.BadArgument),
        ("CREATE_HWCTX", errno.EAGAIN, errors.OutOfHeap),
        ("CONFIG_HWCTX", errno.E2BIG, errors.BadArgument),
        ("CONFIG_HWCTX", errno.EFAULT, errors.BadArgument),
        ("EXEC_CMD", errno.EALREADY, errors.BadArgument),
        ("EXEC_CMD", errno.ENOENT, errors.Closed),
        ("SYNCOBJ_TIMELINE_WAIT", errno.ETIME, errors.WaitTimeout),
        ("SYNCOBJ_TIMELINE_WAIT", errno.ENOENT, errors.Closed),
        ("GET_INFO QUERY_SENSORS", errno.ENODEV, errors.Unsupported),
        ("GET_INFO QUERY_TELEMETRY", errno.EOPNOTSUPP, errors.Unsupported),
        ("GET_ARRAY", errno.EOPNOTSUPP, errors.Unsupported),
        ("WAIT_CMD", errno.EOPNOTSUPP, errors.Unsupported),
        ("SET_STATE", errno.EACCES, errors.PermissionDenied),
        ("SET_STATE", errno.EINVAL, errors.BadArgument),
        ("PRIME_HANDLE_TO_FD", errno.EOPNOTSUPP, errors.Unsupported),
        ("PRIME_FD_TO_HANDLE", errno.EBADF, errors.BadArgument),
        ("GEM_CLOSE", errno.EINVAL, errors.BadArgument),
        ("SYNC_BO", errno.EINVAL, errors.BadArgument),
        ("mmap", errno.EAGAIN, errors.OutOfMemory),
        ("EXEC_CMD", errno.ENODEV, errors.DeviceLost),
    ],
)
def test_what_an_errno_becomes(call, code, kind):
    assert type(from_errno(call, code)) is kind


LOSSES = (errno.ENODEV, errno.EIO, errno.ETIME, errno.ETIMEDOUT, errno.EPIPE, errno.ENOSYS)
NO_LOSS = {
    ("open", errno.ENODEV): errors.NoDevice,  # no PASID: SVA cannot be bound
    ("CONFIG_HWCTX", errno.ENODEV): errors.ContextRefused,  # aie2_config_cu: this context has no channel
    ("EXEC_CMD", errno.ETIME): errors.OutOfMemory,  # aie2_populate_range: pages not faulted in within 1 s
    ("SYNCOBJ_TIMELINE_WAIT", errno.ETIME): errors.WaitTimeout,  # drm_syncobj.c: the caller's deadline
    ("WAIT_CMD", errno.ETIME): errors.WaitTimeout,
    ("GET_INFO QUERY_SENSORS", errno.ENODEV): errors.Unsupported,  # no amd_pmf module
}
CALLS = [
    *("open", "mmap", *REQUESTS, "CREATE_BO SHARE", "CREATE_BO CMD", "CREATE_BO DEV", "CREATE_BO DEV_HEAP"),
    *("CREATE_BO userptr", "GET_INFO QUERY_SENSORS", "GET_INFO QUERY_CLOCK_METADATA"),
    *("GET_INFO QUERY_TELEMETRY", "GET_INFO QUERY_RESOURCE_INFO"),
]


@pytest.mark.parametrize("code", LOSSES, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("call", CALLS)
def test_what_means_that_the_device_is_lost(call, code):
    """ENODEV: unplugged (drm_dev_enter), or no management channel (aie2_send_mgmt_msg_wait), whose loss ETIME
    tells; EIO, ETIMEDOUT: PSP or SMU (aie_psp.c, aie_smu.c); EPIPE: a broken mailbox (amdxdna_mailbox.c)."""
    error = from_errno(call, code)
    assert type(error) is NO_LOSS.get((call, code), errors.DeviceLost)
    assert "bug in the caller" not in str(error) and "other programs" not in str(error)


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("CREATE_HWCTX", errno.ENOSPC, "heap"),
        ("CREATE_HWCTX", errno.EAGAIN, "heap"),
        ("CREATE_HWCTX", errno.ENODEV, "go on working"),
        ("CREATE_HWCTX", errno.ETIME, "go on working"),
        ("CREATE_BO DEV_HEAP", errno.EINVAL, "CMA"),
        ("EXEC_CMD", errno.ETIME, "Start again"),
    ],
)
def test_what_a_text_says(call, code, words):
    text = str(from_errno(call, code))
    assert words in text and "bug in the caller" not in text and "no explanation" not in text


@pytest.mark.parametrize("call", CALLS)
def test_every_errno_a_driver_gives_is_explained(call):
    """Those of the driver's ioctl handlers and of DRM's core."""
    for code in (
        *(errno.EINVAL, errno.ENOMEM, errno.EFAULT, errno.EACCES, errno.EBUSY, errno.EOPNOTSUPP),
        *(errno.ENODEV, errno.EIO, errno.ETIME, errno.ETIMEDOUT, errno.EPIPE, errno.EBADF),
    ):
        assert "no explanation" not in str(from_errno(call, code))


def test_lookup_goes_from_the_full_name_to_any_call():
    assert explain("CREATE_BO DEV", errno.EAGAIN)[0] is errors.OutOfHeap
    assert explain("CREATE_BO CMD", errno.ENOSPC) == explain("CREATE_BO", errno.ENOSPC)
    assert explain("SYNC_BO", errno.EACCES) == explain("*", errno.EACCES)
    unknown = from_errno("GET_INFO", errno.EXDEV)
    assert type(unknown) is XdnaError and unknown.meaning and unknown.remedy


def test_text():
    error = from_errno("CREATE_BO DEV", errno.EAGAIN, "12 bytes", requested=12)
    assert str(error).startswith("CREATE_BO DEV failed (EAGAIN, ")
    assert "[12 bytes]" in str(error)
    assert error.requested == 12
    assert str(errors.closed("buffer")) == "buffer: this buffer is closed. Open or allocate a new buffer"


def test_unsupported_names_the_version():
    error = errors.unsupported("telemetry", 5, 1)
    assert "0.5" in str(error) and "0.1" in str(error) and error.needed == 5


@pytest.mark.parametrize("kind", TREE)
def test_errors_survive_pickling(kind):
    error = kind("why", call="CALL", errno=errno.EINVAL, remedy="how")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind and str(copy) == str(error)
    assert (copy.call, copy.errno, copy.meaning, copy.remedy) == ("CALL", errno.EINVAL, "why", "how")
    without = pickle.loads(pickle.dumps(kind("why")))
    assert without.errno is None and str(without) == "why"
