"""What is asked of `pyxrt`, the real module and ours alike: name -> code whose last line is an expression.

Standard library only: Debian's Python runs this too.
"""

SETUP = '''
import os, sys, time
import pyxrt
from pyxrt import xclBOSyncDirection as S, ert_cmd_state as E, xrt_info_device as I
TO, FROM = S.XCL_BO_SYNC_BO_TO_DEVICE, S.XCL_BO_SYNC_BO_FROM_DEVICE
def read(name):
    with open(os.path.join(FOLDER, name), "rb") as file:
        return file.read()
def path(name):
    return os.path.join(FOLDER, name)
class Kit:
    """Made when first asked for: device, xclbin, context, kernel, two buffers of 4 KiB."""
    def __getattr__(self, name):
        value = getattr(self, "_" + name)()
        setattr(self, name, value)
        return value
    def _d(self): return pyxrt.device(0)
    def _x(self): return pyxrt.xclbin(path("copy.xclbin"))
    def _u(self): return self.d.register_xclbin(self.x)
    def _c(self): return pyxrt.hw_context(self.d, self.u)
    def _k(self): return pyxrt.kernel(self.c, "MLIR_AIE")
    def _a(self):
        a = self.bo(4096); a.write(bytes(range(256)) * 16, 0); a.sync(TO); return a
    def _b(self): return self.bo(4096)
    def bo(self, size): return pyxrt.bo(self.d, size, pyxrt.bo.host_only, self.k.group_id(3))
    def code(self, name):
        data = read(name + ".bin")
        bo = pyxrt.bo(self.d, len(data), pyxrt.bo.cacheable, self.k.group_id(1))
        bo.write(data, 0); bo.sync(TO)
        return bo, len(data)
    def call(self, name, a=None, b=None):
        insts, size = self.code(name)
        self.insts = insts
        return self.k(3, insts, size, a or self.a, b or self.b)
    def run(self, name):
        insts, size = self.code(name)
        self.__dict__.setdefault("kept", []).append(insts)
        run = pyxrt.run(self.k)
        for index, value in enumerate((3, insts, size, self.a, self.b)):
            run.set_arg(index, value)
        return run
    def runlist(self, *names):
        self.runs = [self.run(name) for name in names]
        made = pyxrt.runlist(self.c)
        for run in self.runs: made.add(run)
        return made
    # Control code in ELF files: full ones by name, and one for the xclbin's kernel
    def elf(self, name): return pyxrt.elf(path(name + ".elf"))
    def _f(self): return self.elf("full")
    def _fc(self): return pyxrt.hw_context(self.d, self.f)
    def _p(self): return pyxrt.module(self.elf("part"))
    def _ea(self):
        a = pyxrt.ext.bo(self.d, 4096); a.write(bytes(range(256)) * 16, 0); a.sync(TO); return a
    def _eb(self): return pyxrt.ext.bo(self.d, 4096)
    def full(self, name, kernel="main:seq"):
        c = pyxrt.hw_context(self.d, self.elf(name))
        return pyxrt.ext.kernel(c, kernel)
    def erun(self, kernel, first=0, *buffers):
        run = pyxrt.run(kernel)
        for index, value in enumerate(buffers or (self.wide(self.ea), self.wide(self.eb))):
            run.set_arg(first + index, value)
        return run
    def wide(self, bo):
        """The buffer, with room for the streams' offsets."""
        made = pyxrt.ext.bo(self.d, 8192)
        made.write(bytes(bo.map()) + bytes(4096), 0); made.sync(TO)
        self.__dict__.setdefault("kept", []).append(made)
        return made
    def done(self, run, at=0):
        run.start()
        state = run.wait()
        out = self.kept[-1]
        out.sync(FROM)
        return state, run.state(), bytes(out.map()[at:at + 16])
    def early(self, begin, look):
        """What `look` makes of a run of 0.3 s that `begin` starts. Where it comes too late, once more."""
        while True:
            began = time.monotonic()
            run = begin()
            seen = look(run)
            late = time.monotonic() - began >= 0.3
            run.wait()
            if not late: return seen
    def begun(self, run): run.start(); return run
    def executed(self, made): made.execute(); return made
t = Kit()
def attempt(call):
    try: return call()
    except Exception as error: return (type(error).__name__, str(error))
'''

PROBES: dict[str, str] = {}


def _each(form: str, **items: str) -> None:
    """A probe for each item, whose code stands for {} in `form`."""
    for name, code in items.items():
        PROBES[name] = form.format(code)


