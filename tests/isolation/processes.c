/* Attempts on another process, named by its number: 1 is the guest, "parent" the guest's runner that started us, "own" a child made for the purpose, so that
 * each can be seen to succeed. */
#include "attempts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/elf.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static char target_memory[16] = "untouched";

struct target {
    pid_t pid;
    pid_t own; /* to be ended; 0: not ours */
};

static struct target aim(const char *word)
{
    struct target target = {0};

    if (strcmp(word, "parent") == 0) {
        target.pid = getppid();
    } else if (strcmp(word, "own") == 0) {
        target.pid = target.own = fork();
        if (target.pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
    } else {
        target.pid = atoi(word);
    }
    return target;
}

static int done(struct target target, long result)
{
    int error = result < 0 ? -errno : 0;

    if (target.own > 0) {
        kill(target.own, SIGKILL);
        waitpid(target.own, NULL, 0);
    }
    return error;
}

static int trace(char **words)
{
    struct target target = aim(words[0]);
    long result = ptrace(PTRACE_SEIZE, target.pid, 0, 0);

    return done(target, result);
}

static int take_descriptor(char **words)
{
    struct target target = aim(words[0]);
    int process = (int)syscall(SYS_pidfd_open, target.pid, 0);
    long result = -1;

    /* All of them: which one is the link is not known here. */
    for (int number = 0; process >= 0 && result < 0 && number < 64; number++)
        result = syscall(SYS_pidfd_getfd, process, number, 0);
    return done(target, result);
}

static int write_memory(char **words)
{
    struct target target = aim(words[0]);
    char text[] = "touched";
    struct iovec ours = {text, sizeof text}, theirs = {target_memory, sizeof text};

    return done(target, syscall(SYS_process_vm_writev, target.pid, &ours, 1, &theirs, 1, 0));
}

static int read_memory(char **words)
{
    struct target target = aim(words[0]);
    char text[8];
    struct iovec ours = {text, sizeof text}, theirs = {target_memory, sizeof text};

    return done(target, syscall(SYS_process_vm_readv, target.pid, &ours, 1, &theirs, 1, 0));
}

/* /proc/PID/<part>: opened and read, or, if it is a link or a directory, looked into. */
static int look(char **words)
{
    struct target target = aim(words[0]);
    char path[64], text[64];
    long result;
    int file;

    snprintf(path, sizeof path, "/proc/%d/%s", target.pid, words[1]);
    if (strcmp(words[1], "mem") == 0)
        file = open(path, O_RDWR);
    else
        file = open(path, O_RDONLY);
    if (file < 0)
        return done(target, -1);
    if (strcmp(words[1], "mem") == 0)
        result = pwrite(file, "touched", 8, (off_t)(uintptr_t)target_memory);
    else if (strcmp(words[1], "fd") == 0 || strcmp(words[1], "root") == 0 || strcmp(words[1], "cwd") == 0)
        result = syscall(SYS_getdents64, file, (char[4096]){0}, 4096);
    else
        result = read(file, text, sizeof text);
    if (result == 0) { /* nothing of it is shown */
        errno = ENODATA;
        result = -1;
    }
    return done(target, result);
}

static int signal_it(char **words)
{
    struct target target = aim(words[0]);
    long result = kill(target.pid, atoi(words[1]));

    if (result == 0 && target.own > 0 && waitpid(target.own, NULL, 0) == target.own)
        target.own = 0;
    /* PID 1's signals from inside are dropped in silence: it lives if it still answers to 0. */
    if (result == 0 && target.pid == 1 && kill(1, 0) == 0) {
        errno = EPERM;
        result = -1;
    }
    return done(target, result);
}

/* A tracer turns a harmless call of its child into one that the filter refuses. */
#if defined(__x86_64__)
static int change_call(char **words)
{
    struct user_regs_struct registers;
    pid_t child = fork();
    int status;

    (void)words;
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        _exit(syscall(SYS_getpriority, 0x10000000 /* CLONE_NEWUSER, once it is unshare */, 0) == 0 ? 0 : errno);
    }
    waitpid(child, &status, 0);
    for (;;) {
        if (ptrace(PTRACE_SYSCALL, child, 0, 0) < 0 || waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status))
            break;
        ptrace(PTRACE_GETREGS, child, 0, &registers);
        if (registers.orig_rax == SYS_getpriority) {
            registers.orig_rax = SYS_unshare;
            ptrace(PTRACE_SETREGS, child, 0, &registers);
        }
    }
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -ECHILD;
}

static int old_call(char **words)
{
    long result = 20; /* getpid, by the numbers of a 32-bit program */

    (void)words;
    __asm__ volatile("int $0x80" : "+a"(result) : : "memory");
    return result > 0 ? 0 : (int)result;
}
#endif

/* Types into the input of the terminal on descriptor 0, as if its user had. */
static int type(char **words)
{
    return ioctl(0, TIOCSTI, words[0]) < 0 ? -errno : 0;
}

const struct attempt process_attempts[] = {
    {"ptrace", 1, trace}, {"pidfd_getfd", 1, take_descriptor}, {"process_vm_writev", 1, write_memory},
    {"process_vm_readv", 1, read_memory}, {"look", 2, look}, {"kill", 2, signal_it}, {"type", 1, type},
#if defined(__x86_64__)
    {"change_call", 0, change_call}, {"int80", 0, old_call},
#endif
};
const size_t process_attempt_count = sizeof process_attempts / sizeof *process_attempts;
