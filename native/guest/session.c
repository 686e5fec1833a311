#include "guest/session.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static void advance(struct guest *guest, struct session *session);

static void command_free(struct guest *guest, struct command *command)
{
    timer_clear(guest, &command->unrun);
    free(command);
}

static void dequeue(struct session *session, struct command *command)
{
    struct command **at = &session->first;

    while (*at != command)
        at = &(*at)->next;
    *at = command->next;
    if (command->next == NULL)
        session->last = at;
}

/* The first command has ended. `own`: it left something running. `lost`: the shell ended with it. */
static void conclude(struct guest *guest, struct session *session, struct wire_ended record, bool own, bool lost)
{
    struct action *action = session->first->action;

    record.guest_ns = now_ns() - session->began_ns;
    record.flags |= session->replaced || lost ? ENDED_SESSION_REPLACED : 0;
    session->replaced = false;
    session->loss_told = lost;
    session->state = SESSION_ENDING;
    action_ended(guest, action, &record, !own);
    action_empty(guest, action);
}

/* It was never given to a shell. */
static void never_ran(struct guest *guest, struct session *session, int code, const char *why)
{
    struct action *action = session->first->action;

    link_send(guest, WIRE_OUTPUT, WIRE_STDERR, action->id, why, strlen(why));
    conclude(guest, session, (struct wire_ended){.flags = ENDED_HAS_CODE, .exit_code = code}, false, false);
}

/* No shell could be started for it. */
static void refuse(struct guest *guest, struct session *session, int error)
{
    struct command *command = session->first;

    dequeue(session, command);
    command->action->own = NULL;
    action_failed(guest, command->action, error);
    command_free(guest, command);
    advance(guest, session);
}

/* What the shell prints is the first command's from now on. */
static void lend(struct guest *guest, struct session *session)
{
    for (int i = 0; i < 2; i++) {
        struct output *output = &session->first->action->output[i];

        output->borrowed = true;
        output_open(guest, output, session->shell->pipes[i].fd);
    }
}

/* Gives the first command to the shell, which is waiting for it. */
static void give(struct guest *guest, struct session *session)
{
    struct action *action = session->first->action;
    struct shell *shell = session->shell;

    if (session->earlier_count > 0) {
        session_remember_left(guest, session); /* those may have started others since */
        shell_discard(guest, shell, false);
    }
    lend(guest, session);
    if (action->request.timeout_ns > 0)
        timer_set(guest, &action->deadline, now_ns() + action->request.timeout_ns);
    session->began_ns = now_ns();
    session->state = SESSION_RUNNING;
    if (action->request.flags & WIRE_FLAG_STARTED)
        link_send(guest, WIRE_STARTED, 0, action->id, NULL, 0);
    if (shell_command(guest, shell, action->request.script, action->request.flags & WIRE_FLAG_MERGE) < 0)
        never_ran(guest, session, 126, "excise: no memory for this command\n");
}

/* Begins the first command, or starts the shell it needs. */
static void advance(struct guest *guest, struct session *session)
{
    int error, program;

    if (session->first == NULL || session->first->unrun.at_ns != 0 || session->state != SESSION_IDLE)
        return;
    if (session->shell != NULL) {
        if (session->shell->state == SHELL_READY)
            give(guest, session);
        return;
    }
    session->began_ns = now_ns();
    if ((program = shell_program(guest, &guest->sessions->program)) < 0) {
        never_ran(guest, session, 127, "excise: a session needs bash in the image\n");
        return;
    }
    session->shell = shell_start(guest, session, session->first->action, program, &error);
    if (session->shell == NULL) {
        refuse(guest, session, -error);
        return;
    }
    session->shell->next = guest->sessions->shells;
    guest->sessions->shells = session->shell;
}

void session_ready(struct guest *guest, struct session *session)
{
    shell_discard(guest, session->shell, false); /* its complaint that it has no terminal */
    advance(guest, session);
}

void session_status(struct guest *guest, struct session *session)
{
    if (session->state == SESSION_RUNNING) {
        bool own = session_remember_left(guest, session);

        conclude(guest, session, (struct wire_ended){.flags = ENDED_HAS_CODE, .exit_code = session->shell->status.code}, own, false);
    } else if (session->state == SESSION_INTERRUPTING) {
        session_clear(guest, session);
    }
}

static struct shell **place_of(struct guest *guest, const struct shell *shell)
{
    struct shell **at = &guest->sessions->shells;

    while (*at != shell)
        at = &(*at)->next;
    return at;
}

/* The dead shell is the session's no more; what it left may go on printing. */
static void retire(struct guest *guest, struct session *session)
{
    struct shell *shell = session->shell;

    session->replaced |= shell->greeted && !session->loss_told;
    session->loss_told = false;
    session->shell = NULL;
    shell->session = NULL;
    free(session->earlier); /* below another runner than the next shell's: out of its reach */
    session->earlier = NULL;
    session->earlier_count = 0;
    if (shell->emptied)
        shell_bury(guest, place_of(guest, shell));
    else
        shell_discard(guest, shell, true);
}

static struct wire_ended record_of(const struct program_end *end)
{
    if (WIFEXITED(end->status))
        return (struct wire_ended){.flags = ENDED_HAS_CODE, .exit_code = WEXITSTATUS(end->status)};
    return (struct wire_ended){.end = END_SIGNALED, .signal = WTERMSIG(end->status)};
}

/* The shell never came to be. What it said is its first command's: that its user is unknown, for one. */
static void stillborn(struct guest *guest, struct session *session)
{
    if (session->shell->end.error != 0) {
        int error = session->shell->end.error;

        retire(guest, session);
        refuse(guest, session, error);
        return;
    }
    lend(guest, session);
    conclude(guest, session, record_of(&session->shell->end), false, false);
}

