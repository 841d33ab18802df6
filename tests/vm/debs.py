"""Fetches and unpacks the Debian packages the guest is made of; needs no root and installs nothing.

Everything happens in one cache folder: a private apt configuration (own sources, lists, status), the
.deb files, and the trees they are unpacked into. The archive is the one the machine's own apt is set up
with, but what is trusted is decided here: lists signed by Debian's keyring and not out of date, whatever
the machine's configuration allows. apt verifies every hash, and :data:`PINS` are checked here besides. Where
the archive has moved on from a pinned version the newer one is taken with a warning; an older one is refused.
What was unpacked is compared with the hashes noted then before anything of it runs.

Run as a script it prepares the cache and prints what it took.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.parse
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from amdxdna.emu.pci.rig import Rig, cache_dir, locked, seal, sealed

RELEASE = "trixie"
BACKPORTS = "trixie-backports"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DOWNLOADS_AT_ONCE = 6
# The stable suite's lists say no end of their validity (its point releases are months apart): this bounds it.
LONGEST_VALID_DAYS = 365

# Kernel modules the guest loads, with their dependencies (names as in modinfo's `depends`).
MODULE_FILES = (
    "amdxdna",
    "drm",
    "gpu-sched",
    "drm_kms_helper",
    "drm_shmem_helper",
    "tee",
    "hid",
    "amd_sfh",
    "button",
    "amd-pmf",
)

# Package -> (version, SHA-256 of the .deb) the suite was last green with.
PINS = {
    "linux-binary-7.3.4+deb13-amd64": (
        "7.3.4-1~bpo13+1",
        "7e3248d03a84dcdda88c567aa8c4038f2e7795d2dd167b112c56f8901b6f513f",
    ),
    "linux-modules-7.3.4+deb13-amd64": (
        "7.3.4-1~bpo13+1",
        "b3ea01922c9f133767a83cf6891c19b3693858ded617bf22d1e34f95382c08ea",
    ),
    "qemu-system-x86": (
        "1:11.1.3+ds-1~bpo13+1",
        "447decc4b3c245edc1d0940bdf97c87e07b2e3bd4b24c4d0c7155d860d52bd5f",
    ),
    "seabios": ("1.17.0-1~bpo13+1", "1a335215bbdb076e8fe8fc47c2985dcfa2cc4506e5c27697733cc0a4125dd1e9"),
    "busybox-static": ("1:1.37.0-6+b9", "598a3fd92bdafc34cd81196b2952ad36e910e47a4ecf162f8ce5e8e262598e53"),
    "linux-libc-dev": ("7.3.4-1~bpo13+1", "b3a4538fca67081c8606a93f37521d0eb74ac75996a02f3321a6b27f978e10a8"),
    "linux-image-6.18.5+deb13-amd64": (
        "6.18.5-1~bpo13+1",
        "a39c2f6db87b039a3b62cfa9256f6054951fbf08e351b7a3e2b5a792f79ea1e7",
    ),
    "linux-image-6.18.15+deb13-amd64": (
        "6.18.15-1~bpo13+1",
        "d38a7af6260782a47cd615ad717347a528b45f076245b4deabb3f1ecf8459186",
    ),
}


class Unavailable(Exception):
    """This machine cannot prepare the guest; the text is one line saying why."""


@dataclass(frozen=True)
class Deb:
    """One package of the archive: `file` is its name in the download folder, `sha256` what apt expects."""

    name: str
    version: str
    file: str
    size: int
    sha256: str


def archive_uri() -> str:
    """The Debian archive this machine's apt uses.

    Raises Unavailable on a machine without apt, or whose apt has no Debian archive, or that is not x86-64.
    """
    if platform.machine() != "x86_64":
        raise Unavailable(f"the guest is x86-64 and this machine is {platform.machine()}")
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise Unavailable(f"no {tool} on this machine (the guest is made of Debian packages)")
    if not os.path.exists(KEYRING):
        raise Unavailable(f"no {KEYRING}")
    lines = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
    for line in lines.splitlines():
        if urllib.parse.urlsplit(line).path.rstrip("/").endswith("/debian"):
            return line.rstrip("/")
    raise Unavailable("this machine's apt is set up with no Debian archive")


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        detail = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unavailable(f"{' '.join(command[:1] + command[3:5])} failed: {detail[-1] if detail else ''}")
    return done.stdout


# Not `trusted=no`, which distrusts what is signed too.
_SIGNED = (
    "allow-insecure=no allow-weak=no allow-downgrade-to-insecure=no check-date=yes check-valid-until=yes"
)


class Apt:
    """A private apt below `root`: nothing of the machine's package state is read or changed.

    Proxy and network settings of the machine's apt configuration stay in force, but nothing of what it
    trusts: apt reads this configuration last, and options of a source overrule both.
    """

    def __init__(self, root: Path, uri: str) -> None:
        self.root = root
        self.downloads = root / "debs"
        etc = root / "apt"
        # apt does not list what its archive folder holds already, so that one stays empty.
        for folder in (etc / "none", etc / "archives/partial", root / "lists/partial", self.downloads):
            folder.mkdir(parents=True, exist_ok=True)
        (etc / "status").touch()
        (etc / "sources.list").write_text(
            "".join(
                f"deb [arch=amd64 signed-by={KEYRING} {_SIGNED}] {uri} {suite} main\n"
                for suite in (RELEASE, BACKPORTS)
            )
        )
        self.config = etc / "apt.conf"
        self.config.write_text(f"""
            Dir::Etc::sourcelist "{etc}/sources.list";
            Dir::Etc::sourceparts "{etc}/none";
            Dir::Etc::preferences "{etc}/none/preferences";
            Dir::Etc::preferencesparts "{etc}/none";
            Dir::State::lists "{root}/lists";
            Dir::State::status "{etc}/status";
            Dir::State::extended_states "{etc}/extended_states";
            Dir::Cache "{root}";
            Dir::Cache::archives "{etc}/archives";
            #clear APT::Update::Post-Invoke;
            #clear APT::Update::Post-Invoke-Success;
            #clear APT::Architectures;
            APT::Architecture "amd64";
            APT::Architectures {{ "amd64"; }};
            APT::Sandbox::User "";
            APT::Get::AllowUnauthenticated "false";
            APT::Get::Force-Yes "false";
            Acquire::AllowInsecureRepositories "false";
            Acquire::AllowWeakRepositories "false";
            Acquire::AllowDowngradeToInsecureRepositories "false";
            Acquire::Check-Date "true";
            Acquire::Check-Valid-Until "true";
            Acquire::Max-ValidTime "{LONGEST_VALID_DAYS * 86400}";
            Acquire::Languages "none";
            Acquire::Retries "3";
            Debug::NoLocking "true";
        """)

    def get(self, *arguments: str, cwd: Path | None = None) -> str:
        """Runs apt-get; its output. Raises Unavailable with apt's last line."""
        return _run(["apt-get", "-c", str(self.config), "-qq", "-y", *arguments], cwd=cwd)

    def names(self, prefix: str) -> list[str]:
        """Packages of the lists that begin so."""
        return _run(["apt-cache", "-c", str(self.config), "pkgnames", prefix]).split()

    def update(self) -> None:
        """Fetches the package lists."""
        self.get("update")

    def closure(self, *packages: str) -> list[Deb]:
        """The packages and all they depend on, without recommendations, backports preferred."""
        out = self.get("--print-uris", "--no-install-recommends", "-t", BACKPORTS, "install", *packages)
        named = []
        for line in out.splitlines():
            if line.startswith("'"):
                name, version, _ = line.split()[1].split("_")
                named.append(f"{name}={urllib.parse.unquote(version)}")
        return self.describe(named)

    def describe(self, packages: Sequence[str]) -> list[Deb]:
        """Versions, sizes and hashes of exactly these packages (`name` or `name=version`)."""
        debs = []
        # Nor what lies in the current folder.
        empty = self.root / "apt" / "none"
        out = self.get("--print-uris", "-t", BACKPORTS, "download", *packages, cwd=empty)
        for line in out.splitlines():
            if not line.startswith("'"):
                continue
            _, file, size, digest = line.split()
            name, version, _ = file.split("_")
            kind, _, value = digest.partition(":")
            if kind != "SHA256":
                raise Unavailable(f"the archive gives no SHA-256 of {file}")
            debs.append(Deb(name, urllib.parse.unquote(version), file, int(size), value))
        if len(debs) != len(list(packages)):
            raise Unavailable(f"apt described {len(debs)} of {len(list(packages))} packages")
        return debs

    def download(self, debs: list[Deb]) -> None:
        """Brings the .deb files that are not there yet, several apt processes at once, and checks all."""
        missing = [deb for deb in debs if not self._good(deb)]
        groups: list[list[Deb]] = [[] for _ in range(DOWNLOADS_AT_ONCE)]
        for deb in sorted(missing, key=lambda deb: -deb.size):
            min(groups, key=lambda group: sum(d.size for d in group)).append(deb)
        with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
            list(pool.map(self._download, [group for group in groups if group]))
        for deb in missing:
            if not self._good(deb):
                raise Unavailable(f"{deb.file} did not arrive as announced (size or SHA-256 differs)")

    def _download(self, group: list[Deb]) -> None:
        self.get("download", *(f"{deb.name}={deb.version}" for deb in group), cwd=self.downloads)

    def _good(self, deb: Deb) -> bool:
        path = self.downloads / deb.file
        if not path.exists() or path.stat().st_size != deb.size:
            return False
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest() == deb.sha256

    def unpack(self, deb: Deb, into: Path, wanted: Callable[[str], bool] | None = None) -> None:
        """Unpacks a .deb's files below `into`: all of them, or those whose path `wanted` accepts."""
        into.mkdir(parents=True, exist_ok=True)
        path = str(self.downloads / deb.file)
        if wanted is None:
            _run(["dpkg-deb", "-x", path, str(into)])
            return
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                # apt has checked the package's hash; older Pythons have no filters.
                if hasattr(tarfile, "fully_trusted_filter"):
                    archive.extraction_filter = tarfile.fully_trusted_filter
                for member in archive:
                    if wanted(member.name):
                        archive.extract(member, into)
            # What is left of the stream is not needed, but dpkg-deb must not die of a closed pipe.
            while process.stdout.read(1 << 20):
                pass


