#include "launch/sandbox.h"

#include "launch/child.h"
#include "launch/clones.h"
#include "launch/home.h"
#include "launch/launcher.h"
#include "launch/packets.h"
#include "launch/plan.h"
#include "launch/sandbox_parts.h"
#include "launch/uppers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

_Static_assert(PLAN_LOWERS + PLAN_BINDS + 3 <= PACKET_DESCRIPTORS, "all mounts fit into one message");

/* clone3 as a fork: the child goes on with a copy of this memory, and never executes anything. */
static pid_t fork_child(struct sandbox *sandbox)
{
    struct clone_args arguments = {
        .flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_PIDFD,
        .pidfd = (uint64_t)(uintptr_t)&sandbox->pidfd,
        .exit_signal = SIGCHLD,
    };
    long pid;

    /* What the kernel counts for each user and not in a cgroup (inotify instances, watches, namespaces) it counts for the maker of a user namespace, too. Were
     * that the host's root, one sandbox could take all that the others and the host's own root have: so its maker is its own first id. */
    if (sandbox->first_id && syscall(SYS_setresuid, -1, sandbox->first_id, -1))
        return -errno;
    pid = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (pid < 0)
        pid = -errno;
    if (pid != 0 && sandbox->first_id && syscall(SYS_setresuid, -1, 0, -1))
        abort(); /* nobody else's id may be kept */
    return (pid_t)pid;
}

/* The first id apart from the rest: an extent may not span two of the outer namespace's, where an ordinary user's own id lies apart from its subordinates. */
static int write_map(int process, const char *file, uint32_t first, uint32_t count)
{
    char text[64];
    int length = snprintf(text, sizeof text, count > 1 ? "0 %u 1\n1 %u %u\n" : "0 %u 1\n", first, first + 1, count - 1);
    CLOSES int map = openat(process, file, O_WRONLY | O_CLOEXEC);

    return map >= 0 && write(map, text, (size_t)length) == length ? 0 : -errno;
}

int sandbox_open_process(const struct sandbox *sandbox, struct failure *failure)
{
    char path[32];
    int process;

    snprintf(path, sizeof path, "/proc/%d", sandbox->pid);
    process = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return process < 0 ? fail(failure, errno, "open %s", path) : process;
}

int sandbox_hand_over(const struct launcher *launcher, const struct sandbox *sandbox, struct clones *from, int process, const void *message, size_t length,
                      struct failure *failure)
{
    int clones[PACKET_DESCRIPTORS];
    size_t count = 0;
    CLOSES int users = launcher->rootless ? -1 : openat(process, "ns/user", O_RDONLY | O_CLOEXEC);
    int error;

    if (users < 0 && !launcher->rootless)
        return fail(failure, errno, "open the sandbox's user namespace");
    from->user_namespace = users;
    error = clones_open(from, clones, &count, failure);
    if (!error && (error = packet_send(sandbox->talk, message, length, clones, count)))
        fail(failure, -error, "hand the mounts to the sandbox");
    while (count > 0)
        close_descriptor(&clones[--count]);
    return error;
}

/* Gives the child its users, then the mounts. It works on its namespaces in between. */
static int supply(struct launcher *launcher, struct sandbox *sandbox, const struct plan *plan)
{
    struct clones from = {.plan = plan, .layers = launcher->layers, .sealed = -1, .upper = -1};
    char message = CHILD_MAPPED;
    CLOSES int process = sandbox_open_process(sandbox, &sandbox->failure);
    int error;

    if (process < 0)
        return process;
    if (write_map(process, "uid_map", sandbox->first_id, launcher->users) || write_map(process, "gid_map", sandbox->first_id, launcher->users))
        return fail(&sandbox->failure, errno, "map the sandbox's users");
    error = packet_send(sandbox->talk, &message, sizeof message, NULL, 0);
    if (error)
        return fail(&sandbox->failure, -error, "talk to the sandbox");
    if (launcher->has_layers && (from.upper = sandbox->upper = upper_make(plan->disk_bytes, plan->inodes, plan->lower_count, &sandbox->failure)) < 0)
        return sandbox->upper;
    message = CHILD_MOUNTS;
    return sandbox_hand_over(launcher, sandbox, &from, process, &message, sizeof message, &sandbox->failure);
}

