/* clone() on a stack of its own, without libc: it touches no errno, so that a process that shares memory may call it. */
#ifndef EXCISE_GUEST_CLONE_H
#define EXCISE_GUEST_CLONE_H

#include <sys/syscall.h>

/* Runs call(argument) in a new process, on the stack that ends at `stack` (16-byte aligned), and ends it with what that returns.
 * The new process's id, put also into `*pid` before it runs, or -errno. */
static inline long clone_call(unsigned long flags, void *stack, int *pid, int (*call)(void *), void *argument)
{
    void **top = (void **)stack - 2;
    long result;

    top[0] = (void *)call;
    top[1] = argument;
#if defined(__x86_64__)
    register long r10 __asm__("r10") = 0;
    register long r8 __asm__("r8") = 0;

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
                     : "a"((long)SYS_clone), "D"(flags), "S"(top), "d"(pid), "r"(r10), "r"(r8), [exit] "i"(SYS_exit_group)
                     : "rcx", "r11", "memory", "cc");
#else
    register long x8 __asm__("x8") = SYS_clone;
    register long x0 __asm__("x0") = (long)flags;
    register long x1 __asm__("x1") = (long)top;
    register long x2 __asm__("x2") = (long)pid;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = 0;

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
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), [exit] "i"(SYS_exit_group)
                     : "memory", "cc");
    result = x0;
#endif
    return result;
}

#endif
