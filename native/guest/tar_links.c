#include "guest/tar_links.h"

#include <stdlib.h>

enum { BUCKETS = 1 << 16, MOST = 1 << 20 };

struct tar_link {
    dev_t device;
    ino_t inode;
    uint32_t next; /* in its bucket, plus one */
};

static uint32_t *bucket_of(const struct tar_links *links, const struct stat *file)
{
    uint64_t mixed = ((uint64_t)file->st_ino ^ (uint64_t)file->st_dev << 32) * 0x9e3779b97f4a7c15u;

    return &links->buckets[mixed >> 48];
}

static void remember(struct tar_links *links, const struct stat *file, const char *name, uint32_t *bucket)
{
    if (links->count == links->room) {
        size_t room = links->room ? links->room * 2 : 256;
        struct tar_link *moved = room > MOST ? NULL : realloc(links->links, room * sizeof *moved);

        if (moved == NULL)
            return; /* its next name is one more file */
        links->links = moved;
        links->room = room;
    }
    if (names_push(&links->names, name) < 0)
        return;
    links->links[links->count] = (struct tar_link){.device = file->st_dev, .inode = file->st_ino, .next = *bucket};
    *bucket = (uint32_t)++links->count;
}

const char *tar_links_seen(struct tar_links *links, const struct stat *file, const char *name)
{
    uint32_t *bucket;

    if (links->buckets == NULL && (links->buckets = calloc(BUCKETS, sizeof *links->buckets)) == NULL)
        return NULL;
    bucket = bucket_of(links, file);
    for (uint32_t i = *bucket; i > 0; i = links->links[i - 1].next)
        if (links->links[i - 1].device == file->st_dev && links->links[i - 1].inode == file->st_ino)
            return links->names.bytes + links->names.at[i - 1];
    remember(links, file, name, bucket);
    return NULL;
}

void tar_links_free(struct tar_links *links)
{
    names_free(&links->names);
    free(links->links);
    free(links->buckets);
}
