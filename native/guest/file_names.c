#include "guest/file_work.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Doubles an array until `need` elements fit; -E2BIG beyond what a file action may hold. */
static int grow(void **array, size_t *room, size_t need, size_t element)
{
    size_t wanted = *room ? *room : 1024;
    void *moved;

    if (need <= *room)
        return 0;
    while (wanted < need)
        wanted *= 2;
    if (wanted > FILE_MEMORY / element)
        return -E2BIG;
    moved = realloc(*array, wanted * element);
    if (moved == NULL)
        return -ENOMEM;
    *array = moved;
    *room = wanted;
    return 0;
}

int names_push(struct names *names, const char *name)
{
    size_t length = strlen(name) + 1;
    int error = grow((void **)&names->bytes, &names->room, names->used + length, 1);

    if (!error)
        error = grow((void **)&names->at, &names->slots, names->count + 1, sizeof *names->at);
    if (error)
        return error;
    memcpy(names->bytes + names->used, name, length);
    names->at[names->count++] = (uint32_t)names->used;
    names->used += length;
    return 0;
}

static int by_bytes(const void *one, const void *other, void *bytes)
{
    return strcmp((char *)bytes + *(const uint32_t *)one, (char *)bytes + *(const uint32_t *)other);
}

static int by_bytes_down(const void *one, const void *other, void *bytes)
{
    return by_bytes(other, one, bytes);
}

void names_sort(struct names *names, size_t from, bool descending)
{
    if (names->count > from)
        qsort_r(names->at + from, names->count - from, sizeof *names->at, descending ? by_bytes_down : by_bytes, names->bytes);
}

void names_free(struct names *names)
{
    free(names->bytes);
    free(names->at);
    *names = (struct names){0};
}

int each_name(int directory, int (*visit)(void *context, const struct dirent64 *entry), void *context)
{
    _Alignas(struct dirent64) char buffer[FILE_CHUNK];

    for (;;) {
        ssize_t got = getdents64(directory, buffer, sizeof buffer);

        if (got <= 0)
            return got < 0 ? -errno : 0;
        for (ssize_t at = 0; at < got;) {
            const struct dirent64 *entry = (const struct dirent64 *)(buffer + at);

            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
                int error = visit(context, entry);

                if (error)
                    return error;
            }
            at += entry->d_reclen;
        }
    }
}

static int push_entry(void *names, const struct dirent64 *entry)
{
    return names_push(names, entry->d_name);
}

int names_read(struct names *names, int directory)
{
    return each_name(directory, push_entry, names);
}
