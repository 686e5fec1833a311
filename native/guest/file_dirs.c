#include "guest/file_work.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int copy_path(char *copy, const char *path)
{
    size_t length = strlen(path);

    if (length >= PATH_MAX)
        return -ENAMETOOLONG;
    memcpy(copy, path, length + 1);
    return 0;
}

int split_path(char *path, const char **last, bool *slashes)
{
    size_t length = strlen(path);
    const char *parent = ".";
    char *cut;
    int fd;

    *slashes = false;
    while (length > 1 && path[length - 1] == '/') {
        path[--length] = '\0';
        *slashes = true;
    }
    cut = strrchr(path, '/');
    *last = cut == NULL ? path : cut + 1;
    if (cut != NULL) {
        parent = cut == path ? "/" : path;
        *cut = '\0';
        if (**last == '\0')
            *last = ".";
    }
    fd = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static bool is_directory(const char *path)
{
    struct stat found;

    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

int make_dirs(const char *path, mode_t mode)
{
    char copy[PATH_MAX];
    int error = copy_path(copy, path);

    if (error)
        return error;
    for (char *at = copy + 1; copy[0] != '\0' && *at != '\0'; at++) {
        if (*at != '/' || at[1] == '/' || at[1] == '\0')
            continue;
        *at = '\0';
        if (mkdir(copy, 0777) < 0 && errno != EEXIST)
            return -errno;
        *at = '/';
    }
    if (mkdir(path, mode) < 0) {
        error = -errno;
        return error == -EEXIST && is_directory(path) ? 0 : error;
    }
    /* The umask is for those who do not say a mode. */
    return chmod(path, mode) < 0 ? -errno : 0;
}

int make_parents(const char *path)
{
    char copy[PATH_MAX];
    char *cut;
    int error = copy_path(copy, path);

    if (error)
        return error;
    cut = strrchr(copy, '/');
    if (cut == NULL || cut == copy)
        return 0;
    *cut = '\0';
    if (is_directory(copy))
        return 0;
    error = make_dirs(copy, 0755);
    /* What is in the way of a parent directory is a file. */
    return error == -EEXIST ? -ENOTDIR : error;
}

/* Unlinks what is no directory, and leaves the names of directories on the stack. */
static int unlink_or_push(void *context, const struct dirent64 *entry)
{
    struct tree *tree = context;

    if (entry->d_type == DT_DIR)
        return names_push(&tree->names, entry->d_name);
    if (unlinkat(tree->fd, entry->d_name, 0) == 0 || errno == ENOENT)
        return 0;
    return errno == EISDIR ? names_push(&tree->names, entry->d_name) : -errno;
}

static int empty_into(struct tree *tree, size_t name)
{
    int error = tree_enter(tree, name, 0);

    if (error == -ENOENT)
        return 0;
    if (error == -ENOTDIR || error == -ELOOP) /* replaced since, by a file or a link */
        return unlinkat(tree->fd, tree->names.bytes + name, 0) < 0 && errno != ENOENT ? -errno : 0;
    return error ? error : each_name(tree->fd, unlink_or_push, tree);
}

int remove_below(int parent, const char *name)
{
    __attribute__((cleanup(tree_free))) struct tree tree = {.fd = fcntl(parent, F_DUPFD_CLOEXEC, 0)};
    struct level left;
    size_t next = 0;
    int error;

    if (tree.fd < 0)
        return -errno;
    error = names_push(&tree.names, name);
    if (!error)
        error = empty_into(&tree, next);
    while (!error && tree.depth > 0) {
        if (tree_next(&tree, &next)) {
            error = empty_into(&tree, next);
            continue;
        }
        error = tree_leave(&tree, &left);
        if (!error && unlinkat(tree.fd, tree.names.bytes + left.name, AT_REMOVEDIR) < 0 && errno != ENOENT)
            error = -errno;
    }
    return error;
}

int remove_path(const char *path, bool recursive)
{
    char copy[PATH_MAX];
    CLEAN_FD int parent = -1;
    struct stat found;
    const char *last;
    bool slashes;
    int error = copy_path(copy, path);

    if (error)
        return error;
    parent = split_path(copy, &last, &slashes);
    if (parent < 0)
        return parent;
    if (fstatat(parent, last, &found, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (!S_ISDIR(found.st_mode)) {
        if (slashes) /* "link/" would be what the link leads to */
            return -ENOTDIR;
        return unlinkat(parent, last, 0) < 0 ? -errno : 0;
    }
    if (!recursive)
        return -EISDIR;
    /* rmdir refuses these, too, but only after all in them is gone. */
    if (strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
        return -EINVAL;
    return remove_below(parent, last);
}
