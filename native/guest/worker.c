/* Actions that are a function: a process forked from the guest, with the sandbox user's rights, that reads and writes files. */
#include "guest/internal.h"

#include <errno.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/confine.h"

/* The worker's descriptors 0, 1, 2, and our ends of them; -1: none. */
struct worker_ends {
    int theirs[3], ours[3];
};

/* In the worker. 0 or -errno. */
static int take_rights(const struct guest *guest, const struct request *request, const struct worker_ends *ends)
{
    const char *user = request->user != NULL ? request->user : guest->defaults.user, *what;
    struct identity identity;
    int result = 0;

    if (guest->config->memory_tasks >= 0 && write(guest->config->memory_tasks, "0", 1) < 0)
        return -errno;
    if (guest->config->confinement != NULL)
        result = confine_self(guest->config->confinement);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (result < 0)
        return result;
    if (user != NULL && identity_find(user, &identity, &what) < 0)
        return -EINVAL;
    if (user != NULL && (result = identity_take(&identity)) < 0)
        return result;
    for (int i = 0; i < 3; i++) {
        if (dup2(ends->theirs[i], i) < 0)
            return -errno;
    }
    /* A kernel without it: all of ours are lower. */
    if (syscall(SYS_close_range, 3, ~0U, 0) < 0) {
        for (int fd = 3; fd < DESCRIPTORS_MAX; fd++)
            close(fd);
    }
    setrlimit(RLIMIT_NOFILE, &guest->descriptors);
    return 0;
}

static int enter(const struct guest *guest, const struct request *request)
{
    const char *directory = guest->defaults.cwd, *path = request->file.path;

    if (chdir(directory == NULL || *directory == 0 ? "/" : directory) < 0 && path != NULL && *path != '/')
        return -errno;
    return 0;
}

static void work(const struct guest *guest, const struct request *request, const struct worker_ends *ends)
{
    sigset_t none;
    int result;

    setsid();
    if ((result = take_rights(guest, request, ends)) < 0 || (result = enter(guest, request)) < 0)
        _exit(-result);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    _exit(file_action(&request->file));
}

static void connected(struct guest *guest, struct watch *watch, uint32_t events)
{
    struct action *action = (struct action *)((char *)watch - offsetof(struct action, connected));
    char byte;
    ssize_t got = read(watch->fd, &byte, 1);

    (void)events;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got == 1)
        link_send(guest, WIRE_STARTED, 0, action->id, NULL, 0);
    watch_close(guest, watch);
    outputs_listen(guest, action);
}

static int open_end(struct worker_ends *ends, int number)
{
    int pipe[2], our_end = number == 0 ? 1 : 0, result = pipe_open(pipe, our_end);

    if (result < 0)
        return result;
    ends->ours[number] = pipe[our_end];
    ends->theirs[number] = pipe[!our_end];
    return 0;
}

/* A connection says on its descriptor 2 that it stands; others have begun when they are forked. */
static int open_ends(struct worker_ends *ends, const struct request *request)
{
    int result = request->flags & WIRE_FLAG_STDIN ? open_end(ends, 0) : 0;

    if (result == 0)
        result = open_end(ends, 1);
    if (result == 0 && request->file.operation == FILE_CONNECT && (request->flags & WIRE_FLAG_STARTED))
        result = open_end(ends, 2);
    return result;
}

/* As fork, which knows no cgroups. */
static int fork_into(int cgroup)
{
    const struct clone_args into = {.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (uint64_t)cgroup};
    int pid = cgroup < 0 ? fork() : (int)syscall(SYS_clone3, &into, sizeof into);

    return pid < 0 ? -errno : pid;
}

static int file_begin(struct guest *guest, struct action *action)
{
    const struct request *request = &action->request;
    struct worker_ends ends = {.theirs = {guest->null, guest->null, guest->null}, .ours = {-1, -1, -1}};
    int pid = open_ends(&ends, request);

    action->began_ns = now_ns();
    if (pid == 0 && (pid = fork_into(guest->config->cgroup)) == 0)
        work(guest, request, &ends);
    for (int i = 0; i < 3; i++) {
        if (ends.theirs[i] != guest->null)
            close(ends.theirs[i]);
    }
    /* Ours are closed with the action, also if it was not started. */
    output_attach(&action->output[0], ends.ours[1]);
    if (ends.ours[0] >= 0)
        input_open(guest, &action->input, ends.ours[0]);
    action->connected = (struct watch){.fd = ends.ours[2], .ready = connected};
    if (pid < 0)
        return pid;
    action->worker = pid;
    if (ends.ours[2] >= 0)
        return watch_set(guest, &action->connected, EPOLLIN);
    if (request->flags & WIRE_FLAG_STARTED)
        link_send(guest, WIRE_STARTED, 0, action->id, NULL, 0);
    outputs_listen_later(guest, action);
    return 0;
}

static void file_kill(struct guest *guest, struct action *action)
{
    (void)guest;
    if (action->worker > 0)
        kill(action->worker, SIGKILL);
}

static void file_signal(struct guest *guest, struct action *action, int number)
{
    (void)guest;
    (void)action;
    (void)number; /* there is no program to send it to */
}

static void file_resize(struct guest *guest, struct action *action, uint32_t rows, uint32_t columns)
{
    (void)guest;
    (void)action;
    (void)rows;
    (void)columns;
}

const struct action_kind file_kind = {.begin = file_begin, .kill = file_kill, .signal = file_signal, .resize = file_resize};

static struct action *find_worker(const struct guest *guest, int pid)
{
    for (size_t i = 0; i < ACTION_BUCKETS; i++) {
        for (struct action *action = guest->actions[i]; action != NULL; action = action->next) {
            if (action->worker == pid)
                return action;
        }
    }
    return NULL;
}

bool worker_is(const struct guest *guest, int pid)
{
    return find_worker(guest, pid) != NULL;
}

bool worker_died(struct guest *guest, int pid, int status, const struct rusage *usage)
{
    struct action *action = find_worker(guest, pid);
    struct wire_ended record = {0};

    if (action == NULL)
        return false;
    action->worker = 0;
    record.guest_ns = now_ns() - action->began_ns;
    usage_record(&record, status, usage, 0);
    if (record.end == END_EXITED) {
        record.error = record.exit_code;
        record.exit_code = 0;
    }
    /* A worker that was connected and gone at once has said so before it ended. */
    if (action->connected.fd >= 0)
        connected(guest, &action->connected, EPOLLIN);
    action_ended(guest, action, &record, true);
    return true;
}

size_t workers_list(const struct guest *guest, struct spare *spare, size_t size)
{
    size_t count = 0;

    for (size_t i = 0; i < ACTION_BUCKETS; i++) {
        for (const struct action *action = guest->actions[i]; action != NULL && count < size; action = action->next) {
            if (action->worker > 0)
                spare[count++] = (struct spare){.pid = action->worker, .below = true};
        }
    }
    return count;
}
