#include "guest/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct action **bucket(struct guest *guest, uint32_t id)
{
    return &guest->actions[id % ACTION_BUCKETS];
}

struct action *action_find(struct guest *guest, uint32_t id)
{
    struct action *action = *bucket(guest, id);

    while (action != NULL && action->id != id)
        action = action->next;
    return action;
}

/* Its descriptors and memory go at the end of the turn, after the host has been answered. */
static void forget(struct guest *guest, struct action *action)
{
    struct action **at = bucket(guest, action->id);

    while (*at != action)
        at = &(*at)->next;
    *at = action->next;
    action->next_dead = guest->dead;
    guest->dead = action;
    guest->action_count--;
}

static void close_all(struct guest *guest, struct action *action)
{
    for (int i = 0; i < 2; i++)
        output_close(guest, &action->output[i]);
    input_close(guest, &action->input);
    watch_close(guest, &action->connected);
    kill_cancel(guest, &action->kill);
    timer_clear(guest, &action->deadline);
    timer_clear(guest, &action->listen);
}

void actions_bury(struct guest *guest)
{
    for (struct action *action = guest->dead; action != NULL; action = action->next_dead)
        close_all(guest, action);
    /* Runners share our memory: one that a reset has not killed yet may be about to start what the request says. */
    while (guest->dead != NULL && !guest->resetting) {
        struct action *action = guest->dead;

        guest->dead = action->next_dead;
        request_free(&action->request);
        free(action);
    }
}

void actions_forget(struct guest *guest)
{
    for (size_t i = 0; i < ACTION_BUCKETS; i++) {
        while (guest->actions[i] != NULL)
            forget(guest, guest->actions[i]);
    }
    memset(guest->outcomes, 0, sizeof guest->outcomes);
    actions_bury(guest);
}

void actions_resume(struct guest *guest)
{
    for (size_t i = 0; i < ACTION_BUCKETS; i++) {
        for (struct action *action = guest->actions[i], *next; action != NULL; action = next) {
            next = action->next;
            output_resume(guest, &action->output[0]);
            output_resume(guest, &action->output[1]);
        }
    }
}

static void settle(struct guest *guest, struct action *action, bool succeeded)
{
    struct action *follower = action->follower;

    guest->outcomes[action->id % ACTIONS_MAX] = (struct outcome){.id = action->id, .succeeded = succeeded};
    action->follower = NULL;
    if (follower != NULL)
        action_follow(guest, follower, succeeded);
}

/* ENDED, and what comes after it. */
static void tell_end(struct guest *guest, struct action *action)
{
    struct wire_ended *record = &action->record;
    bool succeeded = record->end == END_EXITED && record->exit_code == 0 && record->error == 0;

    action->state = ACTION_ENDED;
    if (!action->empty)
        record->flags |= ENDED_STILL_RUNNING;
    link_send(guest, WIRE_ENDED, 0, action->id, record, sizeof *record);
    if (action->kind->told != NULL)
        action->kind->told(guest, action);
    if (action->empty) {
        if (action->answer_kill)
            link_send(guest, WIRE_KILLED, 0, action->id, NULL, 0);
        forget(guest, action);
    } else {
        for (int i = 0; i < 2; i++)
            output_discard(guest, &action->output[i]);
        input_close(guest, &action->input);
    }
    settle(guest, action, succeeded);
}

/* Sends what is in the pipes; ENDED once all of it has gone. Who asked for a kill does not wait for bytes that nobody takes. */
static void finish(struct guest *guest, struct action *action)
{
    bool sent = output_finish(guest, &action->output[0]);

    sent = output_finish(guest, &action->output[1]) && sent;
    if (sent || action->answer_kill)
        tell_end(guest, action);
}

void action_sent(struct guest *guest, struct action *action)
{
    bool held = action->killing && !action->empty;

    if (action->state == ACTION_ENDING && !held && output_finished(&action->output[0]) && output_finished(&action->output[1]))
        tell_end(guest, action);
}

void action_ended(struct guest *guest, struct action *action, const struct wire_ended *record, bool alone)
{
    if (action->state != ACTION_RUNNING)
        return;
    timer_clear(guest, &action->deadline);
    timer_clear(guest, &action->listen);
    action->state = ACTION_ENDING;
    action->record = *record;
    action->empty = alone;
    if (action->killing) {
        action->record.end = action->kill_end;
        action->record.flags &= (uint8_t)~ENDED_HAS_CODE;
        /* Its end is told when all it started is dead. */
        if (!alone)
            return;
    } else {
        limits_judge(guest->config, &action->counts, &action->record);
    }
    finish(guest, action);
}