def check_pins(debs: list[Deb]) -> None:
    """Warns where a package is newer than the version the suite was green with.

    Raises Unavailable where it is older, or another file of the same version.
    """
    for deb in debs:
        version, sha256 = PINS.get(deb.name, ("", ""))
        if version and deb.version != version:
            if _older(deb.version, version):
                raise Unavailable(f"{deb.name} {deb.version} is older than the tested {version}")
            warnings.warn(f"{deb.name} {deb.version} instead of the tested {version}", stacklevel=2)
        elif sha256 and deb.sha256 != sha256:
            raise Unavailable(f"{deb.file} has SHA-256 {deb.sha256} and not the pinned {sha256}")


def _older(version: str, than: str) -> bool:
    return subprocess.run(["dpkg", "--compare-versions", version, "lt", than]).returncode == 0


def prepare(root: Path | None = None) -> Rig:
    """Makes the cache complete (at once when it already is) and says what is in it.

    Safe to call from several processes. Raises Unavailable where the machine cannot.
    """
    root = root or cache_dir()
    with locked(root):
        stamp = root / "rig.json"
        record = sealed(root, stamp)
        if record is not None:
            return Rig(root, record["kernel"], record["versions"], 0.0)
        began = time.monotonic()
        kernel, versions = _build(root)
        seal(root, _TREES, stamp, {"kernel": kernel, "versions": versions})
        return Rig(root, kernel, versions, time.monotonic() - began)


