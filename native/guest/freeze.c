/* Everything in the sandbox stands still while its files are copied: stopped by a signal, since an ordinary user has no freezer. Who handles SIGCONT sees it. */
#include "guest/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOOK_AGAIN_NS = 1000000, LOOKS = 2 };

/* As /proc/PID/stat has it: R runs, S sleeps, T is stopped, t is traced and stopped, D waits in the kernel, Z is dead. '\0': it is gone. */
static char state_at(int directory, const char *path)
{
    char text[512];
    const char *end;
    ssize_t got;
    int file;

    if ((file = openat(directory, path, O_RDONLY | O_CLOEXEC)) < 0)
        return '\0';
    got = read(file, text, sizeof text - 1);
    close(file);
    if (got <= 0)
        return '\0';
    text[got] = '\0';
    end = strrchr(text, ')'); /* a name may hold anything */
    return end != NULL && end[1] == ' ' ? end[2] : '\0';
}

static char state_of(const struct guest *guest, int pid)
{
    char path[32];

    snprintf(path, sizeof path, "%d/stat", pid);
    return state_at(guest->proc, path);
}

/* Every thread is asked: the first may stand still, or have ended, while another is not yet back from a long write. */
static bool stands_still(const struct guest *guest, int pid)
{
    char path[64], entries[2048];
    bool still = true;
    long got;
    int tasks;

    snprintf(path, sizeof path, "%d/task", pid);
    if ((tasks = openat(guest->proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return true; /* it is gone */
    while (still && (got = syscall(SYS_getdents64, tasks, entries, sizeof entries)) > 0) {
        for (long at = 0; still && at < got;) {
            const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
            char state;

            at += entry->d_reclen;
            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%.20s/stat", entry->d_name);
            state = state_at(tasks, path);
            still = state != 'R' && state != 'S';
        }
    }
    close(tasks);
    return still;
}

static bool is_stopped(char state)
{
    return state == 'T' || state == 't';
}

/* One who waits in the kernel (for its child of a vfork to execute something) runs no code of its own, and will not while that child stands still. */
static bool all_stand_still(const struct guest *guest)
{
    struct pids all = pids_below(guest->proc, getpid(), NULL, 0, 0);
    bool still = true;

    for (size_t i = 0; still && i < all.count; i++)
        still = stands_still(guest, all.pid[i]);
    free(all.pid);
    return still;
}

static void look(struct guest *guest, struct timer *timer)
{
    struct freeze *freeze = &guest->freeze;

    freeze->looks = all_stand_still(guest) ? freeze->looks + 1 : 0;
    if (freeze->looks == LOOKS) {
        link_send(guest, WIRE_FROZEN, 0, freeze->id, NULL, 0);
        return;
    }
    if (freeze->looks == 0)
        kill(-1, SIGSTOP); /* one was continued by another before that stood still, or began since */
    timer_set(guest, timer, now_ns() + LOOK_AGAIN_NS);
}

void freeze_begin(struct guest *guest, uint32_t id)
{
    struct freeze *freeze = &guest->freeze;

    if (freeze->on || !guest->config->pid1)
        link_broken(guest, "a sandbox that cannot be frozen, or is");
    *freeze = (struct freeze){.on = true, .id = id, .again = {.expired = look}};
    freeze->before = pids_below(guest->proc, getpid(), NULL, 0, 0);
    for (size_t i = 0; i < freeze->before.count; i++) {
        if (!is_stopped(state_of(guest, freeze->before.pid[i])))
            freeze->before.pid[i] = 0;
    }
    kill(-1, SIGSTOP);
    look(guest, &freeze->again);
}

static bool was_stopped(const struct freeze *freeze, int pid)
{
    for (size_t i = 0; i < freeze->before.count; i++) {
        if (freeze->before.pid[i] == pid)
            return true;
    }
    return false;
}

void freeze_end(struct guest *guest)
{
    struct freeze *freeze = &guest->freeze;
    struct pids all;

    if (!freeze->on)
        return;
    timer_clear(guest, &freeze->again);
    all = pids_below(guest->proc, getpid(), NULL, 0, 0);
    /* Children first: then nobody sees one of his stand still. */
    for (size_t i = all.count; i > 0; i--) {
        if (!was_stopped(freeze, all.pid[i - 1]))
            kill(all.pid[i - 1], SIGCONT);
    }
    free(all.pid);
    free(freeze->before.pid);
    *freeze = (struct freeze){0};
}
