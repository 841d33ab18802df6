"""`python -m amdxdna example DIR`: files for the emulated NPU to start from."""

from __future__ import annotations

import os
import shlex
from typing import Any

from amdxdna.cli.common import CommandError, Parser, document, print_json
from amdxdna.cli.screen import show
from amdxdna.programs import own_program

_FILES = ("copy.xclbin", "copy.insts", "a.npy", "want.npy")
_WORDS = 1024


def parser() -> Parser:
    """The options of `example`."""
    p = Parser(
        "example",
        description="Writes a small xclbin, an instruction stream and data into a directory: a "
        "kernel of the emulated NPU that adds 1 to 1,024 words, ready for `amdxdna run`.",
    )
    p.add_argument("directory", metavar="DIR", help="where to; made if it is not there")
    p.add_json()
    return p


def example_main(argv: list[str]) -> int:
    """Runs `example` with `argv`; the exit status."""
    given = parser().parse_args(argv)

    import numpy as np

    from amdxdna.cli.arrays import write_array
    from amdxdna.emu import xclbins
    from amdxdna.emu.kernels import stream

    folder = given.directory
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{folder} cannot be made: {error.strerror}", "Name another directory") from None
    paths = [os.path.join(folder, name) for name in _FILES]
    there = [path for path in paths if os.path.lexists(path)]
    if there:
        raise CommandError(f"{there[0]} is already there", "Name an empty directory")
    words = np.arange(_WORDS, dtype=np.int32)
    arrays: list[np.ndarray[Any, Any]] = [
        *(
            np.frombuffer(part, np.uint8)
            for part in (xclbins.xclbin_bytes("copy"), stream.copy(4 * _WORDS, addend=1))
        ),
        words,
        words + 1,
    ]
    for path, array in zip(paths, arrays, strict=True):
        write_array(path, array)
    command = f"{own_program('python')} " + shlex.join(
        [
            "-m",
            "amdxdna",
            "run",
            *paths[:2],
            "--in",
            paths[2],
            "--out",
            f"{os.path.join(folder, 'c.npy')}:{4 * _WORDS}",
            "--dtype",
            "int32",
            "--expect",
            paths[3],
            "--device",
            "emu",
        ]
    )
    if given.json:
        print_json(document("example", files=paths, command=command))
    else:
        show(
            [
                f"{', '.join(_FILES)} are in {folder}. Run them:",
                "",
                f"  {command}",
                "",
                "The kernel is for the emulated NPU; a real one runs what mlir-aie or IRON compile for it.",
            ]
        )
    return 0
