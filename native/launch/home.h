/* The launcher's own place in a v2 tree. */
#ifndef EXCISE_HOME_H
#define EXCISE_HOME_H

#include "launch/failure.h"

/* Makes the directory and moves this process into it, once for all sandboxes that are limited by v2:
 *   HOME          gives the controllers to what is in it; the root of this process's cgroup namespace, and of every guest's
 *   HOME/guests   the launcher, the guests and their runners, without a limit
 *   HOME/NAME     a sandbox's programs and file workers, and its limits
 * A guest may start processes in its HOME/NAME only if it may write to HOME's cgroup.procs, and to that of its own. 0 or -errno. */
int home_enter(const char *path, const char *controllers, struct failure *failure);

#endif
