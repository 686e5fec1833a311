/* Who traces a process keeps it from going: its zombie waits for the tracer, and one that is told of its tracee's end (PTRACE_O_TRACEEXIT) holds it before that, SIGKILL or not. */
#include "guest/internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* 0: nobody. The line is among the first, and a name before it can hold no newline. */
static int tracer_of(int tasks, const char *thread)
{
    static const char field[] = "\nTracerPid:\t";
    char path[64], text[512], *found;
    ssize_t got;
    int fd;

    snprintf(path, sizeof path, "%.20s/status", thread);
    if ((fd = openat(tasks, path, O_RDONLY | O_CLOEXEC)) < 0)
        return 0;
    got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return 0;
    text[got] = 0;
    found = strstr(text, field);
    return found == NULL ? 0 : atoi(found + sizeof field - 1);
}

static bool contains(const struct pids *pids, int pid)
{
    for (size_t i = 0; i < pids->count; i++) {
        if (pids->pid[i] == pid)
            return true;
    }
    return false;
}

static void append(struct pids *pids, int pid)
{
    int *more = realloc(pids->pid, (pids->count + 1) * sizeof *more);

    if (more == NULL)
        return; /* the next look finds it again */
    pids->pid = more;
    pids->pid[pids->count++] = pid;
}

/* A program may make its runner its tracer (PTRACE_TRACEME): that one lets go of it. */
static bool is_stranger(const struct guest *guest, const struct pids *pids, int tracer)
{
    return tracer > 0 && tracer != getpid() && !runner_is(guest, tracer) && !contains(pids, tracer);
}

static bool held(const struct guest *guest, struct pids *pids, int pid, bool add)
{
    char path[32], entries[2048];
    bool any = false;
    long got;
    int tasks;

    snprintf(path, sizeof path, "%d/task", pid);
    if ((tasks = openat(guest->proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return false;
    while ((got = syscall(SYS_getdents64, tasks, entries, sizeof entries)) > 0) {
        for (long at = 0; at < got;) {
            const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
            int tracer = entry->d_name[0] == '.' ? 0 : tracer_of(tasks, entry->d_name);

            at += entry->d_reclen;
            if (!is_stranger(guest, pids, tracer))
                continue;
            any = true;
            if (add)
                append(pids, tracer);
        }
    }
    close(tasks);
    return any;
}

bool pids_held(const struct guest *guest, struct pids *pids, bool add)
{
    bool any = false;

    for (size_t i = 0; i < pids->count; i++) /* it grows by those who trace the tracers */
        any = held(guest, pids, pids->pid[i], add) || any;
    return any;
}
