/* Files with several names, so that an archive holds their bytes once. */
#ifndef EXCISE_TAR_LINKS_H
#define EXCISE_TAR_LINKS_H

#include "guest/file_work.h"

struct tar_links {
    struct names names;
    struct tar_link *links;
    size_t count, room;
    uint32_t *buckets; /* the first link of each, plus one; 0 is none */
};

/* The name under which the file was seen before, or NULL: then it is remembered by `name`, unless there are too many. */
const char *tar_links_seen(struct tar_links *links, const struct stat *file, const char *name);
void tar_links_free(struct tar_links *links);

#endif
