/* The seccomp filter: from a verdict for each system call number to a program the kernel runs. */
#ifndef EXCISE_SECCOMP_H
#define EXCISE_SECCOMP_H

#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

/* What becomes of a call. A verdict from VERDICT_RULES on asks its arguments. */
enum verdict { VERDICT_ENOSYS, VERDICT_ALLOW, VERDICT_EPERM, VERDICT_RULES };

/* Writes the program that gives number n `verdicts[n]`, every other number ENOSYS, and every other architecture's calls death. Pure. Returns its length, or -ENOSPC. */
int seccomp_compile(const uint8_t *verdicts, size_t count, struct sock_filter *program, size_t size);

#endif
