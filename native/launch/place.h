/* The launcher's own tree: a tmpfs in its own mount namespace, from which every sandbox's mounts are made. It is the launcher's working directory, so that
 * a child has it there too in its copy of the mounts:
 *   new/   where a child mounts its tmpfs      mask   an empty file, shown over what of /proc must not be seen      dev/   the devices
 */
#ifndef EXCISE_PLACE_H
#define EXCISE_PLACE_H

#include <stdbool.h>
#include <stddef.h>

struct failure;

/* Makes `directory` if it is not there, refuses one that is another user's, and mounts the tree below it. 0 or -errno. */
int place_prepare(const char *directory, bool rootless, struct failure *failure);

/* Makes a tree of devices at `name`: the usual ones and these of the host. An ordinary user's are bind mounts, root's are nodes. 0 or -errno. */
int place_devices(const char *name, const char *const *devices, size_t count, bool rootless, struct failure *failure);

#endif
