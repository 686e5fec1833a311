/* Terminals, from the sandbox's own devpts. */
#ifndef EXCISE_GUEST_PTY_H
#define EXCISE_GUEST_PTY_H

#include <stdint.h>

/* Opens one of this size: our end, which does not block, and the program's. 0 or -errno. */
int pty_open(uint32_t rows, uint32_t columns, int *ours, int *theirs);
void pty_resize(int fd, uint32_t rows, uint32_t columns);

#endif
