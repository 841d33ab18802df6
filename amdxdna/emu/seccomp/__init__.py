"""Gives an unmodified program an emulated accel node, with real system calls and without privileges.

The program's process installs a seccomp filter whose user notifications this process answers
(:mod:`.supervisor`): calls that name the node or its sysfs entries (:mod:`.files`, :mod:`.tree`), ioctls
whose type byte is ``'d'``, shared mappings, and what is asked of a descriptor (fstat, listings, seeks, polls,
reads and writes at a place; :mod:`.polling`). Everything else runs untouched. The descriptor that the
program gets is a sparse memfd (:mod:`.client`), so its mappings are ordinary ones of pages that the model
sees too.

What only the program can do to its own address space (showing the pages of an exported BO, or those of memory
that a user-pointer BO is made of) it is made to do through ptrace (:mod:`.call`, :mod:`.injected`).

What is different from a driver's node:

* read() on the descriptor fails with EINVAL; the driver's waits for an event that never comes (EAGAIN with
  O_NONBLOCK).
* close() returns before the device is released. Whatever the program asks next waits for that.
* A BO that is unmapped counts as mapped until an ioctl that depends on it looks.
* Memory that a user-pointer BO is made of becomes a shared mapping; what other threads write to it during
  CREATE_BO may be lost, and a later fork shares it.
* What is written to sysfs is refused.
* Memory of which a user-pointer BO would name a page twice is refused.
* Programs in 32-bit mode, programs that gain rights by being run (setuid), and programs whose calls another
  listener answers see no device. A program that somebody traces cannot export or wrap mapped memory,
  go to the device's folders (chdir), or open anything of the device with O_PATH.
"""
