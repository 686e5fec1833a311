#include "launch/child.h"

#include "common/confine.h"
#include "guest/guest.h"
#include "launch/cgroup.h"
#include "launch/net.h"
#include "launch/packets.h"
#include "launch/plan.h"
#include "launch/reroot.h"
#include "launch/root.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEAST_FILES = 64 };

struct child {
    const struct child_start *start;
    struct root root;
    int clones[PACKET_DESCRIPTORS];
    size_t clone_count;
    int listener;
    int memory_events;
    int memory_tasks;
    int pids_events;
    int cgroup;
    struct failure failure;
};

static int compare(const void *left, const void *right)
{
    return *(const int *)left - *(const int *)right;
}

/* Closes all but the standard descriptors and these, of which some may be -1. */
static int close_all_but(int *kept, size_t count)
{
    unsigned from = STDERR_FILENO + 1;

    qsort(kept, count, sizeof *kept, compare);
    for (size_t index = 0; index < count; index++) {
        if (kept[index] < (int)from)
            continue;
        if (kept[index] > (int)from && close_range(from, (unsigned)kept[index] - 1, 0))
            return -errno;
        from = (unsigned)kept[index] + 1;
    }
    return close_range(from, ~0u, 0) ? -errno : 0;
}

/* First of all: a fork holds the ends of other sandboxes' connections and keeps them open. */
static int forget_the_launcher(struct child *child)
{
    const struct child_start *start = child->start;
    const struct cgroups *groups = start->cgroups;
    int kept[4 + 2 * PLAN_CGROUPS];
    size_t count = 0;
    sigset_t none;
    int error;

    kept[count++] = start->talk;
    kept[count++] = start->launcher;
    kept[count++] = start->plan->link;
    kept[count++] = start->plan->shell;
    for (unsigned index = 0; index < groups->count; index++) {
        kept[count++] = groups->list[index].directory;
        kept[count++] = groups->list[index].tasks;
    }
    error = close_all_but(kept, count);
    if (error || dup2(STDIN_FILENO, STDERR_FILENO) < 0)
        return fail(&child->failure, error ? -error : errno, "close the launcher's descriptors");
    umask(0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    return 0;
}

static int await(struct child *child, char expected)
{
    char message;
    ssize_t length;

    child->clone_count = PACKET_DESCRIPTORS;
    length = packet_receive(child->start->talk, &message, sizeof message, child->clones, &child->clone_count, true);
    if (length == 1 && message == expected)
        return 0;
    if (length == 0)
        _exit(EXIT_FAILURE); /* the launcher gave up, and knows why */
    return fail(&child->failure, length < 0 ? (int)-length : EPROTO, "hear from the launcher");
}

static int await_users(struct child *child)
{
    return await(child, CHILD_MAPPED);
}

static int await_mounts(struct child *child)
{
    size_t expected = child->start->plan->lower_count + child->start->plan->bind_count + 1 + child->start->has_upper;
    int error = await(child, CHILD_MOUNTS);

    if (!error && child->clone_count != expected)
        error = fail(&child->failure, EPROTO, "get the mounts from the launcher");
    return error;
}

static int become_root(struct child *child)
{
    if (setresgid(0, 0, 0) || (child->start->users > 1 && setgroups(0, NULL)) || setresuid(0, 0, 0))
        return fail(&child->failure, errno, "become the sandbox's root");
    /* Our memory belongs to the launcher's user namespace: from here on nobody in the sandbox may look at it. */
    if (prctl(PR_SET_DUMPABLE, 0))
        return fail(&child->failure, errno, "protect the guest's memory");
    return 0;
}

/* After the last change of credentials, which would cancel it. Had the launcher died before, nobody would tell us: so look. */
static int die_with_the_launcher(struct child *child)
{
    struct pollfd launcher = {.fd = child->start->launcher, .events = POLLIN};

    if (prctl(PR_SET_PDEATHSIG, SIGKILL))
        return fail(&child->failure, errno, "be told of the launcher's end");
    if (poll(&launcher, 1, 0) != 0)
        _exit(EXIT_FAILURE);
    close(child->start->launcher);
    return 0;
}

static int join_cgroups(struct child *child)
{
    int error = cgroups_join(child->start->cgroups);

    if (error)
        return fail(&child->failure, -error, "join the cgroups");
    child->memory_tasks = cgroups_memory_tasks(child->start->cgroups);
    child->memory_events = cgroups_memory_events(child->start->cgroups);
    child->pids_events = cgroups_pids_events(child->start->cgroups);
    child->cgroup = cgroups_unified(child->start->cgroups);
    return 0;
}

/* Here and not in clone3: the network's, the dearest by far, is made while the launcher prepares the mounts, and those of two sandboxes at once. */
static int own_namespaces(struct child *child)
{
    /* Who makes processes in another v2 group must see both groups from its namespace: that is the launcher's, whose root is above them. */
    int cgroups = child->cgroup < 0 ? CLONE_NEWCGROUP : 0;

    if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | cgroups))
        return fail(&child->failure, errno, "make namespaces");
    return 0;
}

static int name_and_network(struct child *child)
{
    const struct plan *plan = child->start->plan;
    const char *name = plan->hostname ? plan->hostname : "sandbox";
    int error;

    if (sethostname(name, strlen(name)))
        return fail(&child->failure, errno, "set the host's name");
    error = net_loopback_up(&child->failure);
    if (!error && plan->listen_port) {
        child->listener = net_listen(plan->listen_port, &child->failure);
        error = child->listener < 0 ? child->listener : 0;
    }
    return error;
}

