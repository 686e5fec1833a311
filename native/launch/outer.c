#include "launch/outer.h"

#include "launch/failure.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sched.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SUBORDINATES = 65535 };

extern char **environ;

/* The first range of "name-or-number:first:count" lines that is large enough. 0: there is none. */
static unsigned long find_range(const char *path, const char *name, uid_t number)
{
    FILE *file = fopen(path, "re");
    char line[512], digits[24];
    unsigned long found = 0;

    snprintf(digits, sizeof digits, "%u", number);
    while (file && !found && fgets(line, sizeof line, file)) {
        unsigned long first, count;
        char *rest = strchr(line, ':');

        if (!rest || sscanf(rest, ":%lu:%lu", &first, &count) != 2 || count < SUBORDINATES)
            continue;
        *rest = '\0';
        if ((name && strcmp(line, name) == 0) || strcmp(line, digits) == 0)
            found = first;
    }
    if (file)
        fclose(file);
    return found;
}

/* Not by getpwuid: a static program cannot load what it may ask. A user who is not in this file is found by number. */
static bool find_name(uid_t number, char *name, size_t size)
{
    FILE *file = fopen("/etc/passwd", "re");
    struct passwd *entry;
    bool found = false;

    while (file && !found && (entry = fgetpwent(file)))
        if (entry->pw_uid == number)
            found = snprintf(name, size, "%s", entry->pw_name) < (int)size;
    if (file)
        fclose(file);
    return found;
}

static bool run_mapper(const char *program, pid_t target, unsigned own, unsigned long first)
{
    char texts[3][24], count[24];
    char *const argv[] = {(char *)program, texts[0], "0", texts[1], "1", "1", texts[2], count, NULL};
    pid_t mapper;
    int status;

    snprintf(texts[0], sizeof texts[0], "%d", target);
    snprintf(texts[1], sizeof texts[1], "%u", own);
    snprintf(texts[2], sizeof texts[2], "%lu", first);
    snprintf(count, sizeof count, "%d", SUBORDINATES);
    if (posix_spawnp(&mapper, program, NULL, NULL, argv, environ))
        return false;
    return waitpid(mapper, &status, 0) == mapper && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The mappers must be started from outside: this process stays there, and waits for `go` to be closed. */
static pid_t fork_mapper(int go, int other_end, unsigned long first_uid, unsigned long first_gid)
{
    pid_t target = getpid(), mapper = fork();
    char nothing;

    if (mapper != 0)
        return mapper;
    close(other_end);
    if (read(go, &nothing, 1) != 1)
        _exit(EXIT_FAILURE);
    _exit(run_mapper("newuidmap", target, getuid(), first_uid) && run_mapper("newgidmap", target, getgid(), first_gid) ? 0 : EXIT_FAILURE);
}

static int write_text(const char *path, const char *text)
{
    CLOSES int file = open(path, O_WRONLY | O_CLOEXEC);

    return file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -errno;
}

static int map_own_ids(uid_t uid, gid_t gid, struct failure *failure)
{
    char text[32];

    snprintf(text, sizeof text, "0 %u 1", uid);
    /* EPERM where newuidmap has already written it. */
    if (write_text("/proc/self/uid_map", text) && errno != EPERM)
        return fail(failure, errno, "map the user's own id");
    snprintf(text, sizeof text, "0 %u 1", gid);
    if (write_text("/proc/self/setgroups", "deny") || write_text("/proc/self/gid_map", text))
        return fail(failure, errno, "map the group's own id");
    return 0;
}

int outer_enter(uint32_t *users, char *why, size_t why_size, struct failure *failure)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    char name[64];
    bool named = find_name(uid, name, sizeof name);
    unsigned long first_uid = find_range("/etc/subuid", named ? name : NULL, uid);
    unsigned long first_gid = find_range("/etc/subgid", named ? name : NULL, uid);
    int go[2], status = -1;
    pid_t mapper = -1;

    if (pipe2(go, O_CLOEXEC))
        return fail(failure, errno, "make a pipe");
    if (first_uid && first_gid)
        mapper = fork_mapper(go[0], go[1], first_uid, first_gid);
    close(go[0]);
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
        fail(failure, errno, "make a user namespace");
    else if (mapper > 0 && write(go[1], "", 1) != 1)
        fail(failure, errno, "start newuidmap");
    close(go[1]);
    if (mapper > 0 && waitpid(mapper, &status, 0) != mapper)
        status = -1;
    if (failure->error)
        return -failure->error;
    *users = mapper > 0 && status == 0 ? 65536 : 1;
    if (*users > 1)
        return 0;
    snprintf(why, why_size, mapper > 0 ? "newuidmap or newgidmap refused: install uidmap" : "/etc/subuid and /etc/subgid give this user no 65,536 ids");
    return map_own_ids(uid, gid, failure);
}