_TREES = ("qemu", "kernel", "busybox", "headers")


def kernel_part(path: str) -> bool:
    """Whether a guest needs this file of a kernel's packages."""
    name = Path(path).name
    return name.startswith("vmlinuz") or (".ko" in name and name.split(".ko")[0] in MODULE_FILES)


def _qemu_part(name: str) -> bool:
    return name.startswith(("lib", "qemu-system", "seabios"))


def _build(root: Path) -> tuple[str, dict[str, str]]:
    apt = Apt(root, archive_uri())
    apt.update()
    everything = apt.closure("qemu-system-x86", "linux-image-amd64", "busybox-static", "linux-libc-dev")
    by_name = {deb.name: deb for deb in everything}
    kernels = [name for name in by_name if name.startswith("linux-binary-")]
    if len(kernels) != 1:
        raise Unavailable(f"{BACKPORTS} has {len(kernels)} kernels for linux-image-amd64")
    kernel = kernels[0].removeprefix("linux-binary-")
    parts = {
        "kernel": by_name[f"linux-binary-{kernel}"],
        "modules": by_name[f"linux-modules-{kernel}"],
        "busybox": by_name["busybox-static"],
        "headers": by_name["linux-libc-dev"],
    }
    qemu = [deb for deb in everything if _qemu_part(deb.name)]
    taken = [*parts.values(), *qemu]
    check_pins(taken)
    apt.download(taken)
    for tree in _TREES:
        shutil.rmtree(root / tree, ignore_errors=True)

    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(apt.unpack, parts["modules"], root / "kernel", kernel_part),
            pool.submit(apt.unpack, parts["kernel"], root / "kernel", kernel_part),
            pool.submit(
                apt.unpack, parts["busybox"], root / "busybox", lambda path: path.endswith("bin/busybox")
            ),
            pool.submit(
                apt.unpack,
                parts["headers"],
                root / "headers",
                lambda path: path.startswith(("./usr/include/", "usr/include/")),
            ),
            *(pool.submit(apt.unpack, deb, root / "qemu") for deb in qemu),
        ]
        for job in jobs:
            job.result()
    return kernel, {deb.name: deb.version for deb in taken}


