/* Bytes made up by the fuzzer as the host's side of the link, in pieces of any size, through the guest's own frames and requests. What an action would do is
 * left out: here it only looks at all it was given. */
#include "guest/internal.h"
#include "guest/serve.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const char *__asan_default_options(void);

/* The guest that exits gives back what it has; ours jumps out of the middle. */
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

static jmp_buf exited;
static size_t looked;

void guest_exit(struct guest *guest, int status)
{
    (void)guest;
    longjmp(exited, status + 1);
}

int watch_set(struct guest *guest, struct watch *watch, uint32_t events)
{
    (void)guest;
    watch->events = events;
    return 0;
}

void actions_resume(struct guest *guest)
{
    (void)guest;
}

static void look(const char *text)
{
    looked += text == NULL ? 0 : strlen(text);
}

static void look_at(const struct request *request)
{
    for (size_t i = 0; i < request->argument_count; i++)
        look(request->argv[i]);
    if (request->argv[request->argument_count] != NULL)
        abort();
    for (char **variable = request->environment; *variable != NULL; variable++)
        if (strchr(*variable, '=') == NULL)
            abort();
    look(request->cwd);
    look(request->user);
    look(request->session);
    look(request->script);
    look(request->file.path);
    look(request->file.target);
}

void freeze_begin(struct guest *guest, uint32_t id)
{
    (void)guest;
    (void)id;
}

void freeze_end(struct guest *guest)
{
    (void)guest;
}

int renew(const struct guest *guest, const struct wire_renewal *renewal)
{
    (void)guest;
    (void)renewal;
    return 0;
}

void guest_greet(struct guest *guest, uint32_t epoch, uint8_t flags, const char *payload, size_t length)
{
    (void)flags;
    static const struct defaults none;
    struct defaults *defaults = &guest->defaults;

    request_free(&defaults->request);
    *defaults = none;
    if (request_parse(&defaults->request, &none, payload, length) < 0)
        link_broken(guest, "a malformed greeting");
    defaults->environment = defaults->request.environment;
    while (defaults->environment[defaults->environment_count] != NULL)
        defaults->environment_count++;
    if (guest->link.greeted)
        link_forget(guest);
    guest->link.greeted = true;
    guest->link.epoch = epoch;
}

const struct action_kind exec_kind, file_kind, session_kind;

/* Frames for an even number find an action that waits. */
struct action *action_find(struct guest *guest, uint32_t id)
{
    static struct action action = {.state = ACTION_WAITING};

    (void)guest;
    return id % 2 == 0 ? &action : NULL;
}

void action_take(struct guest *guest, uint32_t id, const struct request *request, const struct action_kind *kind)
{
    struct request own = *request;

    (void)kind;
    look_at(request);
    link_send(guest, WIRE_STARTED, 0, id, NULL, 0);
    request_free(&own);
}

void action_kill(struct guest *guest, struct action *action, uint8_t end)
{
    (void)action;
    link_send(guest, WIRE_KILLED, end, 0, NULL, 0);
}

int input_data(struct guest *guest, struct input *input, const char *bytes, size_t length)
{
    (void)guest;
    (void)input;
    for (size_t i = 0; i < length; i++)
        looked += (unsigned char)bytes[i];
    return 0;
}

void input_end(struct guest *guest, struct input *input)
{
    (void)guest;
    (void)input;
}

void output_credit(struct guest *guest, struct output *output, uint32_t bytes)
{
    (void)guest;
    (void)output;
    looked += bytes;
}

/* As much of the input as fits, at most a piece. */
static size_t receive(struct link *link, const uint8_t *data, size_t size, size_t piece)
{
    size_t room = LINK_IN_BYTES - link->received_end;

    if (piece > size)
        piece = size;
    if (piece > room)
        piece = room;
    memcpy(link->received + link->received_end, data, piece);
    link->received_end += piece;
    return piece;
}

static void feed(struct guest *guest, const uint8_t *data, size_t size)
{
    size_t piece = size > 0 ? 1 + (size_t)data[0] * 16 : 1, got;

    while (size > 0 && (got = receive(&guest->link, data, size, piece)) > 0) {
        data += got;
        size -= got;
        link_serve(guest);
        guest->link.queue_begin = guest->link.queue_end; /* the host reads at once */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct guest_machine machine = {.boot_id = -1};
    static const struct guest_config plain, of_machine = {.machine = &machine};
    static struct guest guest;
    static char *received, *queue;

    if (received == NULL) { /* exactly as large as the guest's own, so that the sanitizer sees the first byte beyond */
        received = malloc(LINK_IN_BYTES);
        queue = malloc(LINK_OUT_BYTES);
    }
    memset(&guest, 0, sizeof guest);
    guest.config = size % 2 == 0 ? &plain : &of_machine;
    guest.link.received = received;
    guest.link.queue = queue;
    if (setjmp(exited) == 0)
        feed(&guest, data, size);
    link_forget(&guest);
    request_free(&guest.defaults.request);
    return 0;
}
