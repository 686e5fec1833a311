/* clone() on a stack of its own, without libc: it touches no errno, so that a process that shares memory may call it. */
#ifndef EXCISE_GUEST_CLONE_H
#define EXCISE_GUEST_CLONE_H

#include <linux/sched.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "common/confine.h"

/* The call itself; in the new process, on its own stack, what lies on top of that is popped and called. Returns in the old one. */
static inline long clone_enter(long number, const long *arguments)
{
    long result;
#if defined(__x86_64__)
    register long r10 __asm__("r10") = arguments[3];
    register long r8 __asm__("r8") = arguments[4];
    register long r9 __asm__("r9") = arguments[5];

    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "pop %%rax\n\t"
                     "pop %%rdi\n\t"
                     "call *%%rax\n\t"
                     "mov %%eax, %%edi\n\t"
                     "mov %[exit], %%eax\n\t"
                     "syscall\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(result)
                     : "a"(number), "D"(arguments[0]), "S"(arguments[1]), "d"(arguments[2]), "r"(r10), "r"(r8), "r"(r9), [exit] "i"(SYS_exit_group)
                     : "rcx", "r11", "memory", "cc");
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = arguments[0];
    register long x1 __asm__("x1") = arguments[1];
    register long x2 __asm__("x2") = arguments[2];
    register long x3 __asm__("x3") = arguments[3];
    register long x4 __asm__("x4") = arguments[4];
    register long x5 __asm__("x5") = arguments[5];

    __asm__ volatile("svc 0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, 0\n\t"
                     "mov x30, 0\n\t"
                     "ldp x1, x0, [sp], 16\n\t"
                     "blr x1\n\t"
                     "mov x8, %[exit]\n\t"
                     "svc 0\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5), [exit] "i"(SYS_exit_group)
                     : "memory", "cc");
    result = x0;
#endif
    return result;
}

static inline void **clone_stack(void *stack, int (*call)(void *), void *argument)
{
    void **top = (void **)stack - 2;

    top[0] = (void *)call;
    top[1] = argument;
    return top;
}

/* Runs call(argument) in a new process, on the stack that ends at `stack` (16-byte aligned), and ends it with what that returns.
 * The new process's id, put also into `*pid` before it runs, or -errno. */
static inline long clone_call(unsigned long flags, void *stack, int *pid, int (*call)(void *), void *argument)
{
    const long arguments[6] = {(long)flags, (long)clone_stack(stack, call, argument), (long)pid};

    return clone_enter(SYS_clone, arguments);
}

/* The same in another cgroup, a v2 directory, from its first moment on. Only clone3 can: `key` is what our own filter asks of who calls it, or NULL. */
static inline long clone_into(int cgroup, const uint32_t *key, unsigned long flags, void *stack, int *pid, int (*call)(void *), void *argument)
{
    enum { ANY = 4096 }; /* a stack's length; only where it ends is used */
    char *top = (char *)clone_stack(stack, call, argument);
    const struct clone_args into = {
        .flags = (flags & ~(unsigned long)CSIGNAL) | CLONE_INTO_CGROUP,
        .parent_tid = (uint64_t)(uintptr_t)pid,
        .exit_signal = flags & CSIGNAL,
        .stack = (uint64_t)(uintptr_t)(top - ANY),
        .stack_size = ANY,
        .cgroup = (uint64_t)cgroup,
    };
    long arguments[6] = {(long)&into, sizeof into};

    for (unsigned word = 0; key && word < CONFINE_KEY_WORDS; word++)
        arguments[2 + word] = (long)key[word];
    return clone_enter(SYS_clone3, arguments);
}

#endif