/* From here on runners start programs by clone3: the filter must let them, and only them. The old one is still in use by nobody: it was copied into the guests. */
static int go_home(struct launcher *launcher, const struct plan *plan, struct failure *failure)
{
    struct sock_fprog filter;
    int error = home_enter(plan->home, plan->home_controllers, failure);

    if (error)
        return error;
    if (getrandom(launcher->key, sizeof launcher->key, 0) != sizeof launcher->key)
        return fail(failure, EIO, "make a key");
    error = confine_build_filter(&filter, launcher->key);
    if (error)
        return fail(failure, -error, "build the seccomp filter");
    free(launcher->filter.filter);
    launcher->filter = filter;
    launcher->confinement.key = launcher->key;
    launcher->at_home = true;
    return 0;
}

static int begin(struct launcher *launcher, struct sandbox *sandbox, const struct plan *plan)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = sandbox};
    int talk[2];
    int error = launcher->rootless ? 0 : ids_take(&launcher->ids, &sandbox->first_id, &sandbox->failure);

    if (!error && plan->home && !launcher->at_home)
        error = go_home(launcher, plan, &sandbox->failure);
    if (!error)
        error = cgroups_make(&sandbox->cgroups, plan, sandbox->first_id, &sandbox->failure);
    if (error)
        return error;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, talk))
        return fail(&sandbox->failure, errno, "make a socket pair");
    sandbox->talk = talk[0];
    sandbox->pid = fork_child(sandbox);
    if (sandbox->pid == 0) {
        const struct child_start start = {
            .plan = plan,
            .cgroups = &sandbox->cgroups,
            .confinement = &launcher->confinement,
            .users = launcher->users,
            .host_root = launcher->host_root,
            .has_upper = launcher->has_layers,
            .launcher = launcher->self,
            .talk = talk[1],
        };

        child_main(&start);
    }
    close(talk[1]);
    if (sandbox->pid < 0) {
        error = sandbox->pid;
        sandbox->pid = 0;
        return fail(&sandbox->failure, -error, "clone a process with its own users");
    }
    cgroups_close(&sandbox->cgroups);
    if (epoll_ctl(launcher->epoll, EPOLL_CTL_ADD, sandbox->talk, &event))
        return fail(&sandbox->failure, errno, "watch the sandbox");
    return supply(launcher, sandbox, plan);
}

/* Out of the epoll set before it is closed: a fork that still holds the other sandboxes' descriptors would keep it in. */
static void stop_talking(struct launcher *launcher, struct sandbox *sandbox)
{
    if (sandbox->talk < 0)
        return;
    epoll_ctl(launcher->epoll, EPOLL_CTL_DEL, sandbox->talk, NULL);
    close(sandbox->talk);
    sandbox->talk = -1;
}

void sandbox_kill(const struct sandbox *sandbox)
{
    if (sandbox->pid > 0)
        kill(sandbox->pid, SIGKILL);
}

/* The last of a sandbox whose processes are gone. 1: a cgroup is still there. */
static int finish(struct launcher *launcher, struct sandbox **link)
{
    struct sandbox *sandbox = *link;
    int error;

    if (cgroups_remove(&sandbox->cgroups) == -EBUSY)
        return 1;
    stop_talking(launcher, sandbox);
    close_descriptor(&sandbox->pidfd);
    close_descriptor(&sandbox->upper);
    close_descriptor(&sandbox->next_upper);
    if (sandbox->first_id)
        ids_give(&launcher->ids, sandbox->first_id);
    if (sandbox->ready)
        error = replies_gone(&launcher->replies, sandbox->id);
    else
        error = replies_failed(&launcher->replies, sandbox->id, &sandbox->failure);
    *link = sandbox->next;
    free(sandbox);
    return error;
}

int sandbox_create(struct launcher *launcher, uint32_t id, struct plan *plan)
{
    struct sandbox *sandbox = calloc(1, sizeof *sandbox);
    int error;

    if (!sandbox)
        return -ENOMEM;
    *sandbox = (struct sandbox){.next = launcher->sandboxes, .id = id, .pidfd = -1, .talk = -1, .upper = -1, .next_upper = -1};
    launcher->sandboxes = sandbox;
    error = begin(launcher, sandbox, plan);
    plan_close(plan);
    if (!error)
        return 0;
    sandbox_kill(sandbox);
    cgroups_close(&sandbox->cgroups);
    /* With a child, the rest is done when that has been reaped. */
    return sandbox->pid > 0 ? 0 : finish(launcher, &launcher->sandboxes);
}

