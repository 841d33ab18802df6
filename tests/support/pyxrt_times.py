"""What calls of `pyxrt` cost, in XRT's module and in ours, on the emulated NPU: one line each.

    python -m tests.support.pyxrt_times          needs Debian's XRT, as tests/pyxrt/test_pyxrt_oracle.py does
    python pyxrt_times.py FOLDER LOOPS   one module's times as JSON, microseconds; standard library only

Other load on the machine shows in the times: the least of several goes is taken.
"""

import json
import os
import sys
import time

GOES = 7


def measured(folder: str, loops: int) -> dict[str, float]:
    """Microseconds a call."""
    import pyxrt

    def path(name: str) -> str:
        return os.path.join(folder, name)

    to_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
    device = pyxrt.device(0)
    xclbin = pyxrt.xclbin(path("copy.xclbin"))
    context = pyxrt.hw_context(device, device.register_xclbin(xclbin))
    kernel = pyxrt.kernel(context, "MLIR_AIE")
    with open(path("copy.bin"), "rb") as file:
        code = file.read()
    insts = pyxrt.bo(device, len(code), pyxrt.bo.cacheable, kernel.group_id(1))
    insts.write(code, 0)
    insts.sync(to_device)
    a, b = (pyxrt.ext.bo(device, 8192) for _ in range(2))
    run = pyxrt.run(kernel)
    elf_context = pyxrt.hw_context(device, pyxrt.elf(path("full.elf")))
    elf_kernel = pyxrt.ext.kernel(elf_context, "main")
    elf_run = pyxrt.run(elf_kernel)

    def arguments() -> None:
        for index, value in enumerate((3, insts, len(code), a, b)):
            run.set_arg(index, value)

    def elf_arguments() -> None:
        elf_run.set_arg(0, a)
        elf_run.set_arg(1, b)

    def started(which: "pyxrt.run") -> None:
        which.start()
        which.wait()

    cases = {
        "run(kernel)": lambda: pyxrt.run(kernel),
        "run(ELF kernel)": lambda: pyxrt.run(elf_kernel),
        "five set_arg": arguments,
        "two set_arg, ELF": elf_arguments,
        "sync of 4 KiB": lambda: a.sync(to_device, 4096, 0),
        "start and wait": lambda: started(run),
        "start and wait, ELF": lambda: started(elf_run),
    }
    arguments()
    elf_arguments()
    found = {}
    for name, call in cases.items():
        goes = []
        for _ in range(GOES):
            began = time.perf_counter()
            for _ in range(loops):
                call()
            goes.append((time.perf_counter() - began) / loops * 1e6)
        found[name] = min(goes)
    return found


def main() -> int:
    """Runs one module where a folder is given, else both."""
    if len(sys.argv) == 3:
        print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
        return 0
    import tempfile
    from pathlib import Path

    from tests.support import pyxrt_debian

    with tempfile.TemporaryDirectory() as folder:
        print(pyxrt_debian.times(Path(folder), pyxrt_debian.debian(), 200))
    return 0


if __name__ == "__main__":
    sys.exit(main())
