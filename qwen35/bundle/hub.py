"""Bundles by their Hugging Face id: from the local cache, else downloaded, only the files that are needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from qwen35.errors import ModelError, explain

__all__ = ["fetch", "is_id"]

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?", re.ASCII)
_FILES = ("manifest.txt", "tokenizer.json", "tensors.txt", "tensors.bin")


def is_id(text: str) -> bool:
    """Whether a text may be `owner/name` or `owner/name@revision`."""
    return _ID.fullmatch(text) is not None and ".." not in text


def fetch(name: str) -> Path:
    """The directory of a bundle in the hub's cache; downloads what is not there, with a progress bar.

    A snapshot in the cache is used without asking whether there is a newer one. Raises ModelError: offline
    and not in the cache, no such repository, a checkpoint, no bundle.
    """
    import huggingface_hub as hub

    repository, _, revision = name.partition("@")
    where: dict[str, Any] = {"repo_id": repository, "revision": revision or None}
    try:
        kept = Path(hub.snapshot_download(**where, local_files_only=True))
        if _complete(kept):
            return kept
    except Exception:  # not there, or not whole: the library has many ways to say so
        pass
    try:
        manifest = Path(hub.hf_hub_download(repository, _FILES[0], revision=revision or None))
        # Whatever file of the repository the manifest names; a word that is no file matches none.
        words = {word for word in manifest.read_text("utf-8").split() if re.fullmatch(r"[\w./-]+", word)}
        return Path(hub.snapshot_download(**where, allow_patterns=[*_FILES, *sorted(words)]))
    except hub.errors.LocalEntryNotFoundError as error:
        raise ModelError("there is no such directory, it is not in the Hugging Face cache, and the hub "
                         f"cannot be reached ({explain(error.__cause__ or error):.120})", name,
                         "give a bundle's directory, or go online") from None
    except hub.errors.EntryNotFoundError:
        raise ModelError("the repository is no bundle: it has no manifest.txt", name,
                         f"a checkpoint must be exported first: hf download {repository} --local-dir "
                         "CHECKPOINT, python -m qwen35 export CHECKPOINT --out DIR") from None
    except hub.errors.RevisionNotFoundError:
        raise ModelError(f"the repository has no revision {revision!r}", name) from None
    except hub.errors.RepositoryNotFoundError:
        raise ModelError("there is no such directory and no such repository", name,
                         "look at the name; a private one needs: hf auth login") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"the bundle cannot be downloaded: {explain(error):.200}", name) from None


def _complete(directory: Path) -> bool:
    """Whether every file of a cached bundle is there: a download may have been interrupted."""
    from qwen35.bundle.bundle import Bundle
    from qwen35.bundle.errors import BundleError

    try:
        Bundle.open(directory, check=False)
    except (BundleError, OSError):
        return False
    return True
