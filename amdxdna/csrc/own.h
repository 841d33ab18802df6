#ifndef AMDXDNA_OWN_H
#define AMDXDNA_OWN_H

#include <stddef.h>
#include <stdint.h>

enum { OWN_WINDOW = 4096 };

/* Copies `length` <= OWN_WINDOW bytes between `local` and an address of this process that may be bad: 0, -EFAULT,
 * or -ENOSYS when it must be done another way. `out`: to `remote`. */
int own_copy(uintptr_t remote, void *local, size_t length, int out);

#endif
