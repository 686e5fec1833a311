/* What the parts of a root's building share; nobody else's. */
#ifndef EXCISE_ROOT_PARTS_H
#define EXCISE_ROOT_PARTS_H

#include <sys/types.h>

struct failure;
struct root;

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* One that is there already is none to be made. */
int root_make_directory(const char *path, mode_t mode, struct failure *failure);

/* A mount that is attached nowhere, at `path`, through the links it holds. */
int root_attach(int source, const char *path, struct failure *failure);

/* The kernel grants a new one only to who sees a whole old one: so before the host's are left. */
int root_open_kernel(struct root *root, struct failure *failure);

#endif
