#include "guest/file_work.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* `path` as an archive, from a process of its own. Its pid, or -errno. */
static pid_t pack(const char *path, int to, int other)
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid < 0 ? -errno : pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        _exit(EINTR);
    close(other);
    _exit(-file_tar(to, path, true));
}

static int copy_into(const char *path, int directory)
{
    CLEAN_FD int in = -1;
    int ends[2], status, error;
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    in = ends[0];
    pid = pack(path, ends[1], ends[0]);
    close(ends[1]);
    if (pid < 0)
        return pid;
    error = file_untar(in, directory);
    file_close(&in); /* one that still writes need not */
    if (waitpid(pid, &status, 0) < 0)
        return -errno;
    /* Why it could not be read is the better reason: it leaves half an archive. */
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != EPIPE)
        return -WEXITSTATUS(status);
    return error ? error : WIFEXITED(status) ? 0 : -EIO;
}

/* Copies beside the target, then renames, so that the target is the old or the new and never half of it. */
static int move_beside(const char *path, const char *name, int parent, const char *last)
{
    char beside[64];
    CLEAN_FD int directory = -1;
    int error, gone;

    snprintf(beside, sizeof beside, ".moving-%d", getpid());
    if (mkdirat(parent, beside, 0700) < 0)
        return -errno;
    directory = openat(parent, beside, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    error = directory < 0 ? -errno : copy_into(path, directory);
    if (!error && renameat(directory, name, parent, last) < 0)
        error = -errno;
    gone = remove_below(parent, beside);
    return error ? error : gone;
}

/* What rename refuses: to another file system, and, on an overlay, for a directory of the image. */
static int move_across(const char *path, const char *target)
{
    char from[PATH_MAX], to[PATH_MAX];
    CLEAN_FD int source = -1;
    CLEAN_FD int parent = -1;
    const char *name, *last;
    bool slashes;
    int error;

    if ((error = copy_path(from, path)) || (error = copy_path(to, target)))
        return error;
    if ((source = split_path(from, &name, &slashes)) < 0)
        return source;
    if ((parent = split_path(to, &last, &slashes)) < 0)
        return parent;
    error = move_beside(path, name, parent, last);
    return error ? error : remove_path(path, true);
}

int move_path(const char *path, const char *target)
{
    if (rename(path, target) == 0)
        return 0;
    return errno == EXDEV ? move_across(path, target) : -errno;
}
