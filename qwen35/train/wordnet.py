"""Reads WordNet 3.0's dict folder and picks one short, plain gloss for each word that is taught.

Format facts: wndb(5WN) and lexnames(5WN), as installed by Debian's `wordnet-base`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from qwen35.train.datafile import Named
from qwen35.train.words import DROPPED, FIRST, KINDS, PINNED, Kind

MAX_WORDS = 13
"""Longest gloss kept, in words: a longer one costs more training than one more word does."""

_PARTS = {"noun": "noun", "verb": "verb", "adj": "adj"}
_LEXNAMES = Named("wordnet.txt").words("files")
"""Lexicographer files by their number."""
_ENGLISH = Named("english.txt")
_CUTS = _ENGLISH.texts("cuts")
_ARTICLES = _ENGLISH.texts("articles")
_HEAD_ENDS = frozenset(_ENGLISH.words("head ends"))
_DANGLING = frozenset(_ENGLISH.words("dangling"))
_NO_ARTICLE_HEADS = frozenset(_ENGLISH.words("no article"))
_THE = frozenset(_ENGLISH.words("one of its kind"))
PLURALS = frozenset(_ENGLISH.words("plurals"))
"""Words that take "are"."""


class WordNetError(Exception):
    """The dict folder is missing or is not WordNet's."""


@dataclass(frozen=True)
class Sense:
    """One synset as a word sees it: lexicographer `file`, the `gloss`, and the synset's words."""

    file: str
    gloss: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A taught word: how its answer defines it and its kind."""

    word: str
    answer: str
    kind: Kind


class WordNet:
    """Look-up of senses by word. Reads the whole `data.*` text of one part of speech at first use."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / "index.noun").is_file():
            raise WordNetError(
                f"{self.folder}: no index.noun here; give wordnet-base's dict folder, /usr/share/wordnet"
            )
        self._index: dict[str, dict[str, list[int]]] = {}
        self._data: dict[str, bytes] = {}

    def _load(self, part: str) -> None:
        if part in self._index:
            return
        index: dict[str, list[int]] = {}
        for line in (self.folder / f"index.{part}").read_text("latin-1").splitlines():
            if line.startswith("  "):
                continue
            fields = line.split()
            count = int(fields[2])
            index[fields[0]] = [int(offset) for offset in fields[-count:]]
        self._index[part] = index
        self._data[part] = (self.folder / f"data.{part}").read_bytes()

    def senses(self, word: str, part: str) -> list[Sense]:
        """The senses of `word` in WordNet's order (most frequent first); empty when it is not there."""
        self._load(part)
        data = self._data[part]
        found = []
        for offset in self._index[part].get(word.lower(), []):
            line = data[offset : data.index(b"\n", offset)].decode("latin-1")
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            count = int(fields[3], 16)
            names = tuple(fields[4 + 2 * i] for i in range(count))
            found.append(Sense(_LEXNAMES[int(fields[1])], gloss.strip(), names))
        return found

    def words(self, part: str) -> list[str]:
        """Every single lower-case word of a part of speech, sorted."""
        self._load(part)
        return sorted(w for w in self._index[part] if w.isascii() and w.isalpha())


def plain_gloss(gloss: str) -> str:
    """A WordNet gloss without examples, parentheses and later clauses."""
    gloss = re.sub(r'"[^"]*"?', "", gloss)
    gloss = re.sub(r"\([^()]*\)", "", gloss)
    gloss = gloss.split(";")[0]
    gloss = gloss.replace("`", "'").replace("''", "'")
    gloss = re.sub(r"\s+", " ", gloss).strip(" ,:.-")
    return re.sub(r" ([,:])", r"\1", gloss)


def shorten(gloss: str, limit: int = MAX_WORDS) -> str | None:
    """`gloss` cut before a subordinate clause until it has at most `limit` words; None when it cannot be."""
    for _ in range(4):
        gloss = _trim(gloss)
        if len(gloss.split()) <= limit:
            return gloss if len(gloss.split()) >= 2 else None
        places = [gloss.rfind(cut) for cut in _CUTS]
        good = [p for p in places if len(gloss[: max(p, 0)].split()) >= 4]
        if not good:
            return None
        gloss = gloss[: max(good)].strip(" ,:")
    return None


def _trim(gloss: str) -> str:
    """Takes words off the end that cannot end a sentence."""
    words = gloss.split()
    while words and words[-1].strip(",") in _DANGLING:
        words.pop()
    return " ".join(words).strip(" ,:")


