/* Which processes are below one. The kernel keeps children by thread, so every thread of every process is asked. */
#include "guest/internal.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

struct found {
    struct pids pids;
    size_t room;
    const struct spare *spare;
    size_t spared;
    int signal; /* 0: none */
};

static const struct spare *find_spare(const struct spare *spare, size_t spared, int pid)
{
    for (size_t i = 0; i < spared; i++) {
        if (spare[i].pid == pid)
            return &spare[i];
    }
    return NULL;
}

static void add(struct found *found, int pid)
{
    if (found->pids.count == found->room) {
        size_t room = found->room == 0 ? 64 : 2 * found->room;
        int *more = realloc(found->pids.pid, room * sizeof *more);

        if (more == NULL)
            return; /* the next look, after those found are dead, sees it */
        found->pids.pid = more;
        found->room = room;
    }
    found->pids.pid[found->pids.count++] = pid;
    /* At once, before anything else is looked at: one that forks and ends has done so a moment later, and is not here any more. */
    if (found->signal != 0 && find_spare(found->spare, found->spared, pid) == NULL)
        kill(pid, found->signal);
}

/* Adds the numbers in a file of them; one cut in two by the end of the buffer is put together. */
static void add_numbers(struct found *found, int fd)
{
    char buffer[4096];
    int number = 0;
    bool in_number = false;
    ssize_t got;

    while ((got = read(fd, buffer, sizeof buffer)) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            if (isdigit((unsigned char)buffer[i])) {
                number = number * 10 + (buffer[i] - '0');
                in_number = true;
            } else if (in_number) {
                add(found, number);
                number = 0;
                in_number = false;
            }
        }
    }
    if (in_number)
        add(found, number);
}

static void add_children(struct found *found, int proc, int pid)
{
    char path[64], entries[2048];
    long got;
    int tasks;

    snprintf(path, sizeof path, "%d/task", pid);
    if ((tasks = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return;
    while ((got = syscall(SYS_getdents64, tasks, entries, sizeof entries)) > 0) {
        for (long at = 0; at < got;) {
            const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
            int children;

            at += entry->d_reclen;
            snprintf(path, sizeof path, "%.20s/children", entry->d_name);
            if (entry->d_name[0] == '.' || (children = openat(tasks, path, O_RDONLY | O_CLOEXEC)) < 0)
                continue;
            add_numbers(found, children);
            close(children);
        }
    }
    close(tasks);
}

/* All of it: then it has no children any more, and asking it for them costs ten times what this does. */
static bool has_ended(int pid)
{
    struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    bool ended = end.fd >= 0 && poll(&end, 1, 0) == 1;

    if (end.fd >= 0)
        close(end.fd);
    return ended;
}

struct pids pids_below(int proc, int root, const struct spare *spare, size_t spared, int signal)
{
    struct found found = {.spare = spare, .spared = spared, .signal = signal};
    struct pids kept;
    size_t seen = 0;

    add_children(&found, proc, root);
    /* The list is also the queue; one that is spared stays in it, for what is below it, as its negative. */
    for (; seen < found.pids.count; seen++) {
        int pid = found.pids.pid[seen];
        const struct spare *one = find_spare(spare, spared, pid);

        if (one != NULL)
            found.pids.pid[seen] = -pid;
        if ((one == NULL || !one->below) && !has_ended(pid))
            add_children(&found, proc, pid);
    }
    kept = (struct pids){.pid = found.pids.pid};
    for (size_t i = 0; i < found.pids.count; i++) {
        if (found.pids.pid[i] > 0)
            kept.pid[kept.count++] = found.pids.pid[i];
    }
    return kept;
}
