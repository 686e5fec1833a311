#include "guest/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/sys.h"
#include "guest/shell.h"

enum { PATH_BYTES = 4096, ALWAYS_FIT = 131072 /* what the kernel always takes for arguments and environment */ };

static size_t append(char *line, size_t size, size_t used, const char *text)
{
    size_t length = strnlen(text, size - used);

    memcpy(line + used, text, length);
    return used + length;
}

void spawn_complain(int fd, const char *what, int error)
{
    const char *why = strerrordesc_np(error);
    char line[512];
    size_t used = append(line, sizeof line - 1, 0, "excise: ");

    used = append(line, sizeof line - 1, used, what);
    used = append(line, sizeof line - 1, used, ": ");
    used = append(line, sizeof line - 1, used, why == NULL ? "unknown error" : why);
    line[used++] = '\n';
    sys(SYS_write, fd, line, used);
}

static void complain_unknown(int fd, const char *what, const char *user)
{
    char line[512];
    size_t used = append(line, sizeof line - 1, 0, "excise: no ");

    used = append(line, sizeof line - 1, used, what);
    used = append(line, sizeof line - 1, used, " for '");
    used = append(line, sizeof line - 1, used, user);
    used = append(line, sizeof line - 1, used, strcmp(what, "user") == 0 ? "' in the image's /etc/passwd" : "' in the image's /etc/group");
    line[used++] = '\n';
    sys(SYS_write, fd, line, used);
}

/* Puts the descriptors in their places. Those that stand in the place of another are moved away first. 0, or -errno: the limit was taken away from us. */
static int place_descriptors(const struct spawn *spawn)
{
    int from[SPAWN_DESCRIPTORS], last = 2;

    for (int i = 0; i < SPAWN_DESCRIPTORS; i++) {
        from[i] = spawn->descriptors[i];
        if (from[i] < 0)
            continue;
        last = i > last ? i : last;
        if (from[i] < SPAWN_DESCRIPTORS)
            from[i] = (int)sys(SYS_fcntl, from[i], F_DUPFD_CLOEXEC, SPAWN_DESCRIPTORS);
        if (from[i] < 0)
            return from[i];
    }
    for (int i = 0; i < SPAWN_DESCRIPTORS; i++) {
        long result = from[i] < 0 ? 0 : sys(SYS_dup3, from[i], i, 0);

        if (result < 0)
            return (int)result;
    }
    /* All others are closed by exec; but a process that is held up before it must not hold another action's pipes open. */
    if (spawn->program < 0)
        sys(SYS_close_range, last + 1, ~0U, 0);
    return 0;
}

/* /dev/stdout is opened anew by its path: it must belong to who opens it. What the guest keeps for itself does not change hands. */
static void hand_over(const struct spawn *spawn, const struct identity *identity)
{
    for (int i = 0; i < 3; i++) {
        if (spawn->descriptors[i] >= 0 && spawn->close_after[i])
            sys(SYS_fchown, i, identity->uid, (gid_t)-1);
    }
}

static const char *value_of(char *const *environment, const char *name)
{
    size_t length = strlen(name);

    for (; *environment != NULL; environment++) {
        if (strncmp(*environment, name, length) == 0)
            return *environment + length;
    }
    return NULL;
}

static void add_variable(char **environment, const char *name, char *variable)
{
    size_t count = 0;

    if (*variable == 0 || value_of(environment, name) != NULL)
        return;
    while (environment[count] != NULL)
        count++;
    environment[count + 1] = NULL;
    environment[count] = variable;
}

/* 0, or the exit code. */
static int take_user(const struct spawn *spawn, struct identity *identity)
{
    const char *what;
    int result = identity_find(spawn->user, identity, &what);

    if (result < 0) {
        complain_unknown(2, what, spawn->user);
        return NOT_FOUND;
    }
    hand_over(spawn, identity);
    if ((result = identity_take(identity)) < 0) {
        spawn_complain(2, spawn->user, -result);
        return NOT_FOUND;
    }
    add_variable(spawn->environment, "HOME=", identity->home);
    add_variable(spawn->environment, "USER=", identity->name);
    return 0;
}

