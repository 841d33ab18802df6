"""Text to token ids and back, from a bundle's `tokenizer.json` (a Hugging Face byte-level BPE file).

The vocabulary, merges, normaliser and pre-tokeniser are read by the `tokenizers` library. The added tokens
(`<|im_start|>`, `<think>`, ...) are kept out of it and handled here: a text is data, and its spelling of an
added token becomes one only where the caller says so.
"""

from __future__ import annotations

import bisect
import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from amdxdna.files import read_regular
from amdxdna.signals import imports
from qwen35.errors import TokenizerError

__all__ = ["TOKENIZER_LIMIT", "StreamDecoder", "Tokenizer", "byte_alphabet", "called", "from_json"]

#: Bytes of a tokenizer.json that are read; Qwen3.5's has 13 to 20 million, by how it spells its characters.
TOKENIZER_LIMIT = 32 << 20
_MOST_TOKENS = 1 << 24
_MOST_ADDED = 4 << 20  # characters of the list of added tokens; Qwen3.5's has 6,000


def byte_alphabet() -> dict[str, int]:
    """Printable stand-in character -> byte, of byte-level BPE vocabularies (the GPT-2 convention).

    Printable Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 and up.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    rest = [byte for byte in range(256) if chr(byte) not in table]
    table.update({chr(0x100 + i): byte for i, byte in enumerate(rest)})
    return table


_BYTES = byte_alphabet()
_FIRST = 16
"""Characters of text a token, for a first guess of what is too long (English: about 4.5)."""


class Tokenizer:
    """The tokenizer of one bundle. Reading it takes about a second for the real vocabulary.

    Thread-safe: all methods only read, apart from a cache of decoded tokens.
    """

    def __init__(self, path: str | Path) -> None:
        """Reads `path`. Raises TokenizerError for a missing or malformed file."""
        self.path = Path(path)
        try:
            text = read_regular(self.path, TOKENIZER_LIMIT).decode("utf-8")
        except FileNotFoundError:
            raise TokenizerError(
                "the bundle has no tokenizer", str(self.path), "copy the checkpoint's tokenizer.json there"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TokenizerError(
                f"cannot read the tokenizer: {reason}",
                str(self.path),
                "copy the checkpoint's tokenizer.json there",
            ) from None
        added, bare = _split_added(text, self.path)
        self._tokenizer = _load(bare, self.path)
        #: Every added token, special or not, by its spelling.
        self.added: dict[str, int] = {}
        self._added_text: dict[int, str] = {}
        self._special: set[int] = set()
        for entry in added:
            token, spelling = entry["id"], entry["content"]
            self.added[spelling] = token
            self._added_text[token] = spelling
            if entry.get("special"):
                self._special.add(token)
        longest_first = sorted(self.added, key=len, reverse=True)
        self._added_pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        known = self._tokenizer.token_to_id
        self._shared = frozenset(t for spelling, t in self.added.items() if known(spelling) is not None)
        self._pieces: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id that has a spelling."""
        size: int = self._tokenizer.get_vocab_size()
        return max([size, *(token + 1 for token in self._added_text)])

    def token_id(self, spelling: str) -> int | None:
        """The id of an added token, or None if the bundle's tokenizer has no such token."""
        return self.added.get(spelling)

    def is_special(self, token: int) -> bool:
        """Whether decoding skips the token (its file entry says `special`)."""
        return token in self._special

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Token ids of `text`; nothing is added around it.

        With `allow_special` the spellings of added tokens become those tokens, as in the reference tokenizer;
        without, they are ordinary text. Raises TokenizerError for text with lone surrogates.
        """
        if not allow_special:
            return self._encode(text)
        ids: list[int] = []
        start = 0
        for match, token in self.find_added(text):
            ids += self._encode(text[start : match.start()])
            ids.append(token)
            start = match.end()
        return ids + self._encode(text[start:])

    def find_added(self, text: str) -> Iterator[tuple[re.Match[str], int]]:
        """Every spelling of an added token in `text`, left to right, longest first, with the token's id."""
        if self._added_pattern is not None:
            for match in self._added_pattern.finditer(text):
                yield match, self.added[match.group()]

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        try:
            ids: list[int] = called(self._tokenizer.encode, text, add_special_tokens=False).ids
        except LibraryError as error:
            raise TokenizerError(f"the text cannot be encoded: {error!s:.300}", str(self.path)) from None
        except (TypeError, UnicodeEncodeError):
            raise TokenizerError(
                "the text is not valid Unicode", "a lone surrogate", "decode it as UTF-8 first"
            ) from None
        if self._shared.isdisjoint(ids):
            return ids
        # The model's own vocabulary holds an added token's spelling too: spell it out by characters.
        plain: list[int] = []
        for token in ids:
            if token in self._shared:
                for character in self._added_text[token]:
                    plain += called(self._tokenizer.encode, character, add_special_tokens=False).ids
            else:
                plain.append(token)
        return plain

    def least(self, text: str, enough: int) -> int:
        """A number of tokens that `text` certainly has, over `enough` where its beginning shows that; else 0.

        It costs what encoding that beginning costs, so a text that is far too long need not be encoded; one
        of more than `most_bytes` a token is not even begun. Words are split from left to right (by
        tokenizer.json's pre-tokenizer, which looks one character ahead) and tokens never cross them: but for
        its last two words, a beginning's tokens are the whole's.
        """
        size, most = _FIRST * max(enough, 1), self.most_bytes if len(text) > 1 << 20 else 0
        if most and len(text) // most > enough:
            return len(text) // most
        while size < len(text):
            try:
                words = self._tokenizer.encode(text[:size], add_special_tokens=False).word_ids
            except (TypeError, UnicodeEncodeError):
                return 0  # encode tells
            sure = bisect.bisect_left(words, words[-1] - 1) if words else 0
            if sure > enough:
                return sure
            size *= 4
        return 0

    @cached_property
    def most_bytes(self) -> int:
        """Bytes of text that one token takes at most; 0 where the tokenizer may drop text.

        NFC, which Qwen's tokenizers begin with, makes one byte of at most 3.5 (U+0390 of U+1FBE U+0344). The
        longest token of Qwen3.5's vocabulary is 128 bytes (spaces).
        """
        vocabulary = self._tokenizer.get_vocab()
        normalizer = type(self._tokenizer.normalizer).__name__
        if normalizer not in ("NoneType", "NFC") or not vocabulary.keys() >= _BYTES.keys():
            return 0
        return (4 if normalizer == "NFC" else 1) * max(map(len, vocabulary))

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; empty for ids without a spelling (the vocabulary's padding rows)."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._spell(token)
        return piece

    def _spell(self, token: int) -> bytes:
        spelling = self._added_text.get(token)
        if spelling is not None:
            return spelling.encode()
        if token < 0:
            raise TokenizerError(f"{token} is not a token id", str(self.path))
        symbols: str | None = self._tokenizer.id_to_token(token)
        if symbols is None:
            return b""
        try:
            return bytes([_BYTES[c] for c in symbols])
        except KeyError:
            return symbols.encode()

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; invalid UTF-8 becomes U+FFFD; special tokens are left out by default."""
        skip = self._special if skip_special else frozenset()
        return b"".join(self.token_bytes(i) for i in ids if i not in skip).decode("utf-8", "replace")

    def stream(self, *, skip_special: bool = True) -> StreamDecoder:
        """A decoder for tokens that arrive one at a time."""
        return StreamDecoder(self, skip_special=skip_special)


class StreamDecoder:
    """Turns tokens into text as they come, never splitting a character.

    The pieces that `feed` and `flush` return, joined, equal `Tokenizer.decode` of all the tokens.
    Not thread-safe.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that `token` completes; empty while a character is unfinished."""
        if self._skip_special and self._tokenizer.is_special(token):
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """What is still held back (an unfinished character becomes U+FFFD); the decoder is then new again."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def _split_added(text: str, path: Path) -> tuple[list[dict[str, Any]], str]:
    """The file's added tokens, and the file's text without them (the rest is parsed once, by the library)."""
    match = re.search(r'"added_tokens"\s*:\s*(?=\[)', text)
    if match is None:
        return [], text
    try:
        added, end = json.JSONDecoder().raw_decode(text[match.end() : match.end() + _MOST_ADDED])
        end += match.end()
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"the added tokens are malformed: {error}", str(path)) from None
    for entry in added:
        if (
            not isinstance(entry, dict)
            or type(entry.get("id")) is not int
            or not isinstance(entry.get("content"), str)
            or not 0 <= entry["id"] < _MOST_TOKENS
            or not entry["content"]
            or not _is_unicode(entry["content"])
        ):
            raise TokenizerError(f"an added token needs an id and a content, not {entry!r:.80}", str(path))
    return added, f"{text[: match.end()]}[]{text[end:]}"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class LibraryError(ValueError):
    """The tokenizers library refuses its input or stops at it."""


def called(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """What a function of the library returns. Raises LibraryError where it panics or raises a bare Exception.

    A file that the library reads may still stop it later: a normaliser that replaces nothing, a model without
    the symbols that the pre-tokeniser gives.
    """
    try:
        return function(*given, **options)
    except BaseException as error:
        # pyo3's PanicException is no Exception, and no module exports it.
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise LibraryError(f"the tokenizers library says: {error}") from None
        raise


def from_json(text: str) -> Any:
    """The library's tokenizer of a tokenizer.json. Raises ValueError where it cannot be one."""
    imports("tokenizers")
    import tokenizers

    return called(tokenizers.Tokenizer.from_str, text)


def _load(text: str, path: Path) -> Any:
    try:
        loaded = from_json(text)
    except ValueError as error:
        raise TokenizerError(
            f"the tokenizer is malformed: {error!s:.300}",
            str(path),
            "copy the checkpoint's tokenizer.json again",
        ) from None
    decoder = type(loaded.decoder).__name__
    if decoder != "ByteLevel":
        raise TokenizerError(f"a ByteLevel decoder is needed, not {decoder}", str(path))
    loaded.no_truncation()
    loaded.no_padding()
    return loaded
