/* Sessions: each a shell that stays, and its commands in order. */
#ifndef EXCISE_GUEST_SESSION_H
#define EXCISE_GUEST_SESSION_H

#include "guest/internal.h"
#include "guest/shell.h"

struct command {
    struct action *action;
    struct session *session;
    struct command *next;
    struct timer unrun; /* it was killed before it began, and ends from the loop */
};

enum session_state {
    SESSION_IDLE,         /* the first command, if any, waits for the shell */
    SESSION_RUNNING,
    SESSION_INTERRUPTING, /* the first command is to end: SIGINT, then SIGKILL to what it started */
    SESSION_CLEARING,     /* its shell is back, or dead; what is left of the command is being killed */
    SESSION_ENDING,       /* its output is being sent */
};

struct session {
    char *name;
    enum session_state state;
    struct shell *shell;    /* NULL: none yet, or none any more */
    struct command *first, **last;
    bool replaced;          /* a shell was lost, and nobody has been told */
    bool loss_told;         /* the loss of this one has been */
    bool cleared;           /* SESSION_CLEARING: nothing of the command is left */
    uint64_t began_ns;
    struct spare *earlier;  /* what earlier commands left running */
    size_t earlier_count;
    struct timer patience;
    struct kill kill;
    unsigned round;
    struct session *next;
};

struct sessions {
    struct session *all;
    struct shell *shells; /* also those that were replaced */
    int program;          /* our own copy of bash; -1: none */
};

/* shell.c says: it has begun, waits for its first command, has told a status, has ended, nothing is left of it. */
void session_greeting(struct guest *guest, struct session *session);
void session_ready(struct guest *guest, struct session *session);
void session_status(struct guest *guest, struct session *session);
void session_shell_ended(struct guest *guest, struct session *session);
void session_shell_emptied(struct guest *guest, struct shell *shell);

/* session_kill.c: ends a command and keeps the shell, if it can. */
void session_kill(struct guest *guest, struct action *action);
/* Kills what is left of the first command; the shell too, unless it has answered. */
void session_clear(struct guest *guest, struct session *session);
/* It says: something is done. The command ends if nothing of it is left and its shell is back, or dead. */
void session_killed(struct guest *guest, struct session *session);

/* What runs now is from now on an earlier command's. True if some of it is the last command's own. */
bool session_remember_left(struct guest *guest, struct session *session);

#endif
