#ifndef AMDXDNA_USER_COPY_H
#define AMDXDNA_USER_COPY_H

#include <stddef.h>
#include <stdint.h>

enum { USER_COPY_MOST = 16384 };

/* Copies `length` <= USER_COPY_MOST bytes between `local` and an address of this process that may be bad: 0, -EFAULT
 * (to a part of the range, some bytes may have been written), or -ENOSYS when it must be done another way.
 * `out`: to `remote`. */
int user_copy(uintptr_t remote, void *local, size_t length, int out);

#endif