_each(
    "{}",
    enumerate_devices="pyxrt.enumerate_devices()",
    bo_flags_none="pyxrt.XCL_BO_FLAGS_NONE",
    log_message='pyxrt.log_message(pyxrt.error, "tag", "text")',
    log_message_int='pyxrt.log_message(3, "tag", "text")',
    no_version='getattr(pyxrt, "__version__", None)',
    names="[n for n in dir(pyxrt) if not n.startswith('_')]",
    names_of_ext="[n for n in dir(pyxrt.ext) if not n.startswith('_')]",
    ext_in_modules="'pyxrt.ext' in sys.modules",
)
for _owner in (
    "xclBOSyncDirection",
    "ert_cmd_state",
    "xrt_info_device",
    "xrt_msg_level",
    "bo.flags",
    "hw_context.access_mode",
    "kernel.cu_access_mode",
    "ext.access_mode",
):
    _name = _owner.replace(".", "_")
    PROBES[f"{_name}_members"] = f"[(n, int(m)) for n, m in sorted(pyxrt.{_owner}.__members__.items())]"
    PROBES[f"{_name}_where"] = f"(pyxrt.{_owner}.__module__, pyxrt.{_owner}.__qualname__, pyxrt.{_owner}(1))"
    PROBES[f"{_name}_equal"] = (
        f"x = pyxrt.{_owner}(1)\n(x == 1, x != 1, x == pyxrt.{_owner}(1), x == 2, x == E(1), x == None)"
    )
    PROBES[f"{_name}_unknown"] = f"pyxrt.{_owner}(77)"
    PROBES[f"{_name}_text"] = f"x = pyxrt.{_owner}(1)\n(str(x), repr(x), int(x), hash(x), x.value, [5, 6][x])"
    PROBES[f"{_name}_by_name"] = f"attempt(lambda: pyxrt.{_owner}['x'])[0]"
    PROBES[f"{_name}_order"] = f"attempt(lambda: pyxrt.{_owner}(1) < pyxrt.{_owner}(2))[0]"
    PROBES[f"{_name}_or"] = (
        f"x = attempt(lambda: pyxrt.{_owner}(1) | pyxrt.{_owner}(2))\nx[0] if type(x) is tuple else x"
    )
_each(
    "{}",
    bo_aliases="[(n, getattr(pyxrt.bo, n)) for n in ('normal', 'cacheable', 'svm', 'device_only', "
    "'host_only', 'p2p')]",
    context_aliases="(pyxrt.hw_context.exclusive, pyxrt.hw_context.shared)",
    kernel_aliases="(pyxrt.kernel.exclusive, pyxrt.kernel.shared, pyxrt.kernel.none)",
    level_aliases="[getattr(pyxrt, n) for n in ('emergency', 'alert', 'critical', 'error', 'warning', "
    "'notice', 'info', 'debug')]",
    ext_and="pyxrt.ext.read_write & pyxrt.ext.write",
    ext_aliases="(pyxrt.ext.none, pyxrt.ext.local, pyxrt.ext.hybrid)",
    bdf_name="I.bdf.name",
    # device, uuid, xclbin
    device="t.d",
    device_none="attempt(lambda: pyxrt.device(9))",
    device_negative="attempt(lambda: pyxrt.device(-1))[0]",
    device_float="attempt(lambda: pyxrt.device(0.0))[0]",
    device_bdf="pyxrt.device('0000:c5:00.1').get_info(I.name)",
    device_wrong_bdf="attempt(lambda: pyxrt.device('nope'))",
    register="t.d.register_xclbin(t.x)",
    register_path="attempt(lambda: t.d.register_xclbin(path('copy.xclbin')))[0]",
    device_uuid_before="t.d.get_xclbin_uuid().to_string()",
    device_uuid="t.u\nt.d.get_xclbin_uuid().to_string()",
    register_is_per_object="t.u\nattempt(lambda: pyxrt.hw_context(pyxrt.device(0), t.u))",
    load_xclbin="attempt(lambda: t.d.load_xclbin(t.x))",
    uuid_text="pyxrt.uuid('12345678-1234-1234-1234-123456789abc').to_string()",
    uuid_upper="pyxrt.uuid('12345678-1234-1234-1234-123456789ABC').to_string()",
    uuid_equal="t.x.get_uuid() == t.x.get_uuid()",
    uuid_int="attempt(lambda: pyxrt.uuid(5))[0]",
    xclbin="t.x",
    xclbin_missing="attempt(lambda: pyxrt.xclbin('/nope'))",
    xclbin_bad="attempt(lambda: pyxrt.xclbin(path('bad.xclbin')))",
    xclbin_int="attempt(lambda: pyxrt.xclbin(5))[0]",
    xclbin_uuid="t.x.get_uuid().to_string()",
    xclbin_kernels="t.x.get_kernels()",
    xclbin_kernel_names="[(k.get_name(), k.get_num_args()) for k in t.x.get_kernels()]",
    xclbin_two="[(k.get_name(), k.get_num_args()) for k in pyxrt.xclbin(path('two.xclbin')).get_kernels()]",
    xclbin_xsa="t.x.get_xsa_name()",
    xclbin_mems="[(m.get_tag(), m.get_base_address(), m.get_size_kb(), m.get_used(), m.get_index()) "
    "for m in t.x.get_mems()]",
    xclbin_axlf="attempt(lambda: t.x.get_axlf())[0]",
)
for _key in (
    *("bdf", "name", "m2m", "interface_uuid", "max_clock_frequency_mhz", "nodma", "offline", "kdma"),
    *("electrical", "thermal", "mechanical", "memory", "platform", "pcie_info", "host", "dynamic_regions"),
    "vmr",
):
    PROBES[f"info_{_key}"] = f"attempt(lambda: t.d.get_info(I(I.__members__['{_key}'])))"