def unpack_closure(root: Path, tree: str, packages: Sequence[str], skip: Callable[[str], bool]) -> Path:
    """Another tree of the cache: `packages` with their dependencies except those `skip` names.

    Used for the optional peers of the guest. Returns the folder; at once when it is already there.
    """
    with locked(root):
        folder = root / tree
        stamp = root / f"{tree}.json"
        record = sealed(root, stamp)
        if record is not None and record["packages"] == list(packages):
            return folder
        apt = Apt(root, archive_uri())
        apt.update()
        debs = [deb for deb in apt.closure(*packages) if not skip(deb.name)]
        apt.download(debs)
        shutil.rmtree(folder, ignore_errors=True)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda deb: apt.unpack(deb, folder), debs))
        seal(root, [tree], stamp, {"packages": list(packages), "versions": {d.name: d.version for d in debs}})
        return folder


XRT_PACKAGES = ("python3-xrt", "libxrt-utils-npu", "python3-cffi-backend")
_NOT_NEEDED = {"dpkg", "tar", "tzdata", "debconf", "media-types", "netbase"}


def xrt_tree(root: Path) -> Path:
    """Debian's XRT with a Python for its module."""
    return unpack_closure(root, "xrt", XRT_PACKAGES, lambda name: name in _NOT_NEEDED)


def main() -> int:
    """Prepares the cache and prints a summary; exit status 1 with one line where it cannot."""
    try:
        rig = prepare()
    except Unavailable as reason:
        print(f"cannot prepare the guest: {reason}", file=sys.stderr)
        return 1
    print(f"{rig.root}: kernel {rig.kernel_release}, {len(rig.versions)} packages, {rig.seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
