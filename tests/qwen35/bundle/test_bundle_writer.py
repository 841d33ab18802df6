"""The writer: what it writes, that it is whole or not there, and what it refuses."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from qwen35.bundle import BundleError, Store
from qwen35.bundle.manifest import Manifest
from qwen35.bundle.specs import read_sums
from qwen35.bundle.writer import BundleWriter
from tests.support.writing import fill


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_contents(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "deep/b") as writer:
        writer.comment("made\nby a test")
        fill(writer)
        assert writer.finish() == tmp_path / "deep/b"
    out = tmp_path / "deep/b"
    assert names(out) == ["kernels", "manifest.txt", "tensors.bin", "tensors.txt"]
    assert names(tmp_path / "deep") == ["b"]
    manifest = Manifest.read(out)
    assert manifest.param("D").count() == 64
    assert manifest.records[0].value("insts") == "kernels/a.bin"
    store = Store(out)
    np.testing.assert_array_equal(store.get("x"), np.ones((3, 5)))
    assert store.get("y").tobytes() == b"abcdefg"
    assert (store.info("z").dtype, store.get("z").tolist()) == ("bf16", [0, 1, 2, 3])
    assert [store.info(name).offset for name in "xyz"] == [0, 64, 128]
    sums = read_sums(manifest)
    assert sorted(sums) == ["kernels/a.bin", "tensors.bin", "tensors.txt"]
    for file, entry in sums.items():
        data = (out / file).read_bytes()
        assert (entry.sha256, entry.nbytes) == (hashlib.sha256(data).hexdigest(), len(data))
    assert oct(out.stat().st_mode & 0o777) == oct(0o777 & ~current_umask())


@pytest.mark.parametrize("there", [False, True])
def test_its_name_is_on_the_disk_before_it_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """A power cut after `finish` loses nothing: files are written back, then the folder that names them."""
    target, synced, fsync = tmp_path / "b", [], os.fsync
    if there:
        with BundleWriter(target) as writer:
            fill(writer)
            writer.finish()
    with BundleWriter(target, force=there) as writer:
        fill(writer)
        made = writer.path.stat().st_ino

        def told(fd: int) -> None:
            in_place = target.exists() and target.stat().st_ino == made
            synced.append((os.readlink(f"/proc/self/fd/{fd}"), in_place))
            fsync(fd)

        monkeypatch.setattr(os, "fsync", told)
        writer.finish()
    assert synced[-1] == (str(tmp_path), True)
    before = {Path(name).name for name, in_place in synced if not in_place}
    assert before >= {"tensors.bin", "tensors.txt", "a.bin", "manifest.txt"}


def test_a_number_is_an_array_of_one(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        writer.array("n", np.array(7, np.int32))
        writer.finish()
    assert Store(tmp_path / "b").get("n").tolist() == [7]


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), BundleWriter(tmp_path / "b") as writer:
        fill(writer)
        raise error
    assert names(tmp_path) == []


def test_leaving_without_finish_leaves_nothing(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        fill(writer)
    assert names(tmp_path) == []


def test_before_finish_there_is_no_manifest_anywhere(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        fill(writer)
        assert not list(tmp_path.rglob("manifest.txt"))
        assert not (tmp_path / "b").exists()


def test_an_existing_bundle_needs_force(tmp_path: Path) -> None:
    for value in (1, 2):
        if value == 2:
            with pytest.raises(BundleError, match=r"a bundle is there already.*--force"):
                BundleWriter(tmp_path / "b")
        with BundleWriter(tmp_path / "b", force=value == 2) as writer:
            fill(writer, value)
            assert value == 1 or Store(tmp_path / "b").get("x")[0, 0] == 1
            writer.finish()
        assert Store(tmp_path / "b").get("x")[0, 0] == value
    assert names(tmp_path) == ["b"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EPERM, None])
def test_a_bundle_is_replaced_where_folders_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    """By the file system, the kernel, or the C library (None); what else fails leaves the old one."""
    libc = SimpleNamespace() if code is None else SimpleNamespace(renameat2=lambda *_: -1)
    with BundleWriter(tmp_path / "b") as writer:
        fill(writer, 1)
        writer.finish()
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(BundleWriter(tmp_path / "b", force=True))
        fill(writer, 2)
        monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: libc)
        monkeypatch.setattr("ctypes.get_errno", lambda: code)
        if code == errno.EPERM:
            stack.enter_context(pytest.raises(OSError, match="not permitted"))
        writer.finish()
    assert Store(tmp_path / "b").get("x")[0, 0] == (1 if code == errno.EPERM else 2)
    assert names(tmp_path) == ["b"]


def test_a_failed_replacement_keeps_the_old_bundle(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        fill(writer)
        writer.finish()
    with pytest.raises(RuntimeError), BundleWriter(tmp_path / "b", force=True) as writer:
        fill(writer, 9)
        raise RuntimeError
    assert Store(tmp_path / "b").get("x")[0, 0] == 1
    assert names(tmp_path) == ["b"]


def test_what_is_no_bundle_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for target in ("home", "file"):
        with pytest.raises(BundleError, match="exists and is no"):
            BundleWriter(tmp_path / target, force=True)
    assert (tmp_path / "home/thesis.txt").read_text() == "dear"


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with BundleWriter(tmp_path / "b") as writer:
        fill(writer)
        writer.finish()
    assert (tmp_path / "b/manifest.txt").is_file()


KILLED = """
import sys
from qwen35.bundle.writer import BundleWriter
from tests.support.writing import fill
from tests.support.writing import fill
writer = BundleWriter(sys.argv[1])
fill(writer)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_writer_leaves_no_bundle_and_the_next_one_tidies_up(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "b")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    with BundleWriter(tmp_path / "b"):
        assert len(names(tmp_path)) == 2  # the live writer's directory is left alone
    child.send_signal(signal.SIGKILL)
    child.communicate()
    (stale,) = names(tmp_path)
    assert stale.startswith(".b.partial-")
    assert not list(tmp_path.rglob("manifest.txt"))
    with BundleWriter(tmp_path / "b") as writer:
        fill(writer)
        writer.finish()
    assert names(tmp_path) == ["b"]