static int enter(const char *directory)
{
    int result = (int)sys(SYS_chdir, directory);

    if (result < 0)
        spawn_complain(2, directory, -result);
    return result;
}

/* As execvp, but by the PATH the program will see. Returns only with -errno. */
static int execute_found(const char *name, char *const *argv, char *const *environment)
{
    const char *at = value_of(environment, "PATH=");
    size_t length = strlen(name);
    int refused = -ENOENT;

    for (at = at == NULL ? "/usr/bin:/bin" : at;; at++) {
        size_t part = strcspn(at, ":");
        char path[PATH_BYTES];
        size_t used;
        int result;

        if (part + length + 3 <= sizeof path) {
            memcpy(path, part == 0 ? "." : at, part == 0 ? 1 : part);
            used = part == 0 ? 1 : part;
            path[used++] = '/';
            memcpy(path + used, name, length + 1);
            /* Most directories do not have it, and a look costs less than an exec that fails. */
            result = (int)sys(SYS_faccessat, AT_FDCWD, path, F_OK);
            if (result != -ENOENT)
                result = (int)sys(SYS_execve, path, argv, environment);
            if (result == -EACCES)
                refused = result;
            else if (result != -ENOENT && result != -ENOTDIR && result != -ELOOP && result != -ENAMETOOLONG)
                return result;
        }
        at += part;
        if (*at == 0)
            return refused;
    }
}

static int execute_opaque(const struct spawn *spawn)
{
    int result = shell_conceal();

    return result < 0 ? result : (int)sys(SYS_execveat, spawn->program, "", spawn->argv, spawn->environment, AT_EMPTY_PATH);
}

static size_t bytes_of(char *const *strings)
{
    size_t bytes = 0;

    for (; *strings != NULL; strings++)
        bytes += sizeof *strings + strlen(*strings) + 1;
    return bytes;
}

/* A program in a full cgroup that is not yet its own process cannot be killed for it: exec fails, and says "too long" when it cannot get a page for the arguments.
 * So few are never too long. */
static bool is_starved(const struct spawn *spawn, int error)
{
    return error == ENOMEM || (error == E2BIG && bytes_of(spawn->argv) + bytes_of(spawn->environment) < ALWAYS_FIT);
}

static int execute(const struct spawn *spawn, bool *starved)
{
    const char *name = spawn->argv[0];
    int result;

    if (spawn->program >= 0)
        result = execute_opaque(spawn);
    else if (*name == 0 || strchr(name, '/') != NULL)
        result = (int)sys(SYS_execve, name, spawn->argv, spawn->environment);
    else
        result = execute_found(name, spawn->argv, spawn->environment);
    spawn_complain(2, name, -result);
    *starved = is_starved(spawn, -result);
    return result == -ENOENT || result == -ENOTDIR ? NOT_FOUND : NOT_EXECUTABLE;
}

int spawn_become(const struct spawn *spawn, bool *starved)
{
    struct identity identity;
    uint64_t no_signals = 0;
    int code;

    /* A process group of its own; a session only where it matters, for a terminal or a shell: the kernel makes a scheduling group for each. */
    if (spawn->terminal || spawn->program >= 0)
        sys(SYS_setsid);
    else
        sys(SYS_setpgid, 0, 0);
    if ((code = place_descriptors(spawn)) < 0) {
        spawn_complain(spawn->descriptors[2], "its descriptors", -code);
        return NOT_EXECUTABLE;
    }
    if (spawn->terminal)
        sys(SYS_ioctl, 0, TIOCSCTTY, 0);
    if (spawn->user != NULL && (code = take_user(spawn, &identity)) != 0)
        return code;
    if (enter(spawn->directory == NULL || *spawn->directory == 0 ? "/" : spawn->directory) < 0)
        return NOT_FOUND;
    if (spawn->relative != NULL && enter(spawn->relative) < 0)
        return NOT_FOUND;
    sys(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, NULL, sizeof no_signals);
    return execute(spawn, starved);
}
