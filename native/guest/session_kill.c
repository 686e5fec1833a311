/* Ending a session's command and keeping its shell: as Ctrl-C does first, then SIGKILL for what the command started, with more patience each time. What earlier commands left
 * running, and what that started, is spared. */
#include "guest/session.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t patience_ns[] = {50000000, 100000000, 200000000, 400000000, 800000000};
enum { ROUNDS = sizeof patience_ns / sizeof *patience_ns };

static void nothing_yet(struct guest *guest, struct kill *kill)
{
    (void)guest;
    (void)kill;
}

static void cleared(struct guest *guest, struct kill *kill)
{
    struct session *session = (struct session *)((char *)kill - offsetof(struct session, kill));

    session->cleared = true;
    session_killed(guest, session);
}

void session_clear(struct guest *guest, struct session *session)
{
    const struct shell *shell = session->shell;
    bool keep = shell->state != SHELL_ENDED && session->state == SESSION_INTERRUPTING && shell->status.told;
    struct spare *spare = keep ? calloc(session->earlier_count + 1, sizeof *spare) : NULL;

    session->state = SESSION_CLEARING;
    timer_clear(guest, &session->patience);
    session->cleared = shell_left_nothing(shell);
    if (session->cleared) {
        session_killed(guest, session);
        return;
    }
    if (spare == NULL) {
        kill_begin(guest, &session->kill, runner_pid(shell->runner), session->earlier, session->earlier_count, cleared);
        return;
    }
    if (session->earlier_count > 0)
        memcpy(spare, session->earlier, session->earlier_count * sizeof *spare);
    spare[session->earlier_count] = (struct spare){.pid = shell->pid}; /* itself, and not what is below it */
    kill_begin(guest, &session->kill, runner_pid(shell->runner), spare, session->earlier_count + 1, cleared);
    free(spare);
}

/* A foreground program that dies of SIGINT makes bash drop the rest of the list, as Ctrl-C does. */
static void interrupt_below(struct guest *guest, const struct session *session)
{
    free(pids_below(guest->proc, session->shell->pid, session->earlier, session->earlier_count, SIGINT).pid);
}

/* A shell that is held up by its own output, which the host does not take, would not come back. */
static void unstick(struct guest *guest, struct session *session)
{
    for (int i = 0; i < 2; i++) {
        struct output *output = &session->first->action->output[i];

        if (output->watch.fd < 0 || (output->credit > 0 && !link_crowded(guest)))
            continue;
        output_close(guest, output);
        watch_set(guest, &session->shell->pipes[i], EPOLLIN);
    }
}

static void try(struct guest *guest, struct session *session)
{
    if (session->round == ROUNDS) {
        session_clear(guest, session);
        return;
    }
    if (session->round == 0) {
        interrupt_below(guest, session);
    } else {
        kill_begin(guest, &session->kill, session->shell->pid, session->earlier, session->earlier_count, nothing_yet);
        unstick(guest, session);
    }
    shell_interrupt(guest, session->shell);
    timer_set(guest, &session->patience, now_ns() + patience_ns[session->round++]);
}

static void impatient(struct guest *guest, struct timer *timer)
{
    try(guest, (struct session *)((char *)timer - offsetof(struct session, patience)));
}

static void session_interrupt(struct guest *guest, struct session *session)
{
    session->state = SESSION_INTERRUPTING;
    session->round = 0;
    session->patience.expired = impatient;
    /* One that has not heard the whole command would take the rest of it for commands. */
    if (shell_hearing(session->shell))
        session->round = ROUNDS;
    try(guest, session);
}

static void end_unrun(struct guest *guest, struct timer *timer)
{
    struct action *action = ((struct command *)((char *)timer - offsetof(struct command, unrun)))->action;
    const struct wire_ended record = {.signal = SIGKILL};

    action_ended(guest, action, &record, true);
}

void session_kill(struct guest *guest, struct action *action)
{
    struct command *command = action->own;
    struct session *session;

    if (command == NULL)
        return;
    session = command->session;
    if (command != session->first || session->shell == NULL) {
        command->unrun.expired = end_unrun;
        timer_set(guest, &command->unrun, 1);
    } else if (session->state == SESSION_RUNNING) {
        session_interrupt(guest, session);
    } else if (session->state == SESSION_IDLE && session->shell->state == SHELL_GREETING) {
        session_clear(guest, session);
    }
    /* A shell that is only about to be executed is seen to by session_greeting(). */
}
