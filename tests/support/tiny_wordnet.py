"""A WordNet dict folder with a handful of synsets, in the format of wndb(5WN)."""

from __future__ import annotations

from pathlib import Path

LEXNAMES = {
    "noun.animal": 5,
    "noun.artifact": 6,
    "noun.person": 18,
    "noun.plant": 20,
    "noun.food": 13,
    "verb.motion": 38,
    "adj.all": 0,
    "adv.all": 2,
    "noun.act": 4,
}

Synset = tuple[str, tuple[str, ...], str]
"""Lexicographer file, words, gloss."""

NOUNS: tuple[Synset, ...] = (
    ("noun.person", ("whale", "giant_person"), "a very large person; impressive in size"),
    ("noun.animal", ("squirrel",), 'a kind of arboreal rodent having a long bushy tail; "a grey squirrel"'),
    (
        "noun.animal",
        ("otter",),
        "freshwater carnivorous mammal having webbed and clawed feet and dark brown fur",
    ),
    ("noun.animal", ("raven",), "large black bird with a straight bill and long wedge-shaped tail"),
    ("noun.animal", ("beaver",), "a beaver that builds; beavers build dams"),
    ("noun.artifact", ("beaver",), "a hat made with the fur of a beaver"),
    ("noun.animal", ("wombat",), "burrowing marsupials about the size of a badger"),
    (
        "noun.animal",
        ("moose",),
        "large deer (of the north) that lives in the cold and wet forests of "
        "the far northern parts of the world and eats leaves",
    ),
    ("noun.plant", ("beech",), "a tree of the genus Fagus"),
    ("noun.artifact", ("teapot",), "pot for brewing tea; usually has a spout and handle"),
    ("noun.artifact", ("xylogate", "zanthorn"), "a thing no one is taught"),
    ("noun.artifact", ("quindle",), "another thing no one is taught"),
    ("noun.act", tuple(f"{a}{b}zzok" for a in "bdgkmp" for b in "aeiou"), "what no one is taught"),
    ("noun.food", ("grovel_cake",), "a cake"),
)


def _write(folder: Path, part: str, letter: str, synsets: tuple[Synset, ...]) -> None:
    text = "  1 licence lines start with two spaces\n"
    index: dict[str, list[int]] = {}
    for file, words, gloss in synsets:
        offset = len(text)
        listed = " ".join(f"{word} 0" for word in words)
        text += f"{offset:08d} {LEXNAMES[file]:02d} {letter} {len(words):02x} {listed} 000 | {gloss}  \n"
        for word in words:
            index.setdefault(word, []).append(offset)
    (folder / f"data.{part}").write_text(text, "latin-1")
    lines = ["  1 licence"]
    for word, offsets in sorted(index.items()):
        numbers = " ".join(f"{offset:08d}" for offset in offsets)
        lines.append(f"{word} {letter} {len(offsets)} 0 {len(offsets)} 0 {numbers}  ")
    (folder / f"index.{part}").write_text("\n".join(lines) + "\n", "latin-1")


def make(folder: Path) -> Path:
    """Writes the folder and returns it."""
    folder.mkdir(exist_ok=True)
    _write(folder, "noun", "n", NOUNS)
    _write(folder, "verb", "v", (("verb.motion", ("swim",), "travel through water"),))
    _write(folder, "adj", "a", (("adj.all", ("brimble",), "not taught"),))
    _write(folder, "adv", "r", (("adv.all", ("gladly", "loudly"), "in some manner"),))
    return folder
