"""A Hugging Face Hub of a few repositories, as huggingface_hub asks it (https://huggingface.co/docs/hub/api)."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from qwen35.find import DEFAULT_BUNDLE

SHA = "0123456789abcdef0123456789abcdef01234567"


class Handler(BaseHTTPRequestHandler):
    repositories: dict[str, dict[str, bytes]]
    asked: list[str]

    def do_HEAD(self) -> None:
        self.answer(False)

    def do_GET(self) -> None:
        self.answer(True)

    def answer(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        if with_body:
            self.asked.append(path)
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name, rest = "/".join(parts[2:4]), parts[4:]
        else:
            name, rest = "/".join(parts[:2]), parts[2:]
        files = self.repositories.get(name)
        if files is None:
            self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif len(rest) > 1 and rest[1] not in ("main", SHA):
            self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif parts[0] == "api" and rest[:1] == ["tree"]:
            tree = [
                {"type": "file", "path": file, "size": len(data), "oid": _tag(data)}
                for file, data in files.items()
            ]
            self.reply(200, json.dumps(tree).encode())
        elif parts[0] == "api":
            siblings = [{"rfilename": file, "size": len(data)} for file, data in files.items()]
            self.reply(200, json.dumps({"id": name, "sha": SHA, "siblings": siblings}).encode())
        elif (data := files.get("/".join(rest[2:]))) is not None:
            self.reply(200, data, {"ETag": f'"{_tag(data)}"', "X-Repo-Commit": SHA})
        else:
            self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": SHA})

    def reply(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _tag(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def files_of(folder: Path) -> dict[str, bytes]:
    """A folder's files as a repository."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def cached(home: Path) -> Path:
    """The built-in bundle as the hub's cache keeps `owner/name`."""
    folder = home / "hub" / "models--owner--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(SHA)
    snapshot = folder / "snapshots" / SHA
    shutil.copytree(DEFAULT_BUNDLE, snapshot)
    return snapshot


@contextmanager
def hub_of(repositories: dict[str, dict[str, bytes]]) -> Iterator[tuple[str, list[str]]]:
    """The Hub's address, and the paths whose contents were asked for so far."""
    asked: list[str] = []
    handler: Any = type("Hub", (Handler,), {"repositories": repositories, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
