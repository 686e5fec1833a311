#include "guest/untar.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Up to `length` bytes that are there already, read if there are none; 0 at the end. */
static ssize_t look(struct untar *u, const char **bytes, size_t length)
{
    if (u->at == u->end) {
        ssize_t got = file_take(u->from, u->input, sizeof u->input);

        if (got <= 0)
            return got;
        u->any = true;
        u->at = 0;
        u->end = (size_t)got;
    }
    if (length > u->end - u->at)
        length = u->end - u->at;
    *bytes = u->input + u->at;
    return (ssize_t)length;
}

int untar_pull(struct untar *u, char *into, int file, uint64_t length)
{
    while (length > 0) {
        const char *bytes;
        ssize_t got = look(u, &bytes, length < FILE_CHUNK ? (size_t)length : FILE_CHUNK);
        int error = 0;

        if (got <= 0)
            return got < 0 ? (int)got : -EINVAL; /* cut short */
        if (into != NULL) {
            memcpy(into, bytes, (size_t)got);
            into += got;
        } else if (file >= 0) {
            error = file_put(file, bytes, (size_t)got);
        }
        if (error)
            return error;
        u->at += (size_t)got;
        length -= (uint64_t)got;
    }
    return 0;
}

int untar_skip_padding(struct untar *u, int64_t size)
{
    return untar_pull(u, NULL, -1, (TAR_BLOCK - (uint64_t)size % TAR_BLOCK) % TAR_BLOCK);
}

/* What a header of the formats' own carries: a long name, or the records of a pax header. */
static int read_extension(struct untar *u, char type, int64_t size)
{
    char *bytes;
    int error;

    if (size > TAR_LARGEST_EXTENSION)
        return -EINVAL;
    bytes = calloc(1, (size_t)size + 1);
    if (bytes == NULL)
        return -ENOMEM;
    error = untar_pull(u, bytes, -1, (uint64_t)size);
    if (!error && (type == 'L' || type == 'K'))
        error = tar_parse_long(type, bytes, (size_t)size, &u->next);
    else if (!error)
        error = tar_parse_pax(bytes, (size_t)size, type == 'g' ? &u->global : &u->next);
    free(bytes);
    return error ? error : untar_skip_padding(u, size);
}

/* 0; 1 at the archive's end. An archive ends with a block of zeros: one that just stops was cut short. Nothing at all is an empty one. */
static int read_header(struct untar *u)
{
    struct tar_block block;
    const char *bytes;
    ssize_t got = look(u, &bytes, 1);
    int error;

    if (got <= 0)
        return got < 0 ? (int)got : u->any ? -EINVAL : 1;
    error = untar_pull(u, (char *)&block, -1, sizeof block);
    return error ? error : tar_parse(&block, &u->member);
}

static int read_member(struct untar *u)
{
    struct tar_member *member = &u->member;
    int error = read_header(u);

    if (error)
        return error;
    switch (member->type) {
    case 'x': case 'g': case 'L': case 'K':
        return read_extension(u, member->type, member->size);
    case 'V': /* a volume's label */
        break;
    default:
        tar_extend(member, &u->global);
        tar_extend(member, &u->next);
        error = untar_make(u);
    }
    u->next.has = 0;
    if (error || (member->type != 'V' && member->type != 'D'))
        return error;
    error = untar_pull(u, NULL, -1, (uint64_t)member->size);
    return error ? error : untar_skip_padding(u, member->size);
}

/* What follows the end is padding: whoever writes it should not find a closed pipe. */
static int drain(struct untar *u)
{
    ssize_t got;

    while ((got = file_take(u->from, u->input, sizeof u->input)) > 0)
        ;
    return (int)got;
}

int file_untar(int from, int root)
{
    struct untar *u = calloc(1, sizeof *u);
    int error;

    if (u == NULL)
        return -ENOMEM;
    u->from = from;
    u->parent = -1;
    u->as_root = geteuid() == 0;
    error = beneath_at(&u->beneath, root);
    while (!error)
        error = read_member(u);
    untar_finish_directories(u);
    if (error == 1)
        error = drain(u);
    file_close(&u->parent);
    names_free(&u->delayed_names);
    free(u->delayed);
    free(u);
    return error;
}