struct sandbox *sandbox_find(const struct launcher *launcher, uint32_t id)
{
    struct sandbox *sandbox = launcher->sandboxes;

    while (sandbox && sandbox->id != id)
        sandbox = sandbox->next;
    return sandbox;
}

static int hear_first(struct launcher *launcher, struct sandbox *sandbox, const struct failure *said, ssize_t length, int listener)
{
    int pidfd = sandbox->pidfd;

    if (length == sizeof *said && said->error == 0 && sandbox->failure.error == 0) {
        sandbox->ready = true;
        sandbox->pidfd = -1;
        if (!launcher->has_layers)
            stop_talking(launcher, sandbox);
        return replies_ready(&launcher->replies, sandbox->id, pidfd, listener);
    }
    stop_talking(launcher, sandbox);
    close_descriptor(&listener);
    if (sandbox->failure.error == 0 && length == sizeof *said)
        sandbox->failure = *said;
    else if (sandbox->failure.error == 0)
        fail(&sandbox->failure, ECHILD, "build the sandbox: it died");
    sandbox_kill(sandbox);
    return 0;
}

int sandbox_hear(struct launcher *launcher, struct sandbox *sandbox)
{
    struct failure said = {0};
    int listener = -1;
    size_t count = 1;
    ssize_t length = packet_receive(sandbox->talk, &said, sizeof said, &listener, &count, false);

    if (length == -EAGAIN)
        return 0;
    said.step[sizeof said.step - 1] = '\0';
    if (!sandbox->ready)
        return hear_first(launcher, sandbox, &said, length, count ? listener : -1);
    if (count)
        close(listener);
    if (length == sizeof said && sandbox->next_upper >= 0)
        return sandbox_take_root(launcher, sandbox, &said);
    /* It has ended, or says what was not asked: then it ends. */
    stop_talking(launcher, sandbox);
    sandbox_kill(sandbox);
    return 0;
}

int sandbox_close(struct launcher *launcher, uint32_t id)
{
    struct sandbox *sandbox = sandbox_find(launcher, id);

    if (!sandbox)
        return replies_gone(&launcher->replies, id);
    if (!sandbox->ready && sandbox->failure.error == 0)
        fail(&sandbox->failure, ECANCELED, "build the sandbox: it was closed");
    sandbox_kill(sandbox);
    return 0;
}

static void note_death(struct launcher *launcher, pid_t pid)
{
    for (struct sandbox *sandbox = launcher->sandboxes; sandbox; sandbox = sandbox->next) {
        if (sandbox->pid != pid)
            continue;
        sandbox->pid = 0;
        if (sandbox->talk >= 0)
            sandbox_hear(launcher, sandbox);
        if (!sandbox->ready && sandbox->failure.error == 0)
            fail(&sandbox->failure, ECHILD, "build the sandbox: it died");
        return;
    }
}

int sandbox_reap(struct launcher *launcher)
{
    struct sandbox **link = &launcher->sandboxes;
    int busy = 0;
    pid_t pid;

    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
        note_death(launcher, pid);
    while (*link) {
        struct sandbox *before = *link;
        int result = before->pid == 0 ? finish(launcher, link) : 0;

        if (result < 0)
            return result;
        busy |= result;
        if (*link == before)
            link = &before->next;
    }
    return busy;
}

void sandbox_end_all(struct launcher *launcher)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    pid_t pid;

    for (struct sandbox *sandbox = launcher->sandboxes; sandbox; sandbox = sandbox->next)
        sandbox_kill(sandbox);
    while ((pid = waitpid(-1, NULL, 0)) > 0 || errno == EINTR)
        note_death(launcher, pid);
    for (struct sandbox *sandbox = launcher->sandboxes; sandbox; sandbox = sandbox->next)
        /* The client is gone and nobody waits for us; what is still held after a second is left for gc. */
        for (int tries = 0; tries < 1000 && cgroups_remove(&sandbox->cgroups) == -EBUSY; tries++)
            nanosleep(&moment, NULL);
}