static bool over_layers(const struct plan *plan)
{
    for (size_t index = 0; index < plan->lower_count; index++)
        if (!plan->lowers[index].path)
            return true;
    return false;
}

static int build_root(struct child *child)
{
    child->root = (struct root){
        .plan = child->start->plan,
        .clones = child->clones,
        .lower_count = child->start->plan->lower_count,
        .has_upper = child->start->has_upper,
        .over_layers = over_layers(child->start->plan),
        .scratch = -1,
        .users = child->start->users,
        .host_root = child->start->host_root,
    };
    return root_build(&child->root, &child->failure);
}

static int enter_root(struct child *child)
{
    return root_enter(&child->failure);
}

static int mount_devices(struct child *child)
{
    return root_devices(&child->root, &child->failure);
}

static int mount_kernel(struct child *child)
{
    return root_kernel(&child->root, &child->failure);
}

static int mount_scratch(struct child *child)
{
    return root_scratch(&child->root, &child->failure);
}

static int mount_binds(struct child *child)
{
    return root_binds(&child->root, &child->failure);
}

static int make_directories(struct child *child)
{
    return root_directories(&child->root, &child->failure);
}

/* The same in every sandbox, whatever the client's own were; a hard limit cannot be raised and stays. */
static int set_limits(struct child *child)
{
    static const struct {
        __rlimit_resource_t resource;
        rlim_t wanted;
    } LIMITS[] = {
        {RLIMIT_AS, RLIM_INFINITY},    {RLIMIT_CPU, RLIM_INFINITY},   {RLIMIT_DATA, RLIM_INFINITY}, {RLIMIT_FSIZE, RLIM_INFINITY},
        {RLIMIT_NPROC, RLIM_INFINITY}, {RLIMIT_STACK, 8 * 1024 * 1024}, {RLIMIT_NOFILE, 1048576},
    };
    const struct rlimit no_core = {0, 0};
    struct rlimit limit = {0};
    int error = setrlimit(RLIMIT_CORE, &no_core);

    for (size_t index = 0; !error && index < sizeof LIMITS / sizeof *LIMITS; index++) {
        error = getrlimit(LIMITS[index].resource, &limit);
        limit.rlim_cur = limit.rlim_max < LIMITS[index].wanted ? limit.rlim_max : LIMITS[index].wanted;
        error = error || setrlimit(LIMITS[index].resource, &limit);
    }
    if (error)
        return fail(&child->failure, errno, "set limits");
    /* Else the guest would fail where it can tell nobody why. */
    if (limit.rlim_max < LEAST_FILES)
        return fail(&child->failure, EMFILE, "open what a guest needs: raise `ulimit -n` to %d", LEAST_FILES);
    umask(022);
    return 0;
}

/* PID 1 keeps its own capabilities, and loses the way to hand on more than a program may have. */
static int bound_capabilities(struct child *child)
{
    int error = confine_bounding_set(child->start->confinement->capabilities);

    return error ? fail(&child->failure, -error, "drop capabilities from the bounding set") : 0;
}

/* Nothing is left open of what the root was built from, nor of the host's /dev. */
static int keep_only_its_own(struct child *child)
{
    const struct child_start *start = child->start;
    int kept[] = {
        start->talk,          start->plan->link,   start->plan->shell, child->listener,     child->memory_events,
        child->memory_tasks, child->pids_events,  child->cgroup,      child->root.scratch,
    };
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int error;

    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++)
        if (null < 0 || dup2(null, descriptor) < 0)
            return fail(&child->failure, errno, "open /dev/null");
    error = close_all_but(kept, sizeof kept / sizeof *kept);
    return error ? fail(&child->failure, -error, "close what the root was built from") : 0;
}

static int (*const SEQUENCE[])(struct child *) = {
    forget_the_launcher,
    await_users,
    become_root,
    die_with_the_launcher,
    join_cgroups,
    own_namespaces,
    name_and_network,
    await_mounts,
    build_root,
    enter_root,
    mount_devices,
    mount_kernel,
    mount_scratch,
    mount_binds,
    make_directories,
    set_limits,
    bound_capabilities,
    keep_only_its_own,
};

static int report(struct child *child)
{
    int error = packet_send(child->start->talk, &child->failure, sizeof child->failure, &child->listener, child->listener >= 0 ? 1 : 0);

    if (child->listener >= 0)
        close(child->listener);
    return error;
}

_Noreturn void child_main(const struct child_start *start)
{
    struct child child = {.start = start, .listener = -1, .memory_events = -1, .memory_tasks = -1, .pids_events = -1, .cgroup = -1};
    struct confinement confinement = *start->confinement;
    struct reroot reroot = {.talk = start->talk, .root = &child.root};
    struct guest_config config;
    int error = 0;

    for (size_t step = 0; !error && step < sizeof SEQUENCE / sizeof *SEQUENCE; step++)
        error = SEQUENCE[step](&child);
    if (report(&child) || error)
        _exit(EXIT_FAILURE);
    if (!start->has_upper)
        close(start->talk);
    confinement.no_new_privileges = !start->plan->privileges;
    config = (struct guest_config){
        .link_in = start->plan->link,
        .link_out = start->plan->link,
        .memory_events = child.memory_events,
        .memory_tasks = child.memory_tasks,
        .pids_events = child.pids_events,
        .cgroup = child.cgroup,
        .proc = -1,
        .shell = start->plan->shell,
        .disk_limited = true,
        .pid1 = true,
        .confinement = &confinement,
        .talk = start->has_upper ? start->talk : -1,
        .roots = &reroot_calls,
        .roots_state = &reroot,
    };
    _exit(guest_main(&config));
}
