#include "guest/file_work.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int make_room(struct tree *tree)
{
    size_t room = tree->room ? tree->room * 2 : 64;
    struct level *levels;

    if (tree->depth < tree->room)
        return 0;
    if (room > FILE_MEMORY / sizeof *levels)
        return -E2BIG;
    levels = realloc(tree->levels, room * sizeof *levels);
    if (levels == NULL)
        return -ENOMEM;
    tree->levels = levels;
    tree->room = room;
    return 0;
}

int tree_enter(struct tree *tree, size_t name, size_t mark)
{
    struct stat here;
    int error = make_room(tree);
    int below;

    if (error)
        return error;
    if (fstat(tree->fd, &here) < 0)
        return -errno;
    below = openat(tree->fd, tree->names.bytes + name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (below < 0)
        return -errno;
    close(tree->fd);
    tree->fd = below;
    tree->levels[tree->depth++] = (struct level){
        .device = here.st_dev,
        .inode = here.st_ino,
        .count = tree->names.count,
        .used = tree->names.used,
        .name = name,
        .mark = mark,
    };
    return 0;
}

int tree_leave(struct tree *tree, struct level *left)
{
    struct stat found;
    int above = openat(tree->fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (above < 0)
        return -errno;
    *left = tree->levels[--tree->depth];
    close(tree->fd);
    tree->fd = above;
    tree->names.count = left->count;
    tree->names.used = left->used;
    if (fstat(above, &found) < 0)
        return -errno;
    /* Somebody moved the directory while we were in it: what is above it now is not ours to touch. */
    return found.st_dev == left->device && found.st_ino == left->inode ? 0 : -EBUSY;
}

bool tree_next(struct tree *tree, size_t *name)
{
    if (tree->names.count == tree->levels[tree->depth - 1].count)
        return false;
    *name = tree->names.at[--tree->names.count];
    return true;
}

void tree_free(struct tree *tree)
{
    file_close(&tree->fd);
    names_free(&tree->names);
    free(tree->levels);
}
