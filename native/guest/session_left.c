/* What a session's commands left running. */
#include "guest/session.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The usual case, at a glance: the runner's only child is the shell, which has none. */
static bool is_alone(const struct shell *shell)
{
    char only[16], seen[16];
    int length = snprintf(only, sizeof only, "%d ", shell->pid);

    return pread(shell->children[1], seen, sizeof seen, 0) == 0 && pread(shell->children[0], seen, sizeof seen, 0) == length &&
           memcmp(seen, only, (size_t)length) == 0;
}

static bool is_dead(int pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd end = {.fd = fd, .events = POLLIN};
    bool dead = fd < 0 || poll(&end, 1, 0) > 0;

    if (fd >= 0)
        close(fd);
    return dead;
}

static struct pids session_left(struct guest *guest, const struct session *session)
{
    const struct shell *shell = session->shell;
    const struct spare itself = {.pid = shell->pid};
    struct pids left = {0};
    size_t living = 0;

    if (shell_left_nothing(shell) || is_alone(shell))
        return left;
    left = pids_below(guest->proc, runner_pid(shell->runner), &itself, 1, 0);
    for (size_t i = 0; i < left.count; i++) {
        if (!is_dead(left.pid[i])) /* a job that ended and was not waited for is no process that still runs */
            left.pid[living++] = left.pid[i];
    }
    left.count = living;
    return left;
}

static bool is_earlier(const struct session *session, int pid)
{
    for (size_t i = 0; i < session->earlier_count; i++) {
        if (session->earlier[i].pid == pid)
            return true;
    }
    return false;
}

bool session_remember_left(struct guest *guest, struct session *session)
{
    struct pids left = session_left(guest, session);
    struct spare *earlier = left.count == 0 ? NULL : calloc(left.count, sizeof *earlier);
    bool own = false;

    for (size_t i = 0; i < left.count; i++)
        own |= !is_earlier(session, left.pid[i]);
    for (size_t i = 0; earlier != NULL && i < left.count; i++)
        earlier[i] = (struct spare){.pid = left.pid[i], .below = true};
    free(session->earlier);
    session->earlier = earlier;
    session->earlier_count = earlier == NULL ? 0 : left.count;
    free(left.pid);
    return own;
}
