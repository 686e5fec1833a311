#include "guest/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/sys.h"
#include "guest/clone.h"
#include "guest/runner_body.h"

enum { STACK_BYTES = 32 << 10 };

int runner_pid(const struct runner *runner)
{
    return runner->pid;
}

int runner_main(const struct runner *runner)
{
    return atomic_load(&((struct runner *)runner)->main);
}

void runner_signal(struct runner *runner, int number)
{
    if (number < 1 || number > 64 || runner->main_ended)
        return;
    atomic_fetch_or(&runner->pending, 1ULL << (number - 1));
    runner_deliver(runner);
}

/* Two stacks, each above a page that must not be touched: the runner's, and its children's between fork and exec. */
static int make_stacks(struct runner *runner)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), area = STACK_BYTES > page ? STACK_BYTES : page;
    char *memory = mmap(NULL, 2 * (page + area), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED)
        return -errno;
    runner->memory = memory;
    runner->memory_bytes = 2 * (page + area);
    runner->child_stack = memory + page + area;
    runner->stack = memory + 2 * (page + area);
    if (mprotect(memory + page, area, PROT_READ | PROT_WRITE) < 0 || mprotect(runner->child_stack + page, area, PROT_READ | PROT_WRITE) < 0)
        return -errno;
    return 0;
}

static void runner_free(struct runner *runner)
{
    if (runner->memory != NULL)
        munmap(runner->memory, runner->memory_bytes);
    free(runner);
}

/* A runner whose `turn` is set: it begins at once, or waits to be woken. */
static int runner_make(struct guest *guest, struct runner *runner)
{
    int result = make_stacks(runner);

    runner->tell = guest->runners.tell;
    runner->confinement = guest->config->confinement;
    runner->memory_tasks = guest->config->memory_tasks;
    runner->cgroup = guest->config->cgroup;
    runner->descriptors = &guest->descriptors;
    if (result == 0)
        result = (int)clone_call(CLONE_VM | CLONE_FILES | CLONE_PARENT_SETTID | SIGCHLD, runner->stack, &runner->pid, runner_body, runner);
    if (result < 0) {
        runner_free(runner);
        return result;
    }
    runner->next = guest->runners.all;
    guest->runners.all = runner;
    return 0;
}

/* One to begin with: it is made and confined while the host hears that the sandbox is there, and the first action finds it. */
void runner_prepare(struct guest *guest, int *left)
{
    struct runner *runner = calloc(1, sizeof *runner);

    if (runner != NULL)
        runner->left = left;
    if (runner == NULL || runner_make(guest, runner) < 0)
        return; /* the first action will say why */
    guest->runners.free = runner;
    guest->runners.free_count = 1;
}