/* The shell ended while its command ran; it may have told the status before. */
static void ended_running(struct guest *guest, struct session *session)
{
    struct shell *shell = session->shell;
    bool own = session_remember_left(guest, session);

    shell_listen(shell);
    if (shell->status.told)
        conclude(guest, session, (struct wire_ended){.flags = ENDED_HAS_CODE, .exit_code = shell->status.code}, own, false);
    else
        conclude(guest, session, record_of(&shell->end), own, true);
}

void session_shell_ended(struct guest *guest, struct session *session)
{
    switch (session->state) {
    case SESSION_IDLE:
        if (session->first != NULL && !session->shell->greeted) {
            stillborn(guest, session);
            return;
        }
        retire(guest, session);
        advance(guest, session);
        return;
    case SESSION_RUNNING:
        ended_running(guest, session);
        return;
    case SESSION_INTERRUPTING:
        session_clear(guest, session);
        return;
    case SESSION_CLEARING:
        session_killed(guest, session);
        return;
    case SESSION_ENDING: /* told() sees it */
        return;
    }
}

void session_shell_emptied(struct guest *guest, struct shell *shell)
{
    struct session *session = shell->session;

    if (session == NULL) {
        shell_bury(guest, place_of(guest, shell));
    } else if (session->state == SESSION_CLEARING) {
        kill_cancel(guest, &session->kill); /* its runner may soon be another's */
        session->cleared = true;
        session_killed(guest, session);
    }
}

void session_killed(struct guest *guest, struct session *session)
{
    struct shell *shell = session->shell;
    bool dead = shell->state == SHELL_ENDED;

    if (session->cleared && (dead || shell->status.told))
        conclude(guest, session, (struct wire_ended){.signal = SIGKILL}, false, dead && shell->greeted);
}

/* ENDED was sent: the session goes on. */
static void told(struct guest *guest, struct action *action)
{
    struct command *command = action->own;
    struct session *session;
    bool ran;

    if (command == NULL)
        return;
    session = command->session;
    ran = session->first == command && session->state == SESSION_ENDING;
    for (int i = 0; i < 2; i++)
        output_close(guest, &action->output[i]);
    dequeue(session, command);
    command_free(guest, command);
    action->own = NULL;
    if (ran)
        session->state = SESSION_IDLE;
    if (ran && session->shell != NULL && action->killing)
        shell_discard(guest, session->shell, false); /* who asked for its end did not wait for this */
    if (ran && session->shell != NULL && session->shell->state == SHELL_ENDED)
        retire(guest, session);
    else if (ran && session->earlier_count > 0)
        shell_discard(guest, session->shell, true);
    advance(guest, session);
}

static struct session *session_named(struct guest *guest, const char *name)
{
    struct session *session;

    if (guest->sessions == NULL) {
        if ((guest->sessions = calloc(1, sizeof *guest->sessions)) == NULL)
            return NULL;
        guest->sessions->program = -1;
    }
    for (session = guest->sessions->all; session != NULL; session = session->next) {
        if (strcmp(session->name, name) == 0)
            return session;
    }
    session = calloc(1, sizeof *session);
    if (session == NULL || (session->name = strdup(name)) == NULL) {
        free(session);
        return NULL;
    }
    session->last = &session->first;
    session->next = guest->sessions->all;
    return guest->sessions->all = session;
}

static int begin(struct guest *guest, struct action *action)
{
    struct session *session;
    struct command *command;

    /* A session has no terminal, and its commands no stdin. */
    if (action->request.script == NULL || (action->request.flags & (WIRE_FLAG_PTY | WIRE_FLAG_STDIN)) != 0)
        return -EINVAL;
    if ((session = session_named(guest, action->request.session)) == NULL || (command = calloc(1, sizeof *command)) == NULL)
        return -ENOMEM;
    *command = (struct command){.action = action, .session = session};
    action->own = command;
    *session->last = command;
    session->last = &command->next;
    if (session->first == command)
        advance(guest, session);
    else
        timer_clear(guest, &action->deadline); /* its time begins with its turn */
    return 0;
}

void session_greeting(struct guest *guest, struct session *session)
{
    if (session->first != NULL && session->first->action->killing)
        session_clear(guest, session);
}

static void no_signal(struct guest *guest, struct action *action, int number)
{
    (void)guest;
    (void)action;
    (void)number;
}

static void no_resize(struct guest *guest, struct action *action, uint32_t rows, uint32_t columns)
{
    (void)guest;
    (void)action;
    (void)rows;
    (void)columns;
}

void sessions_forget(struct guest *guest)
{
    struct sessions *sessions = guest->sessions;

    while (sessions != NULL && sessions->all != NULL) {
        struct session *session = sessions->all;

        sessions->all = session->next;
        for (int i = 0; session->first != NULL && i < 2; i++)
            output_close(guest, &session->first->action->output[i]); /* borrowed from a shell that is gone */
        while (session->first != NULL) {
            struct command *command = session->first;

            session->first = command->next;
            command_free(guest, command);
        }
        timer_clear(guest, &session->patience);
        kill_cancel(guest, &session->kill);
        free(session->earlier);
        free(session->name);
        free(session);
    }
    while (sessions != NULL && sessions->shells != NULL)
        shell_bury(guest, &sessions->shells);
}

const struct action_kind session_kind = {.begin = begin, .kill = session_kill, .signal = no_signal, .resize = no_resize, .told = told};
