/* Another root for a guest that goes on: offered by who made the sandbox, taken on when nothing of it is in use. */
#include "guest/internal.h"

#include <unistd.h>

static void offered(struct guest *guest, struct watch *watch, uint32_t events)
{
    const struct guest_config *config = guest->config;

    (void)watch;
    (void)events;
    switch (config->roots->receive(config->roots_state)) {
    case ROOT_NONE:
        return;
    case ROOT_NEXT_LIFE:
        if (guest->roots.held)
            guest_exit(guest, 1);
        guest->roots.held = true;
        guest_dead(guest);
        return;
    case ROOT_NOW:
        if (guest->roots.held)
            guest_exit(guest, 1);
        if (guest->resetting || guest->action_count > 0 || !runners_idle(guest))
            config->roots->refuse(config->roots_state);
        else if (config->roots->apply(config->roots_state) < 0)
            guest_exit(guest, 1);
        return;
    default:
        guest_exit(guest, 1);
    }
}

int roots_open(struct guest *guest)
{
    for (int i = 0; i < ROOTS_LEFT; i++)
        guest->roots.left[i] = -1;
    if (guest->config->talk < 0)
        return 0;
    guest->roots.offers = (struct watch){.fd = guest->config->talk, .ready = offered};
    return watch_set(guest, &guest->roots.offers, EPOLLIN);
}

/* Of a life whose first runner did not come to it. */
static void close_left(struct roots *roots)
{
    for (int i = 0; i < ROOTS_LEFT; i++) {
        if (roots->left[i] >= 0)
            close(roots->left[i]);
    }
}

bool roots_ready(struct guest *guest)
{
    struct roots *roots = &guest->roots;

    if (!roots->wanted)
        return true;
    if (!roots->held)
        return false;
    roots->wanted = roots->held = false;
    if (guest->config->roots->apply(guest->config->roots_state) < 0)
        guest_exit(guest, 1); /* there is no way back to the root that was */
    close_left(roots);
    guest->config->roots->left(guest->config->roots_state, roots->left);
    return true;
}
