/* The seccomp filter: from a verdict for each system call number to a program the kernel runs. */
#ifndef EXCISE_SECCOMP_H
#define EXCISE_SECCOMP_H

#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

/* What becomes of a call. VERDICT_KEY: allowed to who knows the key. A verdict from VERDICT_RULES on asks its arguments. */
enum verdict { VERDICT_ENOSYS, VERDICT_ALLOW, VERDICT_EPERM, VERDICT_KEY, VERDICT_RULES };

/* Writes the program that gives number n `verdicts[n]`, every other number ENOSYS, and every other architecture's calls death. `key` is of CONFINE_KEY_WORDS, and asked for by VERDICT_KEY alone. Pure. Returns its length, or -ENOSPC. */
int seccomp_compile(const uint8_t *verdicts, size_t count, const uint32_t *key, struct sock_filter *program, size_t size);

#endif
