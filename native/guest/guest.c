#include "guest/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fields.h"
#include "common/sys.h"

enum {
    HIGH_DESCRIPTOR = 16,
    AGAIN_NS = 2000000,
    /* Our saved user id, and that of runners and workers; what they execute has its own. Limits may be set, and memory be looked at, only by one whose user
     * is all three of the other's: so the sandbox's root cannot take away our descriptors or our time. Where only one user is mapped, the filter refuses it. */
    NOBODYS_USER = 65535,
};

void guest_exit(struct guest *guest, int status)
{
    /* The first process of a sandbox takes all others with it. */
    if (!guest->config->pid1)
        kill_all_now(guest->proc);
    _exit(status);
}

int pipe_open(int ends[2], int ours)
{
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    if (fcntl(ends[ours], F_SETFL, O_NONBLOCK) < 0) {
        int error = errno;

        close(ends[0]);
        close(ends[1]);
        return -error;
    }
    return 0;
}

static void answer_hello(struct guest *guest)
{
    char payload[64];
    size_t used = 0;

    fields_put_number(payload, sizeof payload, &used, TAG_VERSION, WIRE_VERSION);
    fields_put_number(payload, sizeof payload, &used, TAG_ABILITIES, guest->config->shell >= 0 ? ABILITY_OPAQUE_SHELL : 0);
    guest->link.greeted = true;
    link_send(guest, WIRE_HELLO, 0, 0, payload, used);
}

/* Every process of the life before is dead. */
static void begin_life(struct guest *guest)
{
    kill_cancel(guest, &guest->reset);
    if (!roots_ready(guest))
        return;
    runners_forget(guest);
    request_free(&guest->former);
    if (guest->config->machine != NULL)
        link_wipe(guest); /* its memory may be saved, for those who were not told what this life was told */
    guest->resetting = false;
    answer_hello(guest);
    link_flush(guest); /* the host goes on while the first runner is made */
    runner_prepare(guest, guest->roots.left);
}

/* Collects the dead, and lets none of ours stand still. */
static void reap(struct guest *guest)
{
    for (;;) {
        siginfo_t child = {0};
        struct rusage usage;
        int status;

        if (waitid(P_ALL, 0, &child, WEXITED | WSTOPPED | WNOHANG | WNOWAIT | __WALL) < 0) {
            if (errno == ECHILD && guest->resetting)
                begin_life(guest);
            return;
        }
        if (child.si_pid == 0)
            return;
        if (child.si_code == CLD_STOPPED || child.si_code == CLD_TRAPPED) {
            waitid(P_PID, (id_t)child.si_pid, &child, WSTOPPED | WNOHANG | __WALL);
            if (!guest->freeze.on && (runner_is(guest, child.si_pid) || worker_is(guest, child.si_pid)))
                kill(child.si_pid, SIGCONT);
        } else if (wait4(child.si_pid, &status, __WALL, &usage) == child.si_pid && !worker_died(guest, child.si_pid, status, &usage)) {
            runner_died(guest, child.si_pid);
        }
    }
}

void guest_dead(struct guest *guest)
{
    if (guest->resetting)
        reap(guest);
}

static void child_changed(struct guest *guest, struct watch *watch, uint32_t events)
{
    struct signalfd_siginfo signals[8];

    (void)events;
    (void)!read(watch->fd, signals, sizeof signals);
    reap(guest);
}

static void reset_again(struct guest *guest, struct kill *kill)
{
    reap(guest);
    if (!guest->resetting)
        return;
    kill_begin(guest, kill, getpid(), NULL, 0, reset_again);
    timer_set(guest, &kill->again, now_ns() + AGAIN_NS);
}

/* Ends a life: nothing of it is heard any more, and all its processes die. */
static void end_life(struct guest *guest)
{
    guest->resetting = true;
    freeze_end(guest);
    runners_ignore(guest);
    if (guest->config->pid1)
        kill(-1, SIGKILL); /* at once, and no fork can escape it */
    sessions_forget(guest);
    actions_forget(guest);
    link_forget(guest);
    kill_begin(guest, &guest->reset, getpid(), NULL, 0, reset_again);
    reap(guest);
}

