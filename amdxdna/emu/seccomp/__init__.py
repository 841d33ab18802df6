"""Gives an unmodified program an emulated accel node, with real system calls and without privileges.

The program's process installs a seccomp filter whose user notifications this process answers
(:mod:`.supervisor`): calls that name the node or its sysfs entries (:mod:`.files`, :mod:`.tree`), ioctls
whose type byte is ``'d'``, and shared mappings. Everything else runs untouched. The descriptor that the
program gets is a sparse memfd (:mod:`.client`), so its mappings are ordinary ones of pages that the model
sees too.
"""