PROBES["info_int"] = "attempt(lambda: t.d.get_info(5))[0]"
PROBES["info_unknown"] = "attempt(lambda: t.d.get_info(I(77)))"

_each(
    "{}",
    # contexts and kernels
    context="t.c",
    context_unknown="attempt(lambda: pyxrt.hw_context(t.d, pyxrt.uuid('12345678-1234-1234-1234-123456789abc"
    "')))",
    context_alone="attempt(lambda: pyxrt.hw_context(t.d))[0]",
    context_xclbin="pyxrt.hw_context(t.d, t.x).get_mode()",
    context_path="pyxrt.hw_context(t.d, path('copy.xclbin')).get_mode()",
    context_missing_path="attempt(lambda: pyxrt.hw_context(t.d, '/nope'))",
    context_keywords="pyxrt.hw_context(device=t.d, uuid=t.u).get_mode()",
    context_exclusive="pyxrt.hw_context(t.d, t.u, pyxrt.hw_context.exclusive).get_mode()",
    context_mode_int="attempt(lambda: pyxrt.hw_context(t.d, t.u, 1))[0]",
    context_qos="pyxrt.hw_context(t.d, t.u, {'gops': 1, 'zzz': 3}).get_mode()",
    context_qos_negative="attempt(lambda: pyxrt.hw_context(t.d, t.u, {'gops': -1}))[0]",
    context_qos_float="attempt(lambda: pyxrt.hw_context(t.d, t.u, {'gops': 1.5}))[0]",
    context_xclbin_qos="pyxrt.hw_context(t.d, t.x, {}).get_mode()",
    context_path_mode="pyxrt.hw_context(t.d, path('copy.xclbin'), pyxrt.hw_context.shared).get_mode()",
    context_staged="pyxrt.hw_context(t.d, {'gops': 1}, pyxrt.hw_context.shared).get_mode()",
    context_device="t.c.get_device().get_info(I.name)",
    context_uuid="t.c.get_xclbin_uuid().to_string()",
    context_get_xclbin="t.c.get_xclbin().get_uuid().to_string()",
    contexts_two="c = t.c\nd = pyxrt.hw_context(t.d, t.u)\n(pyxrt.kernel(c, 'MLIR_AIE').group_id(3), "
    "pyxrt.kernel(d, 'MLIR_AIE').group_id(3))",
    contexts_dropped="n = [pyxrt.hw_context(t.d, t.u) and 1 for _ in range(40)]\nlen(n)",
    kernel="t.k",
    kernel_missing="attempt(lambda: pyxrt.kernel(t.c, 'x'))",
    kernel_instance="pyxrt.kernel(t.c, 'MLIR_AIE:{MLIRAIE}').group_id(3)",
    kernel_wrong_instance="attempt(lambda: pyxrt.kernel(t.c, 'MLIR_AIE:nope'))",
    kernel_bare_instance="attempt(lambda: pyxrt.kernel(t.c, 'MLIR_AIE:MLIRAIE'))",
    kernel_int="attempt(lambda: pyxrt.kernel(t.c, 5))[0]",
    kernel_device="pyxrt.kernel(t.d, t.u, 'MLIR_AIE').group_id(3)",
    kernel_device_mode="pyxrt.kernel(t.d, t.u, 'MLIR_AIE', pyxrt.kernel.shared).group_id(3)",
    kernel_two="c = pyxrt.hw_context(t.d, path('two.xclbin'))\n(pyxrt.kernel(c, 'FIRST').group_id(1), "
    "pyxrt.kernel(c, 'SECOND').group_id(1))",
    group_ids="[t.k.group_id(n) for n in (-1, 0, 1, 2, 3, 7, 8, 100)]",
    group_float="attempt(lambda: t.k.group_id(1.0))[0]",
)
for _flag in ("normal", "cacheable", "svm", "device_only", "host_only", "p2p"):
    PROBES[f"bo_{_flag}"] = f"attempt(lambda: pyxrt.bo(t.d, 4096, pyxrt.bo.{_flag}, 0))"
