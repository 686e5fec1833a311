#include "launch/reroot.h"

#include "launch/failure.h"
#include "launch/net.h"
#include "launch/plan.h"

#include <errno.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

static void close_clones(struct reroot *reroot)
{
    while (reroot->count > 0)
        close(reroot->clones[--reroot->count]);
}

static int receive(void *state)
{
    struct reroot *reroot = state;
    ssize_t length;

    reroot->count = PACKET_DESCRIPTORS;
    length = packet_receive(reroot->talk, &reroot->offer, sizeof reroot->offer, reroot->clones, &reroot->count, false);
    if (length == -EAGAIN)
        return ROOT_NONE;
    if (length != sizeof reroot->offer || reroot->count != reroot->offer.lowers + reroot->root->plan->bind_count + 2)
        return ROOT_BROKEN;
    return reroot->offer.seals ? ROOT_NOW : ROOT_NEXT_LIFE;
}

static int build(struct reroot *reroot, struct failure *failure)
{
    struct root *root = reroot->root;
    int error;

    root->clones = reroot->clones;
    root->lower_count = reroot->offer.lowers;
    root->has_upper = root->again = root->over_layers = true;
    root->keeps_scratch = reroot->offer.seals;
    error = root_build(root, failure);
    if (!error)
        error = root_enter(failure);
    if (!error)
        error = root_devices(root, failure);
    if (!error)
        error = root_kernel(root, failure);
    if (!error)
        error = root_scratch(root, failure);
    if (!error)
        error = root_binds(root, failure);
    return error ? error : root_directories(root, failure);
}

/* What of the life before is neither a file nor a process. */
static int forget_life(struct failure *failure)
{
    if (unshare(CLONE_NEWIPC))
        return fail(failure, errno, "make an IPC namespace");
    return net_forget(failure);
}

static int apply(void *state)
{
    struct reroot *reroot = state;
    struct failure failure = {0};
    mode_t before = umask(0);
    int error = build(reroot, &failure);

    if (!error && !reroot->offer.seals)
        error = forget_life(&failure);
    umask(before);
    root_close(reroot->root);
    close_clones(reroot);
    packet_send(reroot->talk, &failure, sizeof failure, NULL, 0);
    return error;
}

static void left(void *state, int descriptors[ROOTS_LEFT])
{
    const struct reroot *reroot = state;

    descriptors[0] = reroot->root->left_root;
    descriptors[1] = reroot->root->left_scratch;
}

static void refuse(void *state)
{
    struct reroot *reroot = state;
    struct failure failure = {0};

    close_clones(reroot);
    fail(&failure, EBUSY, "seal the upper: something lives in the sandbox");
    packet_send(reroot->talk, &failure, sizeof failure, NULL, 0);
}

const struct guest_roots reroot_calls = {.receive = receive, .apply = apply, .refuse = refuse, .left = left};
