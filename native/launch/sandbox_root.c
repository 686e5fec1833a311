/* A sandbox's other roots and the layers they leave, from the launcher's side. */
#include "launch/clones.h"
#include "launch/launcher.h"
#include "launch/plan.h"
#include "launch/reroot.h"
#include "launch/sandbox_parts.h"
#include "launch/uppers.h"

#include <errno.h>
#include <unistd.h>

static int offer_root(struct launcher *launcher, struct sandbox *sandbox, const struct plan *plan, struct failure *failure)
{
    struct clones from = {.plan = plan, .layers = launcher->layers, .sealed = plan->seal ? sandbox->upper : -1};
    struct root_offer offer = {.lowers = (uint16_t)(plan->lower_count + (plan->seal != 0)), .seals = plan->seal != 0};
    uint64_t bytes = plan->disk_bytes, inodes = plan->inodes;
    CLOSES int process = sandbox_open_process(sandbox, failure);
    int error;

    if (process < 0)
        return process;
    /* What is sealed was written in this life, and counts for its limits. */
    sandbox->sealed_bytes = plan->seal ? upper_usage(sandbox->upper, &bytes, &inodes) : 0;
    from.upper = upper_make(bytes, inodes, offer.lowers, failure);
    if (from.upper < 0)
        return from.upper;
    error = sandbox_hand_over(launcher, sandbox, &from, process, &offer, sizeof offer, failure);
    if (error) {
        close(from.upper);
        return error;
    }
    sandbox->next_upper = from.upper;
    sandbox->seal = plan->seal;
    return 0;
}

int sandbox_root(struct launcher *launcher, uint32_t id, const struct plan *plan)
{
    struct sandbox *sandbox = sandbox_find(launcher, id);
    struct failure failure = {0};

    if (!sandbox || !sandbox->ready || sandbox->pid == 0 || sandbox->talk < 0)
        fail(&failure, ECHILD, "give the sandbox another root: it is not there");
    else if (sandbox->upper < 0 || sandbox->next_upper >= 0)
        fail(&failure, EALREADY, "give the sandbox another root: it is being given one, or can have none");
    else if (plan->seal && upper_is_empty(sandbox->upper))
        fail(&failure, ENODATA, "seal the upper: nothing was written into it");
    else
        offer_root(launcher, sandbox, plan, &failure);
    return failure.error ? replies_rooted(&launcher->replies, id, 0, &failure) : 0;
}

int sandbox_open(struct launcher *launcher, uint32_t id)
{
    const struct sandbox *sandbox = sandbox_find(launcher, id);
    int upper = sandbox ? sandbox->upper : layers_find(launcher->layers, id);

    return replies_opened(&launcher->replies, id, upper < 0 ? -ENOENT : upper_open(upper));
}

int sandbox_make_layer(struct launcher *launcher, uint32_t id)
{
    struct failure failure = {0};
    int upper = upper_make(0, 0, 0, &failure);
    int error = upper < 0 ? upper : layers_add(&launcher->layers, id, upper);

    if (error && upper >= 0)
        close(upper);
    return error ? replies_opened(&launcher->replies, id, error) : sandbox_open(launcher, id);
}

/* The guest has said that it is done with its upper, and could be wrong. */
static int keep_sealed(struct launcher *launcher, struct sandbox *sandbox, int upper, struct failure *failure)
{
    int error = upper_seal(upper);

    if (error)
        return fail(failure, -error, "seal the upper: somebody writes into it");
    error = layers_add(&launcher->layers, sandbox->seal, upper);
    return error ? fail(failure, -error, "seal the upper") : 0;
}

int sandbox_take_root(struct launcher *launcher, struct sandbox *sandbox, struct failure *said)
{
    int error, let_go = said->error ? sandbox->next_upper : sandbox->upper;

    if (!said->error) {
        sandbox->upper = sandbox->next_upper;
        if (sandbox->seal && keep_sealed(launcher, sandbox, let_go, said))
            sandbox_kill(sandbox);
        else if (sandbox->seal)
            let_go = -1;
    }
    sandbox->next_upper = -1;
    /* The client first: what was written in the life before is freed by the last who lets go of it. */
    error = replies_rooted(&launcher->replies, sandbox->id, sandbox->sealed_bytes, said);
    close_descriptor(&let_go);
    return error;
}
