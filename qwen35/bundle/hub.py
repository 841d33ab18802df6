"""Repositories of the Hugging Face Hub: bundles by their id, from the local cache, else downloaded; what a
repository that is no bundle holds. huggingface_hub does the work, on the Hub that HF_ENDPOINT names."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from amdxdna.files import read_regular
from amdxdna.programs import own_program
from qwen35.errors import ModelError, one_line, why_no_json

__all__ = ["NoBundle", "fetch", "is_id", "listing"]

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?", re.ASCII)
_MANIFEST = "manifest.txt"
_FILES = (_MANIFEST, "tokenizer.json", "tensors.txt", "tensors.bin")
SECONDS = 20.0
"""How long the hub may take to answer, each time it is asked."""
_MOST = 16 << 20
_LOCAL = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EMFILE)
"""What the cache's folder may refuse."""


class NoBundle(ModelError):
    """The repository is there and holds no bundle."""


def is_id(text: str) -> bool:
    """Whether a text is `owner/name` or `owner/name@revision`, and no path of a folder that is here."""
    if _ID.fullmatch(text) is None or ".." in text:
        return False
    return not (os.path.lexists(text) or os.path.isdir(text.partition("/")[0]))


def fetch(name: str) -> Path:
    """The directory of a bundle in the hub's cache; downloads what is not there, with a progress bar.

    A snapshot in the cache is used without asking whether there is a newer one. Raises NoBundle, and
    ModelError: offline and not in the cache, no such repository or revision, a download that broke off.
    """
    import huggingface_hub as hub

    where = _where(name)
    # Its snapshot is never whole by the library's measure: files that are not needed are left out.
    kept = hub.try_to_load_from_cache(where["repo_id"], _MANIFEST, revision=where["revision"])
    if isinstance(kept, str) and _complete(Path(kept).parent):
        return Path(kept).parent
    if _MANIFEST not in _files(name):
        repository = where["repo_id"]
        raise NoBundle(
            f"the repository is no bundle: it has no {_MANIFEST}",
            name,
            f"a checkpoint must be exported first: {own_program('hf')} download {repository} "
            f"--local-dir CHECKPOINT, python -m qwen35 export CHECKPOINT --out DIR",
        )
    with _quiet(), _errors(name, "the bundle cannot be downloaded"):
        manifest = Path(hub.hf_hub_download(filename=_MANIFEST, **where))
        # Whatever file of the repository the manifest names; a word that is no file matches none.
        words = set(re.findall(r"(?<!\S)[\w./-]+(?!\S)", manifest.read_text("utf-8", "replace")))
        return Path(hub.snapshot_download(**where, allow_patterns=[*_FILES, *sorted(words)]))


def listing(name: str) -> tuple[dict[str, Any], int]:
    """A checkpoint's config.json, and the bytes of the repository's files. Raises ModelError."""
    import huggingface_hub as hub

    files = _files(name)
    with _quiet(), _errors(name, "its config.json cannot be read"):
        path = hub.hf_hub_download(filename="config.json", **_where(name))
    try:
        found = json.loads(read_regular(path, _MOST))
    except OSError as error:
        raise ModelError(f"its config.json cannot be read: {error.strerror}", name) from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"its config.json is no JSON: {why_no_json(error)}", name) from None
    if not isinstance(found, dict):
        raise ModelError("its config.json is no object", name)
    return found, sum(files.values())


def _where(name: str) -> dict[str, Any]:
    repository, _, revision = name.partition("@")
    return {
        "repo_id": repository,
        "revision": revision or None,
        "endpoint": os.environ.get("HF_ENDPOINT", "").rstrip("/") or None,
    }


def _files(name: str) -> dict[str, int]:
    """The repository's files and their sizes: one question, not asked again where nobody answers."""
    import huggingface_hub as hub

    where = _where(name)
    api = hub.HfApi(endpoint=where["endpoint"])
    with _quiet(), _errors(name, "the Hub cannot be asked"):
        found = api.model_info(
            where["repo_id"], revision=where["revision"], files_metadata=True, timeout=SECONDS
        )
        return {one.rfilename: one.size or 0 for one in found.siblings or ()}


@contextlib.contextmanager
def _errors(name: str, what: str) -> Iterator[None]:
    """Turns what the library raises into one line."""
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError:
        raise ModelError(f"the repository has no revision {name.partition('@')[2]!r}", name) from None
    except errors.GatedRepoError:
        raise ModelError(
            "its owner must let you in first",
            name,
            f"ask at https://huggingface.co/{name.partition('@')[0]}, then {own_program('hf')} auth login",
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            "there is no such directory and no such repository",
            name,
            f"look at the name; a private one needs: {own_program('hf')} auth login",
        ) from None
    except errors.EntryNotFoundError as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            _unreachable(name, what, error)
        raise ModelError(f"{what}: it is not there", name) from None
    except errors.HfHubHTTPError as error:
        raise ModelError(f"{what}: {_first_line(error)}", name) from None
    except OSError as error:
        if error.errno not in _LOCAL:
            _unreachable(name, what, error)
        where = error.filename or name
        raise ModelError(
            f"{what}: {error.strerror}", str(where), "HF_HOME names the folder of the cache"
        ) from None
    except Exception as error:  # of the HTTP library, which is another one in each version
        _unreachable(name, what, error)


def _unreachable(name: str, what: str, error: BaseException) -> NoReturn:
    reason = _first_line(error.__cause__ or error)
    text = f"there is no such directory, it is not in the Hugging Face cache, and {what} ({reason})"
    raise ModelError(text, name, "give a bundle's directory, or go online") from None


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return one_line(text)[:160] if text else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Errors alone: how it ends is told in one line, not every attempt."""
    from huggingface_hub.utils import logging as told

    before = told.get_verbosity()
    told.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        told.set_verbosity(before)


def _complete(directory: Path) -> bool:
    """Whether every file of a cached bundle is there: a download may have been interrupted."""
    from qwen35.bundle.bundle import Bundle
    from qwen35.bundle.errors import BundleError

    try:
        Bundle.open(directory, check=False)
    except (BundleError, OSError):
        return False
    return True
