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

struct range {
    unsigned long first_uid, first_gid; /* 0: there is none */
};

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

static int write_text(const char *path, const char *text)
{
    CLOSES int file = open(path, O_WRONLY | O_CLOEXEC);

    return file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -errno;
}

/* A container's root, with the capabilities to give ids away but not those to mount: every id is its own. */
static bool map_all_ids(pid_t target)
{
    static const char *const FILES[] = {"uid_map", "gid_map"};
    char path[48];

    for (size_t index = 0; index < 2; index++) {
        snprintf(path, sizeof path, "/proc/%d/%s", target, FILES[index]);
        if (write_text(path, "0 0 65536"))
            return false;
    }
    return true;
}

/* Ids are given away from outside: this process stays there, and waits for a byte. */
static pid_t fork_mapper(int go, int other_end, const struct range *range)
{
    pid_t target = getpid(), mapper = fork();
    char nothing;
    bool mapped;

    if (mapper != 0)
        return mapper;
    close(other_end);
    if (read(go, &nothing, 1) != 1)
        _exit(EXIT_FAILURE);
    if (geteuid() == 0)
        mapped = map_all_ids(target);
    else
        mapped = run_mapper("newuidmap", target, getuid(), range->first_uid) && run_mapper("newgidmap", target, getgid(), range->first_gid);
    _exit(mapped ? 0 : EXIT_FAILURE);
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

static struct range find_ranges(uid_t uid)
{
    char name[64];
    bool named = find_name(uid, name, sizeof name);

    return (struct range){
        .first_uid = find_range("/etc/subuid", named ? name : NULL, uid),
        .first_gid = find_range("/etc/subgid", named ? name : NULL, uid),
    };
}

static void explain(uint32_t users, uid_t uid, bool asked, char *why, size_t size)
{
    if (uid == 0)
        snprintf(why, size, "root without CAP_SYS_ADMIN: sandboxes have this machine's user ids, its root's too, without its rights");
    else if (users == 1 && asked)
        snprintf(why, size, "newuidmap or newgidmap refused: install uidmap");
    else if (users == 1)
        snprintf(why, size, "/etc/subuid and /etc/subgid give this user no 65,536 ids");
}

int outer_enter(uint32_t *users, char *why, size_t why_size, struct failure *failure)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    struct range range = find_ranges(uid);
    bool asked = uid == 0 || (range.first_uid && range.first_gid);
    int go[2], status = -1;
    pid_t mapper = -1;

    if (pipe2(go, O_CLOEXEC))
        return fail(failure, errno, "make a pipe");
    if (asked)
        mapper = fork_mapper(go[0], go[1], &range);
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
    *users = status == 0 ? 65536 : 1;
    explain(*users, uid, asked, why, why_size);
    return *users > 1 ? 0 : map_own_ids(uid, gid, failure);
}
