#include "guest/serve.h"

#include <errno.h>
#include <string.h>

#include "guest/internal.h"

static void serve_action(struct guest *guest, const struct wire_header *header, const char *payload, size_t length)
{
    struct request request = {.type = header->type, .flags = header->flags};
    const struct action_kind *kind = header->type == WIRE_FILE ? &file_kind : &exec_kind;
    int result;

    if (header->id == 0 || action_find(guest, header->id) != NULL)
        link_broken(guest, "an action's number is 0 or taken");
    if (guest->action_count >= ACTIONS_MAX) {
        link_refuse(guest, header->id, "too many actions are in flight: wait for some to end, or end what they left running", 0);
        return;
    }
    result = request_parse(&request, &guest->defaults, payload, length);
    if (result == -EPROTO)
        link_broken(guest, "a request is malformed");
    if (result < 0) {
        link_refuse(guest, header->id, result == -E2BIG ? "too many variables" : "no memory for the request", result == -E2BIG ? 0 : -result);
        return;
    }
    if (request.session != NULL)
        kind = &session_kind;
    if (kind == &exec_kind && request.argument_count == 0) {
        request_free(&request);
        link_refuse(guest, header->id, "there is no program to run", 0);
        return;
    }
    action_take(guest, header->id, &request, kind);
}

void serve_request(struct guest *guest, const struct wire_header *header, const char *payload, size_t length)
{
    if (header->type == WIRE_HELLO)
        guest_greet(guest, header->epoch, header->flags, payload, length);
    else
        serve_action(guest, header, payload, length);
}

/* The `index`th u32 of a payload that must have `count` of them. */
static uint32_t number(struct guest *guest, const struct wire_header *header, const char *payload, size_t count, size_t index)
{
    uint32_t value;

    if (header->length != count * sizeof value)
        link_broken(guest, "a frame of the wrong length");
    memcpy(&value, payload + index * sizeof value, sizeof value);
    return value;
}

static void serve_credit(struct guest *guest, const struct wire_header *header, struct action *action, uint32_t bytes)
{
    if (header->flags != WIRE_STDOUT && header->flags != WIRE_STDERR)
        link_broken(guest, "credit for no stream");
    if (action != NULL)
        output_credit(guest, &action->output[header->flags - 1], bytes);
}

static void serve_kill(struct guest *guest, struct action *action, uint32_t id)
{
    if (action == NULL)
        link_send(guest, WIRE_KILLED, 0, id, NULL, 0);
    else
        action_kill(guest, action, END_KILLED);
}

static void serve_renewal(struct guest *guest, const struct wire_header *header, const char *payload)
{
    struct wire_renewal renewal;

    if (guest->config->machine == NULL || header->length != sizeof renewal)
        link_broken(guest, "a renewal of what is no machine, or of the wrong length");
    memcpy(&renewal, payload, sizeof renewal);
    if (renew(guest, &renewal) < 0)
        link_broken(guest, "the machine could not be made another one");
    link_send(guest, WIRE_KILLED, 0, header->id, NULL, 0);
}

void serve_frame(struct guest *guest, const struct wire_header *header, const char *payload)
{
    struct action *action = action_find(guest, header->id);
    uint32_t first, second;

    if (header->id == 0)
        link_broken(guest, "a frame for no action");
    switch (header->type) {
    case WIRE_DATA:
        if (action != NULL && input_data(guest, &action->input, payload, header->length) < 0)
            link_broken(guest, "more bytes for an action's stdin than were asked for");
        break;
    case WIRE_EOF:
        if (action != NULL)
            input_end(guest, &action->input);
        break;
    case WIRE_CREDIT:
        first = number(guest, header, payload, 1, 0);
        serve_credit(guest, header, action, first);
        break;
    case WIRE_RESIZE:
        first = number(guest, header, payload, 2, 0);
        second = number(guest, header, payload, 2, 1);
        if (action != NULL && action->state == ACTION_RUNNING)
            action->kind->resize(guest, action, first, second);
        break;
    case WIRE_SIGNAL:
        first = number(guest, header, payload, 1, 0);
        if (action != NULL && action->state == ACTION_RUNNING && first <= 64)
            action->kind->signal(guest, action, (int)first);
        break;
    case WIRE_FREEZE:
        freeze_begin(guest, header->id);
        break;
    case WIRE_THAW:
        freeze_end(guest);
        break;
    case WIRE_RENEW:
        serve_renewal(guest, header, payload);
        break;
    case WIRE_KILL:
        serve_kill(guest, action, header->id);
        break;
    default:
        link_broken(guest, "a frame of no known type");
    }
}
