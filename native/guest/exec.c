/* Actions that are a program: its pipes or terminal, and a runner for it. */
#include "guest/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/pty.h"

enum { ROWS = 24, COLUMNS = 80 };

/* Our ends of a program's streams. */
struct ends {
    int input, output[2];
};

static void close_all(const int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

static int open_terminal(const struct request *request, struct spawn *spawn, struct ends *ends)
{
    int theirs, result = pty_open(request->rows ? request->rows : ROWS, request->columns ? request->columns : COLUMNS, &ends->output[0], &theirs);

    if (result < 0)
        return result;
    spawn->terminal = true;
    spawn->close_after[1] = true; /* not the first: kept until the program's end, lest one that closes it be hung up on */
    for (int i = 0; i < 3; i++)
        spawn->descriptors[i] = theirs;
    /* A copy: what reads and what writes are watched by themselves. */
    ends->input = fcntl(ends->output[0], F_DUPFD_CLOEXEC, 3);
    return ends->input < 0 ? -errno : 0;
}

static int open_pipe(struct spawn *spawn, int number, int *ours)
{
    int pipe[2], our_end = number == 0 ? 1 : 0, result = pipe_open(pipe, our_end);

    if (result < 0)
        return result;
    *ours = pipe[our_end];
    spawn->descriptors[number] = pipe[!our_end];
    spawn->close_after[number] = true;
    return 0;
}

static int open_streams(struct guest *guest, const struct request *request, struct spawn *spawn, struct ends *ends)
{
    int result = 0;

    if (request->flags & WIRE_FLAG_PTY)
        return open_terminal(request, spawn, ends);
    if (request->flags & WIRE_FLAG_STDIN)
        result = open_pipe(spawn, 0, &ends->input);
    else
        spawn->descriptors[0] = guest->null;
    if (result == 0)
        result = open_pipe(spawn, 1, &ends->output[0]);
    if (result < 0)
        return result;
    if (!(request->flags & WIRE_FLAG_MERGE))
        return open_pipe(spawn, 2, &ends->output[1]);
    spawn->descriptors[2] = spawn->descriptors[1];
    return 0;
}

static void started(struct guest *guest, void *owner)
{
    struct action *action = owner;

    link_send(guest, WIRE_STARTED, 0, action->id, NULL, 0);
    outputs_listen(guest, action);
}

void usage_record(struct wire_ended *record, int status, const struct rusage *usage, long inherited_kib)
{
    uint64_t micros = (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000 + (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);

    record->flags |= ENDED_HAS_USAGE;
    record->cpu_ns = micros * 1000;
    if (usage->ru_maxrss > inherited_kib)
        record->max_rss_bytes = (uint64_t)usage->ru_maxrss * 1024;
    if (WIFSIGNALED(status)) {
        record->end = END_SIGNALED;
        record->signal = WTERMSIG(status);
    } else {
        record->end = END_EXITED;
        record->flags |= ENDED_HAS_CODE;
        record->exit_code = WEXITSTATUS(status);
    }
}

static void ended(struct guest *guest, void *owner, const struct program_end *end)
{
    struct action *action = owner;
    struct wire_ended record = {.guest_ns = end->duration_ns};

    if (!end->left_running)
        action->runner = NULL;
    if (end->error != 0) {
        action_failed(guest, action, end->error);
        return;
    }
    usage_record(&record, end->status, &end->usage, end->inherited_kib);
    if (end->starved && limits_refused(guest->config, ENOMEM) >= 0) {
        record.end = END_OUT_OF_MEMORY;
        record.flags &= (uint8_t)~ENDED_HAS_CODE;
    }
    action_ended(guest, action, &record, !end->left_running);
}

static void emptied(struct guest *guest, void *owner)
{
    struct action *action = owner;

    action->runner = NULL;
    action_empty(guest, action);
}

static const struct runner_owner owner_calls = {.started = started, .ended = ended, .emptied = emptied};

void spawn_place(const struct guest *guest, const struct request *request, struct spawn *spawn)
{
    spawn->user = request->user != NULL ? request->user : guest->defaults.user;
    spawn->directory = guest->defaults.cwd;
    spawn->relative = request->cwd;
    if (request->cwd != NULL && request->cwd[0] == '/') {
        spawn->directory = request->cwd;
        spawn->relative = NULL;
    }
}

static int exec_begin(struct guest *guest, struct action *action)
{
    const struct request *request = &action->request;
    struct spawn spawn = {.program = -1, .argv = request->argv, .environment = request->environment};
    struct ends ends = {.input = -1, .output = {-1, -1}};
    int result;

    memset(spawn.descriptors, -1, sizeof spawn.descriptors);
    spawn_place(guest, request, &spawn);
    result = open_streams(guest, request, &spawn, &ends);
    if (result == 0)
        result = runner_start(guest, &spawn, (request->flags & WIRE_FLAG_STARTED) != 0, &owner_calls, action, &action->runner);
    if (result < 0) {
        int ours[] = {ends.input, ends.output[0], ends.output[1]};

        close_all(ours, 3);
        for (int i = 0; i < 3; i++) {
            if (spawn.close_after[i])
                close(spawn.descriptors[i]);
        }
        return result;
    }
    for (int i = 0; i < 2; i++) {
        if (ends.output[i] >= 0)
            output_attach(&action->output[i], ends.output[i]);
    }
    if (!(request->flags & WIRE_FLAG_STARTED)) /* else nothing may come before that is told */
        outputs_listen_later(guest, action);
    if (ends.input >= 0)
        input_open(guest, &action->input, ends.input);
    return 0;
}

/* It may have another runner by now, or none. */
static void find_runner(struct guest *guest, struct kill *kill)
{
    const struct action *action = (struct action *)((char *)kill - offsetof(struct action, kill));

    (void)guest;
    kill->root = action->runner == NULL ? 0 : runner_pid(action->runner);
}

/* Until the runner says that it is empty, which ends the action: the program may be about to be started, or one may slip through. */
static void exec_kill(struct guest *guest, struct action *action)
{
    if (action->runner == NULL)
        return;
    action->kill.refresh = find_runner;
    kill_begin(guest, &action->kill, runner_pid(action->runner), NULL, 0, NULL);
}

static void exec_signal(struct guest *guest, struct action *action, int number)
{
    (void)guest;
    if (action->runner != NULL)
        runner_signal(action->runner, number);
}

static void exec_resize(struct guest *guest, struct action *action, uint32_t rows, uint32_t columns)
{
    (void)guest;
    if ((action->request.flags & WIRE_FLAG_PTY) && action->output[0].watch.fd >= 0)
        pty_resize(action->output[0].watch.fd, rows, columns);
}

const struct action_kind exec_kind = {.begin = exec_begin, .kill = exec_kill, .signal = exec_signal, .resize = exec_resize};
