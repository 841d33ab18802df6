"""What a C compiler says of the kernel's header."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from amdxdna._native import ffi, lib

HEADER = Path(__file__).resolve().parents[2] / "amdxdna" / "csrc" / "uapi.h"


def own_names() -> tuple[list[str], list[str]]:
    text = HEADER.read_text()
    constants = re.findall(r"^#define (\w+) ", text, re.M)
    structs = re.findall(r"^struct (\w+) \{", text, re.M)
    assert len(constants) > 60 and len(structs) > 30
    return constants, structs


def c_checks() -> str:
    """A C program that does not compile unless the real headers agree with ours in every number."""
    constants, structs = own_names()
    lines = [
        "#include <stddef.h>",
        "#include <stdint.h>",
        "#include <drm/drm.h>",
        "#include <drm/amdxdna_accel.h>",
    ]

    def check(expression: str, value: int) -> None:
        text = re.sub(r"[^\w ]", " ", expression)
        lines.append(f'_Static_assert((uint64_t)({expression}) == {value & (1 << 64) - 1:#x}ull, "{text}");')

    for name in constants:
        if name == "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT_V1":  # the request of older headers, by construction
            continue
        check(name, getattr(lib, name))
    for name in structs:
        kind = ffi.typeof(f"struct {name}")
        check(f"sizeof(struct {name})", ffi.sizeof(kind))
        for field, facts in kind.fields:
            check(f"offsetof(struct {name}, {field})", facts.offset)
            if facts.type.kind != "array" or facts.type.length is not None:
                check(f"sizeof(((struct {name} *)0)->{field})", ffi.sizeof(facts.type))
    lines.append("int main(void) { return 0; }")
    return "\n".join(lines)


def check_header(include: Path | str, folder: Path) -> None:
    """Every constant, size and offset is that of the headers; a wrong number would be noticed."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = folder / "check.c"
    command = [compiler, "-std=gnu11", "-fsyntax-only", "-I", str(include), str(source)]
    source.write_text(c_checks())
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    source.write_text(c_checks().replace("0xc0206443ull", "0xc0206444ull", 1))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "CREATE_BO" in done.stderr