_each(
    "{}",
    bo_flag_class="pyxrt.bo(t.d, 4096, pyxrt.bo.flags.host_only, 0).size()",
    bo_flag_int="attempt(lambda: pyxrt.bo(t.d, 4096, 1 << 29, 0))[0]",
    bo_zero="attempt(lambda: pyxrt.bo(t.d, 0, pyxrt.bo.host_only, 0))",
    bo_float="attempt(lambda: pyxrt.bo(t.d, 4096.0, pyxrt.bo.host_only, 0))[0]",
    bo_negative="attempt(lambda: pyxrt.bo(t.d, -1, pyxrt.bo.host_only, 0))[0]",
    bo_huge="attempt(lambda: pyxrt.bo(t.d, 1 << 50, pyxrt.bo.host_only, 0))[0]",
    bo_huge_heap="attempt(lambda: pyxrt.bo(t.d, 1 << 32, pyxrt.bo.cacheable, 0))",
    bo_group_negative="attempt(lambda: pyxrt.bo(t.d, 4096, pyxrt.bo.host_only, -1))[0]",
    bo_any_group="pyxrt.bo(t.d, 4096, pyxrt.bo.host_only, 0x1FFFF).size()",
    bo_none="attempt(lambda: pyxrt.bo())[0]",
    bo_odd="b = t.bo(4097)\n(b.size(), len(b.map()), b.map().format, b.map().readonly, b.map().ndim, "
    "b.map().itemsize)",
    bo_keywords="pyxrt.bo(device=t.d, size=64, flags=pyxrt.bo.host_only, group=0).size()",
    bo_context="pyxrt.bo(t.c, 64, pyxrt.bo.host_only, 0).size()",
    bo_context_normal="attempt(lambda: pyxrt.bo(t.c, 64, 0))",
    bo_sub="b = t.bo(4096)\ns = pyxrt.bo(b, 64, 128)\n(s.size(), s.address() - b.address())",
    bo_sub_odd="pyxrt.bo(t.bo(4096), 7, 13).size()",
    bo_sub_zero="pyxrt.bo(t.bo(4096), 0, 0).size()",
    bo_sub_past="attempt(lambda: pyxrt.bo(t.bo(4096), 4096, 1))",
    bo_sub_negative="attempt(lambda: pyxrt.bo(t.bo(4096), -1, 1))[0]",
    bo_sub_shares="b = t.bo(4096)\ns = pyxrt.bo(b, 4, 8)\ns.write(b'abcd', 0)\nbytes(b.map()[6:14])",
    bo_sub_of_sub="b = t.bo(4096)\ns = pyxrt.bo(pyxrt.bo(b, 1024, 1024), 64, 128)\n"
    "s.write(b'abcd', 0)\n(bytes(b.map()[1152:1156]), s.address() - b.address())",
    bo_write="b = t.bo(64)\nb.write(b'abc', 5)\nbytes(b.map()[5:8])",
    bo_write_array="import array\nb = t.bo(64)\nb.write(array.array('i', [1, 2, 3]), 0)\nbytes(b.map()[:12])",
    bo_write_view="b = t.bo(64)\nb.write(memoryview(bytes(range(16))), 16)\nbytes(b.map()[16:32])",
    bo_write_one="attempt(lambda: t.bo(64).write(b'abc'))[0]",
    bo_write_past="attempt(lambda: t.bo(64).write(b'abc', 62))",
    bo_write_negative="attempt(lambda: t.bo(64).write(b'abc', -1))[0]",
    bo_write_str="attempt(lambda: t.bo(64).write('abc', 0))[0]",
    bo_write_empty="t.bo(64).write(b'', 0)",
    bo_write_end="t.bo(64).write(b'', 64)",
    bo_write_strided="b = t.bo(64)\nb.write(memoryview(bytes(range(16)))[::2], 0)\nbytes(b.map()[:8])",
    bo_read_one="attempt(lambda: t.bo(64).read(1))[0]",
    bo_map_writes="b = t.bo(64)\nb.map()[:3] = b'xyz'\nbytes(b.map()[:4]) == b'xyz' + bytes(b.map()[3:4])",
    bo_map_lives="m = t.bo(64).map()\nlen(m)",
    bo_sync="t.a.sync(TO)",
    bo_sync_back="t.a.sync(FROM)",
    bo_sync_two="attempt(lambda: t.a.sync(TO, 1))[0]",
    bo_sync_part="t.a.sync(TO, 10, 20)",
    bo_sync_nothing="t.a.sync(TO, 0, 0)",
    bo_sync_past="attempt(lambda: t.a.sync(TO, 4096, 1))",
    bo_sync_far="attempt(lambda: t.a.sync(TO, 0, 4097))",
    bo_sync_negative="attempt(lambda: t.a.sync(TO, -1, 0))[0]",
    bo_sync_int="attempt(lambda: t.a.sync(0))[0]",
    bo_sync_gmio="(t.a.sync(S.XCL_BO_SYNC_BO_GMIO_TO_AIE), t.a.sync(S.XCL_BO_SYNC_BO_AIE_TO_GMIO))",
    bo_sync_unknown="attempt(lambda: t.a.sync(S(7)))",
    bo_sub_sync="pyxrt.bo(t.a, 64, 128).sync(TO)",
    bo_sub_sync_past="attempt(lambda: pyxrt.bo(t.a, 64, 128).sync(TO, 64, 1))",
    bo_heap_address="pyxrt.bo(t.d, 64, pyxrt.bo.cacheable, 0).address() % 0x8000",
    bo_heap_map="b = pyxrt.bo(t.d, 64, pyxrt.bo.cacheable, 0)\nb.write(b'abc', 1)\nbytes(b.map()[1:4])",
    ext_bo="(pyxrt.ext.bo(t.d, 100).size(), isinstance(pyxrt.ext.bo(t.d, 100), pyxrt.bo))",
    ext_bo_access="pyxrt.ext.bo(t.d, 64, pyxrt.ext.read | pyxrt.ext.write).size()",
    ext_bo_context="(pyxrt.ext.bo(t.c, 64).size(), pyxrt.ext.bo(t.c, 64, pyxrt.ext.none).size())",
    ext_bo_zero="attempt(lambda: pyxrt.ext.bo(t.d, 0))",
    ext_bo_float="attempt(lambda: pyxrt.ext.bo(t.d, 1.5))[0]",
    ext_bo_int_pointer="attempt(lambda: pyxrt.ext.bo(t.d, 4096, 4096))[0]",
    ext_bo_type="pyxrt.ext.bo(t.d, 64)",
    ext_kernel_partial="attempt(lambda: pyxrt.ext.kernel(t.c, 'MLIR_AIE'))[0]",
    # runs
    run="pyxrt.run(t.k)",
    run_int="attempt(lambda: pyxrt.run(5))[0]",
    run_state="pyxrt.run(t.k).state()",
    run_set="[pyxrt.run(t.k).set_arg(0, v) for v in (3, True, -5, 2147483647, -2147483648)]",
    run_set_buffer="pyxrt.run(t.k).set_arg(3, t.a)",
    run_set_past="attempt(lambda: pyxrt.run(t.k).set_arg(8, 3))",
    run_set_negative="attempt(lambda: pyxrt.run(t.k).set_arg(-1, 3))",
    run_set_big="attempt(lambda: pyxrt.run(t.k).set_arg(0, 1 << 31))[0]",
    run_set_float="attempt(lambda: pyxrt.run(t.k).set_arg(0, 1.5))[0]",
    run_set_none="attempt(lambda: pyxrt.run(t.k).set_arg(0, None))[0]",
    run_set_name="attempt(lambda: pyxrt.run(t.k).set_arg('x', 0))[0]",
    run_scratchpad="attempt(lambda: pyxrt.run(t.k).get_ctrl_scratchpad_bo())",
    run_result="r = t.run('copy')\nr.start()\ns = r.wait()\nt.b.sync(FROM)\n"
    "(s, r.state(), bytes(t.b.map()[:8]))",
    run_again="r = t.run('copy')\nr.start()\nr.wait()\nr.set_arg(3, t.b)\nr.start()\n"
    "t.b.sync(FROM)\nr.wait()",
    run_twice="t.early(lambda: t.begun(t.run('slow')), lambda r: attempt(r.start))",
    run_new_state="t.early(lambda: t.begun(t.run('slow')), lambda r: r.state())",
    call="r = t.call('copy')\ns = r.wait()\nt.b.sync(FROM)\n(r, s, str(s), bytes(t.b.map()[:8]))",
    call_wait_ms="t.call('copy').wait(60_000)",
    call_wait_zero="t.call('copy').wait(0)",
    call_wait_float="r = t.call('copy')\nr.wait()\nattempt(lambda: r.wait(1.5))[0]",
    call_wait_keyword="r = t.call('copy')\nr.wait()\nattempt(lambda: r.wait(timeout=5))[0]",
    call_wait_negative="r = t.call('copy')\nr.wait()\nattempt(lambda: r.wait(-1))[0]",
    call_wait2="t.call('copy').wait2()",
    call_wait2_number="r = t.call('copy')\nr.wait()\nattempt(lambda: r.wait2(5))[0]",
    call_wait_again="r = t.call('copy')\n(r.wait(), r.wait(), r.wait2(), r.state())",
    call_keyword="attempt(lambda: t.k(opcode=3))[0]",
    call_time_out="t.early(lambda: t.call('slow'), lambda r: attempt(lambda: r.wait(1)))",
    call_fail="r = t.call('fail')\n(r.wait(), r.state())",
    call_fail2="r = t.call('fail')\nx = attempt(r.wait2)\n(x[0], x[1].splitlines()[0])",
    call_words="i, n = t.code('copy')\nr = t.k(3, i, n // 4, t.a, t.b)\ns = r.wait()\nt.b.sync(FROM)\n"
    "(s, bytes(t.b.map()[:8]))",
    call_nones="i, n = t.code('copy')\nt.k(3, i, n, t.a, t.b, None, None, 'x').wait()",
    call_too_many="i, n = t.code('copy')\nattempt(lambda: t.k(3, i, n, t.a, t.b, 0, 0, 0, 0, 0).wait())",
    call_sub="s, d = pyxrt.bo(t.a, 4096, 0), pyxrt.bo(t.bo(8192), 4096, 4096)\nr = t.call('copy', s, d)\n"
    "x = r.wait()\nd.sync(FROM)\n(x, bytes(d.map()[:4]))",
    call_sub_of_big="g = t.bo(12288)\nd = pyxrt.bo(g, 4096, 8192)\nr = t.call('copy', t.a, d)\nr.wait()\n"
    "g.sync(FROM)\nbytes(g.map()[8192:8196])",
    call_dropped="r = t.call('slow')\ndel r\n0",
    call_callback="r = t.call('copy')\nr.wait()\nattempt(lambda: r.add_callback(E(4), print, None))[0]",
    call_eight_in_flight="rs = [t.call('copy') for _ in range(8)]\n[r.wait() for r in rs]",
    run_of_empty="attempt(lambda: pyxrt.run().start())",
    # runlists
    list_empty="l = pyxrt.runlist(t.c)\n(l.execute(), l.wait())",
    list_one="l = t.runlist('copy')\n(l.execute(), l.wait(), t.runs[0].state())",
    list_result="l = t.runlist('copy', 'copy')\nl.execute()\nl.wait()\nt.b.sync(FROM)\nbytes(t.b.map()[:8])",
    list_same_twice="l = t.runlist('copy')\nl.add(t.runs[0])\n(l.execute(), l.wait())",
    list_again="l = t.runlist('copy')\n[(l.execute(), l.wait()) for _ in range(3)]",
    list_wait_ms="l = t.runlist('copy')\nl.execute()\nx = attempt(lambda: l.wait(60_000))\nl.wait()\nx[0]",
    list_busy="t.early(lambda: t.executed(t.runlist('slow')), "
    "lambda l: (attempt(l.execute), attempt(lambda: l.add(t.run('copy')))))",
    list_member_start="l = t.runlist('copy')\nattempt(t.runs[0].start)",
    list_in_two="l = t.runlist('copy')\nattempt(lambda: pyxrt.runlist(t.c).add(t.runs[0]))",
    list_fails="l = t.runlist('copy', 'fail', 'copy')\nl.execute()\nx = attempt(l.wait)\n"
    "(x[0], x[1].splitlines()[0], [r.state() for r in t.runs])",
    list_fails_again="l = t.runlist('fail')\nl.execute()\nattempt(l.wait)\n"
    "(attempt(l.wait)[0] if attempt(l.wait) else None)",
    list_int="attempt(lambda: pyxrt.runlist(t.c).add(5))[0]",
    list_thirty="l = t.runlist(*['copy'] * 30)\n(l.execute(), l.wait())",
    list_other_context="l = pyxrt.runlist(pyxrt.hw_context(t.d, t.u))\nattempt(lambda: l.add(t.run('copy')))",
    # ELF files
    elf_missing="attempt(lambda: pyxrt.elf('/nope'))",
    elf_bad="attempt(lambda: pyxrt.elf(path('bad.xclbin')))",
    elf_int="attempt(lambda: pyxrt.elf(5))[0]",
    elf="t.f",
    elf_part="t.elf('part')",
    elf_other_generation="attempt(lambda: t.elf('ve2'))",
    elf_none="attempt(lambda: pyxrt.elf())[0]",
    elf_capsule="import ctypes\ndata = read('full.elf')\nc = ctypes.pythonapi.PyCapsule_New\n"
    "c.restype, c.argtypes = ctypes.py_object, [ctypes.c_char_p, ctypes.c_char_p, "
    "ctypes.c_void_p]\npyxrt.program(pyxrt.elf(c(data, None, None), len(data)))"
    ".get_partition_size()",
    elf_capsule_bad="import ctypes\nc = ctypes.pythonapi.PyCapsule_New\n"
    "c.restype, c.argtypes = ctypes.py_object, [ctypes.c_char_p, ctypes.c_char_p, "
    "ctypes.c_void_p]\nattempt(lambda: pyxrt.elf(c(bytes(64), None, None), 64))",
    module="t.p",
    module_int="attempt(lambda: pyxrt.module(5))[0]",
    module_keyword="pyxrt.module(elf=t.f)",
    module_path="attempt(lambda: pyxrt.module(path('part.elf')))[0]",
    program="pyxrt.program(t.f).get_partition_size()",
    program_part="attempt(lambda: pyxrt.program(t.elf('part')).get_partition_size())",
    program_int="attempt(lambda: pyxrt.program(5))[0]",
    context_elf="(t.fc.get_mode(), t.fc.get_xclbin_uuid().to_string())",
    context_elf_keywords="pyxrt.hw_context(device=t.d, elf=t.f).get_mode()",
    context_elf_mode="pyxrt.hw_context(t.d, t.f, {'gops': 1}, pyxrt.hw_context.exclusive).get_mode()",
    context_elf_mode_alone="attempt(lambda: pyxrt.hw_context(t.d, t.f, pyxrt.hw_context.shared))[0]",
    context_elf_part="attempt(lambda: pyxrt.hw_context(t.d, t.elf('part')))",
    context_elf_staged="c = pyxrt.hw_context(t.d, {}, pyxrt.hw_context.shared)\nc.add_config(t.f)\n"
    "pyxrt.ext.kernel(c, 'main')",
    context_elf_added="c = t.fc\nc.add_config(t.elf('other'))\n"
    "t.done(t.erun(pyxrt.ext.kernel(c, 'other:seq')))",
    context_elf_twice="attempt(lambda: t.fc.add_config(t.f))",
    context_elf_part_added="attempt(lambda: t.fc.add_config(t.elf('part')))",
    context_elf_int="attempt(lambda: t.fc.add_config(5))[0]",
    context_xclbin_added="c = t.c\nc.add_config(t.f)\nattempt(lambda: pyxrt.ext.kernel(c, 'main'))",
    context_elf_staged_kernel="c = pyxrt.hw_context(t.d, {}, pyxrt.hw_context.shared)\n"
    "(attempt(lambda: pyxrt.ext.kernel(c, 'main')), "
    "attempt(lambda: pyxrt.kernel(c, 'main')))",
    contexts_elf_dropped="n = [pyxrt.hw_context(t.d, t.f) and 1 for _ in range(40)]\nlen(n)",
    ext_kernel="pyxrt.ext.kernel(t.fc, 'main:seq')",
    ext_kernel_keywords="pyxrt.ext.kernel(hwctx=t.fc, name='main:seq')",
    ext_kernel_only_one="pyxrt.ext.kernel(t.fc, 'main')",
    ext_kernel_several="c = pyxrt.hw_context(t.d, t.elf('two'))\n"
    "attempt(lambda: pyxrt.ext.kernel(c, 'main'))",
    ext_kernel_unknown="attempt(lambda: pyxrt.ext.kernel(t.fc, 'nope'))",
    ext_kernel_unknown_instance="attempt(lambda: pyxrt.ext.kernel(t.fc, 'main:nope'))",
    ext_kernel_of_xclbin="attempt(lambda: pyxrt.ext.kernel(t.c, 'MLIR_AIE'))",
    ext_kernel_int="attempt(lambda: pyxrt.ext.kernel(t.fc, 5))[0]",
    ext_kernel_isinstance="isinstance(pyxrt.ext.kernel(t.fc, 'main'), pyxrt.kernel)",
    kernel_of_elf_context="attempt(lambda: pyxrt.kernel(t.fc, 'main'))",
    ext_kernel_module="pyxrt.ext.kernel(t.c, t.p, 'MLIR_AIE')",
    ext_kernel_module_keywords="pyxrt.ext.kernel(hwctx=t.c, module=t.p, name='MLIR_AIE')",
    ext_kernel_module_group="[pyxrt.ext.kernel(t.c, t.p, 'MLIR_AIE').group_id(n) for n in (0, 1, 3, 9)]",
    ext_kernel_module_unknown="attempt(lambda: pyxrt.ext.kernel(t.c, t.p, 'nope'))",
    ext_kernel_module_full="attempt(lambda: pyxrt.ext.kernel(t.c, pyxrt.module(t.f), 'MLIR_AIE'))",
    ext_kernel_module_elf_context="attempt(lambda: pyxrt.ext.kernel(t.fc, t.p, 'main'))",
    ext_kernel_elf="attempt(lambda: pyxrt.ext.kernel(t.c, t.f, 'MLIR_AIE'))[0]",
    full_run="t.done(t.erun(t.full('full')))",
    full_call="k = t.full('full')\na, b = t.wide(t.ea), t.wide(t.eb)\nr = k(a, b)\ns = r.wait()\n"
    "b.sync(FROM)\n(s, bytes(b.map()[:16]))",
    full_again="r = t.erun(t.full('full'))\nx = t.done(r)\na, b = t.wide(t.ea), t.wide(t.eb)\n"
    "r.set_arg(1, b)\ny = t.done(r)\nr.set_arg(0, b)\nr.set_arg(1, a)\nr.start()\nr.wait()\n"
    "a.sync(FROM)\n(x, y, bytes(a.map()[:16]))",
    full_wait2="r = t.erun(t.full('full'))\nr.start()\nr.wait2()",
    full_eight="bs = [t.wide(t.ea) for _ in range(8)]\nr = t.erun(t.full('many'), 0, *bs)\nr.start()\n"
    "r.wait()\nbs[1].sync(FROM)\nbytes(bs[1].map()[:8])",
    full_set_past="attempt(lambda: pyxrt.run(t.full('full')).set_arg(2, t.ea))",
    full_set_busy="r = t.erun(t.full('slow'))\n"
    "t.early(lambda: t.begun(r), lambda r: attempt(lambda: r.set_arg(0, t.ea)))",
    full_twice="r = t.erun(t.full('slow'))\nt.early(lambda: t.begun(r), lambda r: attempt(r.start))",
    full_fail="r = t.erun(t.full('fail'))\nr.start()\n(r.wait(), r.state())",
    full_fail2="r = t.erun(t.full('fail'))\nr.start()\nx = attempt(r.wait2)\n(x[0], x[1].splitlines()[0])",
    full_too_many="k = t.full('full')\na, b = t.wide(t.ea), t.wide(t.eb)\nk(a, b).wait()",
    full_sub="a, b = t.wide(t.ea), pyxrt.ext.bo(t.d, 16384)\nd = pyxrt.bo(b, 8192, 8192)\n"
    "r = t.erun(t.full('full'), 0, a, d)\nr.start()\nr.wait()\nb.sync(FROM)\n"
    "bytes(b.map()[8192:8208])",
    full_instances="c = pyxrt.hw_context(t.d, t.elf('two'))\n"
    "[t.done(t.erun(pyxrt.ext.kernel(c, n))) for n in ('main:seq', 'main:turn', 'more')]",
    full_scratchpad="r = t.erun(t.full('scratch'))\np = r.get_ctrl_scratchpad_bo()\n"
    "p.map()[:8] = bytes([3, 0, 0, 0, 0x78, 0x56, 0x34, 0x12])\np.sync(TO)\n"
    "x = t.done(r)\n(p.size(), bytes(r.get_ctrl_scratchpad_bo().map()[:8]), x)",
    full_no_scratchpad="attempt(lambda: pyxrt.run(t.full('full')).get_ctrl_scratchpad_bo())",
    full_whole="t.done(t.erun(t.full('whole')))",
    full_packets="t.done(t.erun(t.full('packets')))",
    full_list="k = t.full('full')\nrs = [t.erun(k) for _ in range(3)]\nc = pyxrt.runlist(t.fc)\n"
    "k = pyxrt.ext.kernel(t.fc, 'main')\nrs = [t.erun(k) for _ in range(3)]\n"
    "[c.add(r) for r in rs]\nc.execute()\nc.wait()\nt.kept[-1].sync(FROM)\n"
    "([r.state() for r in rs], bytes(t.kept[-1].map()[:16]))",
    full_list_again="k = pyxrt.ext.kernel(t.fc, 'main')\nr = t.erun(k)\nc = pyxrt.runlist(t.fc)\n"
    "c.add(r)\n[(c.execute(), c.wait()) for _ in range(3)]\n"
    "a, b = t.wide(t.ea), t.wide(t.eb)\nr.set_arg(1, b)\nc.execute()\nc.wait()\n"
    "b.sync(FROM)\nbytes(b.map()[:16])",
    part_run="r = t.erun(pyxrt.ext.kernel(t.c, t.p, 'MLIR_AIE'), 3)\nr.set_arg(0, 3)\nt.done(r)",
    part_call="k = pyxrt.ext.kernel(t.c, t.p, 'MLIR_AIE')\na, b = t.wide(t.ea), t.wide(t.eb)\n"
    "r = k(3, None, 0, a, b)\ns = r.wait()\nb.sync(FROM)\n(s, bytes(b.map()[:16]))",
    part_zeros="k = pyxrt.ext.kernel(t.c, t.p, 'MLIR_AIE')\na, b = t.wide(t.ea), t.wide(t.eb)\n"
    "r = k(3, 0, 0, a, b)\ns = r.wait()\nb.sync(FROM)\n(s, bytes(b.map()[:16]))",
    part_set_past="attempt(lambda: pyxrt.run(pyxrt.ext.kernel(t.c, t.p, 'MLIR_AIE')).set_arg(8, t.ea))",
    part_beside_plain="k = pyxrt.ext.kernel(t.c, t.p, 'MLIR_AIE')\na, b = t.wide(t.ea), t.wide(t.eb)\n"
    "(k(3, 0, 0, a, b).wait(), t.call('copy').wait())",
    pre_run="k = pyxrt.ext.kernel(t.c, pyxrt.module(t.elf('pre')), 'MLIR_AIE')\nr = t.erun(k, 3)\n"
    "r.set_arg(0, 3)\nt.done(r)",
    pre_two="k = pyxrt.ext.kernel(t.c, pyxrt.module(t.elf('pre')), 'MLIR_AIE')\n"
    "[t.done(t.erun(k, 3)) for _ in range(2)]",
    part_list="k = pyxrt.ext.kernel(t.c, t.p, 'MLIR_AIE')\nl = pyxrt.runlist(t.c)\n"
    "[l.add(t.erun(k, 3)) for _ in range(2)]\nl.execute()\nl.wait()\nt.kept[-1].sync(FROM)\n"
    "bytes(t.kept[-1].map()[:16])",
)
