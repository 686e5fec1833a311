/* The runner's own process. It shares memory with the guest: raw system calls only, no errno, no malloc. */
#include "guest/runner_body.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

#include "common/confine.h"
#include "common/sys.h"
#include "guest/clone.h"
#include "guest/guest.h"
#include "guest/spawn.h"

static uint64_t clock_ns(void)
{
    struct timespec now;

    sys(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void tell(struct runner *runner, enum report_kind kind)
{
    struct report report = {.runner = runner, .kind = kind};

    sys(SYS_write, runner->tell, &report, sizeof report);
}

static int child(void *argument)
{
    struct runner *runner = argument;
    long result = runner->memory_tasks < 0 ? 0 : sys(SYS_write, runner->memory_tasks, "0", 1);

    if (result < 0) {
        spawn_complain(runner->spawn.descriptors[2], "join the memory cgroup", (int)-result);
        return NOT_EXECUTABLE;
    }
    return spawn_become(&runner->spawn, &runner->end.starved);
}

void runner_deliver(struct runner *runner)
{
    int main = atomic_load(&runner->main);
    unsigned long long signals = main > 0 ? atomic_exchange(&runner->pending, 0) : 0;

    for (int number = 1; signals != 0; number++, signals >>= 1) {
        /* The group is the program's own from its first instruction on; before that there is only the process. */
        if ((signals & 1) && sys(SYS_kill, -main, number) < 0)
            sys(SYS_kill, main, number);
    }
}

/* Closes the descriptors from `first` on that the program has. Each is forgotten before it is closed: a runner that is killed between the two leaves it
 * open, never closed twice. */
static void close_some(struct runner *runner, int first, int end)
{
    for (int i = first; i < end; i++) {
        int fd = runner->spawn.descriptors[i];

        runner->spawn.descriptors[i] = -1;
        if (fd >= 0 && runner->spawn.close_after[i])
            sys(SYS_close, fd);
    }
}

static int clone_child(struct runner *runner)
{
    const unsigned long flags = CLONE_VM | CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD;
    const uint32_t *key = runner->confinement != NULL ? runner->confinement->key : NULL;

    if (runner->cgroup < 0)
        return (int)clone_call(flags, runner->child_stack, (int *)&runner->main, child, runner);
    return (int)clone_into(runner->cgroup, key, flags, runner->child_stack, (int *)&runner->main, child, runner);
}

/* The program's pid, or -errno. Returns when it has been executed, or has failed to. */
static int start(struct runner *runner)
{
    struct spawn *spawn = &runner->spawn;
    size_t variables = 0;
    int pid;

    runner->taken = true;
    while (spawn->environment[variables] != NULL)
        variables++;
    pid = clone_child(runner);
    spawn->environment[variables] = NULL; /* what was added to it was on the program's stack */
    close_some(runner, 0, 1);
    close_some(runner, 3, SPAWN_DESCRIPTORS);
    return pid;
}

/* The next child that has ended, 0 with WNOHANG if there is none yet, or -errno. A program may make us its tracer (PTRACE_TRACEME): then what would be its signals
 * are told to us as well, and are no end. We let go of it, with its signal; but for the trap that tells tracers of an exec. */
static long reap(int flags, int *status, struct rusage *usage)
{
    for (;;) {
        long pid = sys(SYS_wait4, -1, status, flags | __WALL, usage);

        if (pid <= 0 || !WIFSTOPPED(*status))
            return pid;
        sys(SYS_ptrace, PTRACE_DETACH, pid, 0, WSTOPSIG(*status) == SIGTRAP ? 0 : WSTOPSIG(*status));
    }
}

/* Reaps all that is dead. True if something lives. */
static bool something_lives(void)
{
    int status;
    long pid;

    while ((pid = reap(WNOHANG, &status, NULL)) > 0)
        ;
    return pid == 0;
}

/* Its outputs stay open in us while it runs, so that their end does not wake the guest just before the program's does. They are closed
 * after that was told: by then the runner may have been given the next program, so it remembers them by itself. */
struct outputs {
    int fd[2];
};

static struct outputs take_outputs(struct runner *runner)
{
    struct outputs outputs = {{-1, -1}};

    for (int i = 0; i < 2; i++) {
        if (runner->spawn.close_after[i + 1])
            outputs.fd[i] = runner->spawn.descriptors[i + 1];
        runner->spawn.descriptors[i + 1] = -1;
    }
    return outputs;
}

static void close_outputs(const struct outputs *outputs)
{
    for (int i = 0; i < 2; i++) {
        if (outputs->fd[i] >= 0)
            sys(SYS_close, outputs->fd[i]);
    }
}

/* Waits for the program's end; what it left is reaped as it dies. */
static void attend(struct runner *runner, int main, uint64_t began_ns)
{
    struct program_end *end = &runner->end;
    struct outputs outputs;
    struct rusage own = {0};
    bool left;
    int status;

    while (reap(0, &end->status, &end->usage) != main)
        ;
    end->duration_ns = clock_ns() - began_ns;
    sys(SYS_getrusage, RUSAGE_SELF, &own);
    end->inherited_kib = own.ru_maxrss;
    left = end->left_running = something_lives();
    atomic_store(&runner->main, 0);
    outputs = take_outputs(runner);
    if (left) {
        tell(runner, REPORT_LEFT);
        close_outputs(&outputs);
        while (reap(0, &status, NULL) != -ECHILD)
            ;
    }
    atomic_store(&runner->turn, RUNNER_IDLE);
    tell(runner, left ? REPORT_EMPTIED : REPORT_ENDED);
    if (!left)
        close_outputs(&outputs);
}

static void serve(struct runner *runner)
{
    uint64_t began_ns = clock_ns();
    int main = start(runner);

    if (main < 0) {
        close_some(runner, 1, 3);
        runner->end = (struct program_end){.error = -main};
        atomic_store(&runner->turn, RUNNER_IDLE);
        tell(runner, REPORT_ENDED);
        return;
    }
    runner_deliver(runner);
    if (runner->tell_started)
        tell(runner, REPORT_STARTED);
    attend(runner, main, began_ns);
}

/* What is forgotten before it is closed is never closed twice. */
static void close_left(int *left)
{
    for (int i = 0; left != NULL && i < ROOTS_LEFT; i++) {
        int fd = left[i];

        left[i] = -1;
        if (fd >= 0)
            sys(SYS_close, fd);
    }
}

static int prepare(const struct runner *runner)
{
    long result;

    sys(SYS_umask, 022);
    sys(SYS_prlimit64, 0, RLIMIT_NOFILE, runner->descriptors, NULL);
    if ((result = sys(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) < 0)
        return (int)result;
    if (runner->confinement != NULL && (result = confine_self(runner->confinement)) < 0)
        return (int)result;
    /* Credentials may have changed: the memory, which is the guest's, stays closed; and the runner's own end with the guest's is asked for anew. */
    sys(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
    return (int)sys(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
}

int runner_body(void *argument)
{
    struct runner *runner = argument;
    int result;

    close_left(runner->left);
    result = prepare(runner);

    if (result < 0) {
        runner->end = (struct program_end){.error = -result};
        tell(runner, REPORT_BROKEN);
        return 1;
    }
    for (;;) {
        unsigned turn = atomic_load(&runner->turn);

        if (turn == RUNNER_IDLE)
            sys(SYS_futex, &runner->turn, FUTEX_WAIT_PRIVATE, RUNNER_IDLE, NULL, NULL, 0);
        else if (turn == RUNNER_QUIT)
            return 0;
        else
            serve(runner);
    }
}