static int take_defaults(struct guest *guest, const char *payload, size_t length)
{
    static const struct defaults none;
    struct defaults *defaults = &guest->defaults;
    int result;

    guest->former = defaults->request; /* programs that are being started still use it */
    *defaults = none;
    if ((result = request_parse(&defaults->request, &none, payload, length)) < 0)
        return result;
    defaults->environment = defaults->request.environment;
    while (defaults->environment[defaults->environment_count] != NULL)
        defaults->environment_count++;
    defaults->cwd = defaults->request.cwd;
    defaults->user = defaults->request.user;
    return 0;
}

void guest_greet(struct guest *guest, uint32_t epoch, uint8_t flags, const char *payload, size_t length)
{
    bool again = guest->link.greeted;

    if (again && epoch == guest->link.epoch)
        link_broken(guest, "a second greeting of one life");
    guest->link.epoch = epoch;
    if (take_defaults(guest, payload, length) < 0)
        link_broken(guest, "a malformed greeting");
    guest->roots.wanted = flags & WIRE_FLAG_ROOT;
    if (guest->roots.wanted && (!again || guest->config->talk < 0))
        link_broken(guest, "a root that nobody offers");
    if (again)
        end_life(guest);
    else
        answer_hello(guest);
}

/* Programs start with what they inherit from here: no signal blocked by habit, none ignored, descriptors 0 to 2 taken. */
static int prepare_process(const struct guest_config *config)
{
    const uint64_t by_default[8] = {0}; /* SIG_DFL, and no flags */
    sigset_t all;

    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return -errno;
    (void)!setresuid((uid_t)-1, (uid_t)-1, NOBODYS_USER);
    if (!config->pid1 && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        return -errno;
    /* By the kernel's own call: libc keeps two numbers to itself, which whoever started us may have ignored. */
    for (int number = 1; number <= 64; number++)
        sys(SYS_rt_sigaction, number, by_default, NULL, sizeof(uint64_t));
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    umask(022);
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return -EBADF;
    }
    return 0;
}

/* All actions in flight have three pipes and more; programs keep the limit they would have had. */
static void raise_descriptors(struct guest *guest)
{
    struct rlimit more;

    if (getrlimit(RLIMIT_NOFILE, &guest->descriptors) < 0)
        return;
    more = guest->descriptors;
    more.rlim_cur = more.rlim_max < DESCRIPTORS_MAX ? more.rlim_max : DESCRIPTORS_MAX;
    setrlimit(RLIMIT_NOFILE, &more);
}

static int open_proc(const struct guest_config *config)
{
    /* One that was handed down is inherited: programs must not have it. */
    int fd = config->proc >= 0 ? fcntl(config->proc, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR) : open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    if (config->proc >= 0)
        close(config->proc);
    return fd;
}

static int open_all(struct guest *guest)
{
    sigset_t children;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC), result;

    if (null < 0 || (guest->null = fcntl(null, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)) < 0)
        return -errno;
    close(null);
    if ((guest->proc = open_proc(guest->config)) < 0)
        return guest->proc;
    if ((result = loop_open(&guest->loop)) < 0 || (result = runners_open(guest)) < 0)
        return result;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    guest->children = (struct watch){.fd = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK), .ready = child_changed};
    if (guest->children.fd < 0)
        return -errno;
    if ((result = watch_set(guest, &guest->children, EPOLLIN)) < 0)
        return result;
    if ((result = roots_open(guest)) < 0)
        return result;
    return link_open(guest);
}

int guest_main(const struct guest_config *config)
{
    struct guest *guest = calloc(1, sizeof *guest);
    int result = guest == NULL ? -ENOMEM : prepare_process(config);

    if (result == 0) {
        guest->config = config;
        raise_descriptors(guest);
        result = open_all(guest);
    }
    if (result < 0)
        return 1;
    for (;;) {
        loop_turn(guest);
        link_flush(guest);
        actions_bury(guest);
        if (guest->link.held)
            link_serve(guest);
    }
}