int runner_start(struct guest *guest, const struct spawn *spawn, bool tell_started, const struct runner_owner *calls, void *owner, struct runner **started)
{
    struct runner *runner = guest->runners.free;
    bool fresh = runner == NULL;

    if (fresh && (runner = calloc(1, sizeof *runner)) == NULL)
        return -ENOMEM;
    runner->spawn = *spawn;
    runner->tell_started = tell_started;
    runner->calls = calls;
    runner->owner = owner;
    runner->place = started;
    runner->main_ended = false;
    runner->taken = false;
    runner->end = (struct program_end){0};
    atomic_store(&runner->main, 0);
    atomic_store(&runner->pending, 0);
    atomic_store(&runner->turn, RUNNER_BUSY);
    *started = runner;
    if (fresh)
        return runner_make(guest, runner);
    guest->runners.free = runner->next_free;
    guest->runners.free_count--;
    sys(SYS_futex, &runner->turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return 0;
}

/* Sandboxed code may give it a lower priority, which nobody may take back: what it starts would have that, too. */
static bool is_as_fast_as_we_are(int pid)
{
    return sched_getscheduler(pid) == sched_getscheduler(0) && getpriority(PRIO_PROCESS, (id_t)pid) == getpriority(PRIO_PROCESS, 0);
}

/* Its owner's no more: kept for another action, or ended. */
static void retire(struct guest *guest, struct runner *runner)
{
    runner->calls = NULL;
    if (guest->runners.free_count < RUNNERS_KEPT && is_as_fast_as_we_are(runner->pid)) {
        runner->next_free = guest->runners.free;
        guest->runners.free = runner;
        guest->runners.free_count++;
        return;
    }
    atomic_store(&runner->turn, RUNNER_QUIT);
    sys(SYS_futex, &runner->turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void take_report(struct guest *guest, struct runner *runner, enum report_kind kind)
{
    const struct runner_owner *calls = runner->calls;
    struct program_end end = runner->end;
    void *owner = runner->owner;

    if (calls == NULL || kind == REPORT_BROKEN)
        return; /* a broken one is heard of again when it is reaped */
    if (kind == REPORT_STARTED) {
        calls->started(guest, owner);
        return;
    }
    if (kind != REPORT_EMPTIED)
        runner->main_ended = true;
    if (kind != REPORT_LEFT)
        retire(guest, runner);
    if (kind != REPORT_EMPTIED)
        calls->ended(guest, owner, &end);
    if (kind != REPORT_LEFT)
        calls->emptied(guest, owner);
}

void runners_listen(struct guest *guest)
{
    struct report reports[16];
    ssize_t got;

    do {
        got = read(guest->runners.reports.fd, reports, sizeof reports);
        for (size_t i = 0; got > 0 && i < (size_t)got / sizeof *reports; i++)
            take_report(guest, reports[i].runner, (enum report_kind)reports[i].kind);
    } while (got == sizeof reports);
}

static void reported(struct guest *guest, struct watch *watch, uint32_t events)
{
    (void)watch;
    (void)events;
    runners_listen(guest);
}

int runners_open(struct guest *guest)
{
    int ends[2], result = pipe_open(ends, 0);

    if (result < 0)
        return result;
    guest->runners.tell = ends[1];
    guest->runners.reports = (struct watch){.fd = ends[0], .ready = reported};
    if ((result = watch_set(guest, &guest->runners.reports, EPOLLIN)) == 0)
        runner_prepare(guest, NULL);
    return result;
}

/* The end of a runner that sandboxed code killed, and of its action with it; one that had not begun is begun again by another. */
static void bury(struct guest *guest, struct runner *runner)
{
    struct program_end end = {.status = SIGKILL, .error = runner->end.error};
    const struct runner_owner *calls = runner->calls;

    if (calls != NULL && !runner->taken && end.error == 0) {
        int result = runner_start(guest, &runner->spawn, runner->tell_started, calls, runner->owner, runner->place);

        if (result == 0)
            return;
        end.error = -result;
    }
    for (int i = 0; i < SPAWN_DESCRIPTORS; i++) {
        if (runner->spawn.descriptors[i] >= 0 && runner->spawn.close_after[i])
            close(runner->spawn.descriptors[i]);
    }
    if (calls != NULL && !runner->main_ended)
        calls->ended(guest, runner->owner, &end);
    if (calls != NULL)
        calls->emptied(guest, runner->owner);
}

/* Everything that fell to the guest when runners were killed is dead: now nothing uses their memory. */
static void orphans_dead(struct guest *guest, struct kill *kill)
{
    struct runner *broken = guest->runners.broken;

    (void)kill;
    guest->runners.broken = NULL;
    while (broken != NULL) {
        struct runner *runner = broken;

        broken = runner->next;
        bury(guest, runner);
        runner_free(runner);
    }
}

size_t runners_list(const struct guest *guest, struct spare *spare, size_t size, bool below)
{
    size_t count = 0;

    for (const struct runner *runner = guest->runners.all; runner != NULL && count < size; runner = runner->next)
        spare[count++] = (struct spare){.pid = runner->pid, .below = below};
    return count;
}

/* What is ours below us, and must live. Asked before each look, since new ones may have been made. */
static void spare_our_own(struct guest *guest, struct kill *kill)
{
    struct spare spare[RUNNERS_MAX + ACTIONS_MAX];
    size_t count = runners_list(guest, spare, RUNNERS_MAX, true);

    count += workers_list(guest, spare + count, ACTIONS_MAX);
    kill_spare(kill, spare, count);
}

static void leave_free(struct runners *runners, struct runner *runner)
{
    struct runner **at = &runners->free;

    while (*at != NULL && *at != runner)
        at = &(*at)->next_free;
    if (*at == NULL)
        return;
    *at = runner->next_free;
    runners->free_count--;
}

bool runner_died(struct guest *guest, int pid)
{
    struct runner **at, *runner;

    runners_listen(guest); /* what it said before its death */
    at = &guest->runners.all;
    while (*at != NULL && (*at)->pid != pid)
        at = &(*at)->next;
    if (*at == NULL)
        return false;
    runner = *at;
    *at = runner->next;
    if (atomic_load(&runner->turn) == RUNNER_QUIT) {
        runner_free(runner);
        return true;
    }
    leave_free(&guest->runners, runner);
    runner->next = guest->runners.broken;
    guest->runners.broken = runner;
    if (guest->resetting)
        return true;
    guest->runners.orphans.refresh = spare_our_own;
    kill_begin(guest, &guest->runners.orphans, getpid(), NULL, 0, orphans_dead);
    return true;
}

bool runner_is(const struct guest *guest, int pid)
{
    const struct runner *runner = guest->runners.all;

    while (runner != NULL && runner->pid != pid)
        runner = runner->next;
    return runner != NULL;
}

bool runners_idle(const struct guest *guest)
{
    unsigned idle = guest->runners.free_count;

    for (const struct runner *runner = guest->runners.all; runner != NULL; runner = runner->next) {
        /* One that was told to quit does nothing else any more. */
        if (atomic_load(&((struct runner *)runner)->turn) != RUNNER_QUIT && idle-- == 0)
            return false;
    }
    return guest->runners.broken == NULL;
}

void runners_ignore(struct guest *guest)
{
    for (struct runner *runner = guest->runners.all; runner != NULL; runner = runner->next)
        runner->calls = NULL;
    for (struct runner *runner = guest->runners.broken; runner != NULL; runner = runner->next)
        runner->calls = NULL;
    kill_cancel(guest, &guest->runners.orphans);
}

void runners_forget(struct guest *guest)
{
    struct runner *lists[] = {guest->runners.all, guest->runners.broken};

    for (size_t i = 0; i < 2; i++) {
        while (lists[i] != NULL) {
            struct runner *next = lists[i]->next;

            runner_free(lists[i]);
            lists[i] = next;
        }
    }
    guest->runners.all = guest->runners.free = guest->runners.broken = NULL;
    guest->runners.free_count = 0;
}