def circular(word: str, gloss: str) -> bool:
    """True when the gloss uses the word itself or an obvious inflection of it."""
    stem = word.lower()
    stem = stem[:-1] if len(stem) > 4 and stem.endswith(("e", "y", "s")) else stem
    found = re.findall(r"[a-z]+", gloss.lower())
    if len(stem) <= 3:
        return stem in found or stem + "s" in found
    return any(part.startswith(stem) or (len(part) > 5 and stem.endswith(part)) for part in found)


_ODD = re.compile(
    r"\b(genus|famil(y|ies) [A-Z]\w+|kingdom|phylum|Old World|New World|betulaceous|viverrine|musteline|"
    r"common name|generic name|informal|slang|archaic|obsolete|etc\.?)(?!\w)"
)


def odd(gloss: str) -> bool:
    """True for a gloss in a taxonomist's terms, or one whose article and number do not agree."""
    if _ODD.search(gloss):
        return True
    if gloss.startswith(("a ", "an ", "any ")) and not gloss.startswith("any of"):
        return _plural(_head(gloss))
    return gloss.split()[0].endswith(("s", "ed")) and not gloss.startswith("is ")


def _head(gloss: str) -> list[str]:
    """The words of the gloss's first noun phrase."""
    head: list[str] = []
    for part in gloss.replace(",", " ,").split():
        if part in _HEAD_ENDS or part == "," or part.endswith("ly"):
            if part.endswith("ly") and len(head) < 3:
                continue
            break
        head.append(part)
    return head


def _plural(head: list[str]) -> bool:
    last = head[-1] if head else ""
    return last.endswith("s") and not last.endswith(("ss", "us", "is", "ous"))


def article(word: str) -> str:
    """ "the" for what there is one of, or "a" or "an" by the first sound as well as spelling tells it."""
    low = word.lower()
    if low in _THE:
        return "the"
    if low.startswith(("uni", "eu", "use", "one", "ukr", "ute")):
        return "a"
    if low == "herb" or low.startswith(("hour", "honest", "heir", "honor")):
        return "an"
    return "an" if low[0] in "aeiou" else "a"


def sentence(entry_word: str, gloss: str, kind: Kind) -> str:
    """The answer that defines a word; it always repeats the word, which keeps the model on it."""
    if kind.name == "a verb":
        return f"To {entry_word} is to {gloss}."
    if kind.name == "an adjective":
        return f"The word {entry_word} means: {gloss}."
    name = entry_word[0].upper() + entry_word[1:]
    if entry_word in PLURALS:
        return f"{name} are {gloss}."
    if not kind.countable:
        return f"{name} is {gloss}."
    if not gloss.startswith(_ARTICLES):
        head = _head(gloss)
        if not head or head[-1] in _NO_ARTICLE_HEADS or _plural(head):
            return f"The word {entry_word} means: {gloss}."
        gloss = f"{article(gloss)} {gloss}"
    return f"{article(entry_word).capitalize()} {entry_word} is {gloss}."


def define(net: WordNet, word: str, kind: Kind) -> str | None:
    """The curated gloss of `word` in the sense its kind asks for, or None when no sense will do."""
    if word in PINNED:
        return PINNED[word]
    part = _PARTS[kind.files[0].partition(".")[0]]
    senses = net.senses(word, part)
    for rank, file in enumerate(kind.files):
        tried = [s for s in senses if (s.file.startswith(part) if "." not in file else s.file == file)]
        for sense in tried[: 3 if rank == 0 else 1]:
            gloss = shorten(plain_gloss(sense.gloss))
            if gloss is not None and not circular(word, gloss) and not odd(gloss):
                return gloss
    return None


def entries(net: WordNet, limit: int | None = None) -> list[Entry]:
    """The taught words with their answers, in the order of `words.KINDS`.

    Of more than `limit` words the pinned glosses stay, then `words.FIRST`; the others are thinned evenly.
    """
    seen: set[str] = set()
    found = []
    for kind in KINDS:
        for word in kind.words:
            if word in seen or word in DROPPED:
                continue
            seen.add(word)
            gloss = define(net, word, kind)
            if gloss:
                found.append(Entry(word, sentence(word, gloss, kind), kind))
    if limit is not None and limit < len(found):
        found = _fewer(found, limit)
    return found


def _fewer(found: list[Entry], limit: int) -> list[Entry]:
    """At most `limit` entries: pinned glosses, then words.FIRST, then the others, each thinned evenly."""
    kept: list[Entry] = []
    groups = (
        [e for e in found if e.word in PINNED],
        [e for e in found if e.word in FIRST and e.word not in PINNED],
        [e for e in found if e.word not in FIRST and e.word not in PINNED],
    )
    for group in groups:
        room = min(limit - len(kept), len(group))
        kept += [group[i * len(group) // room] for i in range(room)]
    order = {id(entry): i for i, entry in enumerate(found)}
    return sorted(kept, key=lambda entry: order[id(entry)])
