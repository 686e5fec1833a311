/* excise-launch [DIRECTORY]: makes namespace sandboxes for the client at the other end of descriptor 0 (launch/request.h), until that is closed.
 * DIRECTORY, /run/excise or /tmp/excise-UID unless said otherwise, is where its own mounts go; they are seen by nobody else. */
#include "common/confine.h"
#include "launch/launcher.h"
#include "launch/outer.h"
#include "launch/place.h"
#include "launch/sandbox.h"
#include "launch/serve.h"
#include "launch/uppers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RANGES_DIRECTORY "/run/excise"

/* Descriptors 0 and 1 become /dev/null, for every child too. 2 stays, for what a sanitizer may have to say. */
static int take_control(int *control, struct failure *failure)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    *control = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (*control < 0 || null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0)
        return fail(failure, errno, "take the socket from descriptor 0");
    if (null > STDERR_FILENO)
        close(null);
    return 0;
}

static bool has_capability(unsigned capability)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct held[_LINUX_CAPABILITY_U32S_3] = {0};

    return syscall(SYS_capget, &header, held) == 0 && (held[CAP_TO_INDEX(capability)].effective & CAP_TO_MASK(capability)) != 0;
}

static int enter_as_root(struct launcher *launcher, struct failure *failure)
{
    launcher->users = IDS_EACH;
    if (mkdir(RANGES_DIRECTORY, 0700) && errno != EEXIST)
        return fail(failure, errno, "make " RANGES_DIRECTORY);
    if (ids_open(&launcher->ids, RANGES_DIRECTORY "/ids", failure))
        return -failure->error;
    /* It takes on a sandbox's id while it clones (launch/sandbox.c), and needs its capabilities then as ever. */
    if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP))
        return fail(failure, errno, "keep capabilities");
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
        return fail(failure, errno, "make a mount namespace");
    return 0;
}

static int enter(struct launcher *launcher, const char *directory, char *why, size_t why_size, struct failure *failure)
{
    char fallback[64];
    int error;

    launcher->rootless = geteuid() != 0 || !has_capability(CAP_SYS_ADMIN);
    launcher->host_root = geteuid() == 0 && launcher->rootless;
    snprintf(fallback, sizeof fallback, launcher->rootless ? "/tmp/excise-%u" : RANGES_DIRECTORY, geteuid());
    error = launcher->rootless ? outer_enter(&launcher->users, why, why_size, failure) : enter_as_root(launcher, failure);
    if (!error)
        error = place_prepare(directory ? directory : fallback, launcher->rootless, failure);
    if (error)
        return error;
    launcher->has_layers = uppers_work();
    launcher->confinement.capabilities = confine_default_capabilities();
    error = confine_build_filter(&launcher->filter, NULL);
    if (error)
        return fail(failure, -error, "build the seccomp filter");
    launcher->confinement.filter = &launcher->filter;
    launcher->self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    launcher->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (launcher->self < 0 || launcher->epoll < 0)
        return fail(failure, errno, "watch for events");
    return 0;
}

/* Two for each sandbox that lives, and one for each layer. */
static void raise_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    static struct launcher launcher;
    struct failure failure = {0};
    char why[128] = "";
    int control, error = take_control(&control, &failure);

    if (error) {
        fprintf(stderr, "excise-launch: %s\n", failure.step);
        return EXIT_FAILURE;
    }
    /* The client's terminal is not ours: its Ctrl-C is the client's to answer. */
    setsid();
    signal(SIGPIPE, SIG_IGN);
    replies_open(&launcher.replies, control);
    if (enter(&launcher, argc > 1 ? argv[1] : NULL, why, sizeof why, &failure)) {
        replies_failed(&launcher.replies, 0, &failure);
        return EXIT_FAILURE;
    }
    raise_descriptors();
    error = replies_hello(&launcher.replies, &(struct hello){launcher.users, launcher.rootless, launcher.has_layers, why});
    if (!error)
        error = launcher_serve(&launcher);
    sandbox_end_all(&launcher);
    return error ? EXIT_FAILURE : 0;
}
