"""Decodes every PDI of a folder of xclbin files and prints what was met.

`python -m tests.support.pdi_folder FOLDER`, for files that are not in the repository. Exit status 1
where a command or a register is unknown, a PDI image cannot be decoded to its end, or a stream of one has a
loose end.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from pathlib import Path

from amdxdna import pdi
from amdxdna.errors import BadXclbin
from amdxdna.pdi import summary
from amdxdna.xclbin import read_any


def count(folder: Path) -> Counter[str]:
    """Counts over all files below `folder`; PDIs that several files share are decoded once."""
    found: Counter[str] = Counter()
    seen: set[bytes] = set()
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        try:
            file, _ = read_any(path)
        except BadXclbin as error:
            found["files refused"] += 1
            print(error, file=sys.stderr)
            continue
        found["files"] += 1
        for number, one in enumerate(file.pdis):
            found["PDIs"] += 1
            digest = hashlib.sha256(one.data).digest()
            if digest in seen:
                continue
            seen.add(digest)
            found["different PDIs"] += 1
            try:
                decoded = summary.summarise(pdi.read(one.data), file.partition.column_width)
            except pdi.BadPdi as error:
                found["PDIs not decoded"] += 1
                print(f"{path}: PDI {number}: {error}", file=sys.stderr)
                continue
            array = decoded.array
            found["transformed" if decoded.image.transformed else "plain"] += 1
            found["commands"] += array.commands
            found["unknown commands"] += array.unknown_commands
            found["words"] += array.words
            found["unknown words"] += array.unknown_words
            found["routes"] += len(decoded.routes)
            found["loose ends"] += sum(bool(end.fault) for route in decoded.routes for end in route.ends)
            # The last five words are missing in files of an old xclbinutil (XRT 2da383eb5e).
            cut = [p for p in decoded.problems if "the image ends 20 bytes before" in p]
            found["cut by 20 bytes"] += len(cut)
            found["problems"] += len(decoded.problems) - len(cut)
    return found


def main(words: list[str]) -> int:
    """Counts and prints; the exit status."""
    if len(words) != 1 or not Path(words[0]).is_dir():
        print("usage: python -m tests.support.pdi_folder FOLDER", file=sys.stderr)
        return 2
    found = count(Path(words[0]))
    for name, number in found.items():
        print(f"{name:<20}{number:>12,}")
    return int(
        any(
            found[name]
            for name in ("unknown commands", "unknown words", "PDIs not decoded", "problems", "loose ends")
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
