#ifndef AMDXDNA_OWN_H
#define AMDXDNA_OWN_H

#include <stddef.h>
#include <stdint.h>

enum { OWN_MOST = 16384 };

/* Copies `length` <= OWN_MOST bytes between `local` and an address of this process that may be bad: 0, -EFAULT
 * (to a part of the range, some bytes may have been written), or -ENOSYS when it must be done another way.
 * `out`: to `remote`. */
int own_copy(uintptr_t remote, void *local, size_t length, int out);

#endif
