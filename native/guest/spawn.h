/* Starting a program, as a process between fork and exec that shares the guest's memory: raw system calls only. */
#ifndef EXCISE_GUEST_SPAWN_H
#define EXCISE_GUEST_SPAWN_H

#include "guest/runner.h"

enum { NOT_FOUND = 127, NOT_EXECUTABLE = 126 };

/* Becomes the program; returns the exit code of a process that could not, having said why on its stderr. `*starved` is set if that was for want of memory. */
int spawn_become(const struct spawn *spawn, bool *starved);

/* "excise: what: why" on `fd`. */
void spawn_complain(int fd, const char *what, int error);

#endif