def test_refusals(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        fill(writer)
        with pytest.raises(BundleError, match="param 'D': repeated"):
            writer.param("D", 1)
        with pytest.raises(BundleError, match="param 'E'"):
            writer.param("E", "  ")
        with pytest.raises(BundleError, match="'two words' is not one word"):
            writer.record("gemm", "two words")
        for name in ("manifest.txt", "tensors.bin", "../x", "/x", "kernels/a.bin", ""):
            with pytest.raises(BundleError, match="repeated, or not a name inside"):
                writer.file(name, b"")
        for name in ("x", "a b", "", "#x", "a\nb"):
            with pytest.raises(BundleError, match="repeated or malformed name"), writer.tensor(name, "u8", 1):
                pass
        with pytest.raises(BundleError, match="unknown dtype"), writer.tensor("q", "f64", 1):
            pass
        with pytest.raises(BundleError, match="has no bundle dtype"):
            writer.array("q", np.zeros(3))
        short = pytest.raises(BundleError, match="4 bytes, its shape takes 12")
        with short, writer.tensor("q", "f32", 3) as q:
            q.write(b"abcd")
        with pytest.raises(BundleError, match="'r' is still open"), writer.tensor("r", "u8", 1) as r:
            r.write(b"x")
            writer.array("s", np.zeros(3, np.uint8))
        with pytest.raises(BundleError, match="no such file"):
            writer.file("kernels/b.bin", tmp_path / "nowhere")


def test_a_target_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="cannot be created"):
        BundleWriter(tmp_path / "file/b")