void action_empty(struct guest *guest, struct action *action)
{
    bool was = action->empty;

    action->empty = true;
    kill_cancel(guest, &action->kill);
    if (action->state == ACTION_ENDING && action->killing && !was) {
        finish(guest, action);
    } else if (action->state == ACTION_ENDED && !was) {
        if (action->answer_kill)
            link_send(guest, WIRE_KILLED, 0, action->id, NULL, 0);
        forget(guest, action);
    }
}

void action_failed(struct guest *guest, struct action *action, int error)
{
    int end = limits_refused(guest->config, error);
    const char *why = strerrordesc_np(error);

    timer_clear(guest, &action->deadline);
    action->empty = true;
    action->record = (struct wire_ended){.end = action->killing ? action->kill_end : (uint8_t)end};
    if (end >= 0 || action->killing) {
        tell_end(guest, action);
        return;
    }
    action->state = ACTION_ENDED;
    link_refuse(guest, action->id, why == NULL ? "it could not be started" : why, error);
    if (action->answer_kill)
        link_send(guest, WIRE_KILLED, 0, action->id, NULL, 0);
    forget(guest, action);
    settle(guest, action, false);
}

static void too_late(struct guest *guest, struct timer *timer)
{
    action_kill(guest, (struct action *)((char *)timer - offsetof(struct action, deadline)), END_TIMED_OUT);
}

static void begin(struct guest *guest, struct action *action)
{
    int result;

    action->state = ACTION_RUNNING;
    action->deadline.expired = too_late;
    if (action->request.timeout_ns > 0)
        timer_set(guest, &action->deadline, now_ns() + action->request.timeout_ns);
    action->counts = limits_count(guest->config); /* first: it may have met its limit before we look again */
    result = action->kind->begin(guest, action);
    if (result < 0)
        action_failed(guest, action, -result);
}

void action_follow(struct guest *guest, struct action *action, bool succeeded)
{
    if (succeeded || !(action->request.flags & WIRE_FLAG_STOP)) {
        begin(guest, action);
        return;
    }
    action->record = (struct wire_ended){.end = END_SKIPPED};
    action->empty = true;
    tell_end(guest, action);
}

void action_kill(struct guest *guest, struct action *action, uint8_t end)
{
    bool first = !action->killing;

    action->answer_kill |= end == END_KILLED;
    action->killing = true;
    if (first)
        action->kill_end = end;
    switch (action->state) {
    case ACTION_WAITING:
        action_unfollow(guest, action);
        action->record = (struct wire_ended){.end = END_KILLED, .signal = 9};
        action->empty = true;
        tell_end(guest, action);
        break;
    case ACTION_ENDING:
        if (first && !action->empty)
            action->kind->kill(guest, action);
        else if (action->empty)
            tell_end(guest, action);
        break;
    case ACTION_RUNNING:
    case ACTION_ENDED:
        if (first)
            action->kind->kill(guest, action);
        break;
    }
}

static void output_prepare(struct action *action, int index)
{
    action->output[index] = (struct output){
        .watch.fd = -1,
        .action = action,
        .number = (uint8_t)(index + 1),
        .terminal = (action->request.flags & WIRE_FLAG_PTY) != 0,
        .credit = action->request.window,
    };
}

/* The one before it: the action with the id before its own, which may have ended. 0, or -ENOENT if there never was one. */
static int wait_turn(struct guest *guest, struct action *action)
{
    const struct outcome *outcome = &guest->outcomes[(action->id - 1) % ACTIONS_MAX];
    struct action *before = action_find(guest, action->id - 1);

    if (before != NULL && before->state != ACTION_ENDED) {
        before->follower = action;
        return 0;
    }
    if (outcome->id != action->id - 1)
        return -ENOENT;
    action_follow(guest, action, outcome->succeeded);
    return 0;
}

/* Undoes wait_turn(). */
void action_unfollow(struct guest *guest, struct action *action)
{
    struct action *before = action_find(guest, action->id - 1);

    if (before != NULL && before->follower == action)
        before->follower = NULL;
}

void action_take(struct guest *guest, uint32_t id, const struct request *request, const struct action_kind *kind)
{
    struct action *action = calloc(1, sizeof *action);

    if (action == NULL)
        link_broken(guest, "no memory for an action");
    action->id = id;
    action->request = *request;
    action->kind = kind;
    output_prepare(action, 0);
    output_prepare(action, 1);
    action->input = (struct input){
        .watch.fd = -1,
        .action = action,
        .terminal = (request->flags & WIRE_FLAG_PTY) != 0,
        .gone = (request->flags & (WIRE_FLAG_STDIN | WIRE_FLAG_PTY)) == 0,
        .credit = WIRE_WINDOW,
    };
    action->connected.fd = -1;
    action->next = *bucket(guest, id);
    *bucket(guest, id) = action;
    guest->action_count++;
    if (!(request->flags & WIRE_FLAG_CHAIN))
        begin(guest, action);
    else if (wait_turn(guest, action) < 0)
        action_failed(guest, action, ENOENT);
}
