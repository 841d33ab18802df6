"""The amdxdna driver's behaviour over the NPU model: what ``drivers/accel/amdxdna`` of Linux 7.3 does.

:class:`~amdxdna.emu.driver.device.EmuDriver` is one device; :meth:`open` gives a
:class:`~amdxdna.emu.driver.objects.Client`, whose :meth:`ioctl` behaves as the kernel's. Front ends sit
on top (``amdxdna.emu.node`` for this process): they own mmap, and tell the client what is mapped where.
Nothing here assumes that the client is this process: its memory is reached through a process id.

Floors, each of which imports only those before it: errors, minors, clocks; huge, store, timeline; bo,
ranges; memory; heap; objects (the device's records); packet; answers; hwctx; gem, jobs, queries, power,
drm; teardown; table (ioctl number to handler); device (the watchdog on top).
"""
