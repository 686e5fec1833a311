#include "launch/replies.h"

#include "common/fields.h"
#include "launch/packets.h"
#include "launch/request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPLY_BYTES = 768, REPLY_DESCRIPTORS = 2 };

struct reply {
    struct reply *next;
    size_t length;
    char bytes[REPLY_BYTES];
    int descriptors[REPLY_DESCRIPTORS];
    size_t count;
};

void replies_open(struct replies *replies, int control)
{
    *replies = (struct replies){.control = control};
    replies->last = &replies->first;
}

static void begin(struct reply *reply, uint32_t type, uint32_t id)
{
    struct launch_header header = {.type = type, .id = id};

    reply->next = NULL;
    reply->count = 0;
    reply->length = sizeof header;
    memcpy(reply->bytes, &header, sizeof header);
}

static void put_text(struct reply *reply, uint16_t tag, const char *text)
{
    fields_put(reply->bytes, sizeof reply->bytes, &reply->length, tag, text, strlen(text));
}

static void put_number(struct reply *reply, uint16_t tag, uint64_t number)
{
    fields_put_number(reply->bytes, sizeof reply->bytes, &reply->length, tag, number);
}

static void put_failure(struct reply *reply, const struct failure *failure)
{
    put_text(reply, LAUNCH_STEP, failure->step);
    put_number(reply, LAUNCH_ERRNO, (uint64_t)failure->error);
    put_text(reply, LAUNCH_MESSAGE, strerror(failure->error));
}

static int send_reply(struct replies *replies, struct reply *reply)
{
    int error = packet_send(replies->control, reply->bytes, reply->length, reply->descriptors, reply->count);

    if (error == -EAGAIN)
        return error;
    while (reply->count > 0)
        close(reply->descriptors[--reply->count]);
    return error;
}

/* A copy waits when the socket is full, or when others wait already: the order is kept. */
static int send_or_queue(struct replies *replies, struct reply *reply)
{
    struct reply *copy;
    int error = replies->first ? -EAGAIN : send_reply(replies, reply);

    if (error != -EAGAIN)
        return error;
    copy = malloc(sizeof *copy);
    if (!copy)
        return -ENOMEM;
    *copy = *reply;
    *replies->last = copy;
    replies->last = &copy->next;
    return 0;
}

int replies_flush(struct replies *replies)
{
    while (replies->first) {
        struct reply *reply = replies->first;
        int error = send_reply(replies, reply);

        if (error)
            return error == -EAGAIN ? 1 : error;
        replies->first = reply->next;
        if (!replies->first)
            replies->last = &replies->first;
        free(reply);
    }
    return 0;
}

int replies_hello(struct replies *replies, const struct hello *hello)
{
    struct reply reply;

    begin(&reply, LAUNCH_HELLO, 0);
    put_number(&reply, LAUNCH_USERS, hello->users);
    put_number(&reply, LAUNCH_ROOTLESS, hello->rootless);
    put_number(&reply, LAUNCH_LAYERS, hello->has_layers);
    if (hello->why_one_user[0] != '\0')
        put_text(&reply, LAUNCH_MESSAGE, hello->why_one_user);
    return send_or_queue(replies, &reply);
}

int replies_failed(struct replies *replies, uint32_t id, const struct failure *failure)
{
    struct reply reply;

    begin(&reply, LAUNCH_FAILED, id);
    put_failure(&reply, failure);
    return send_or_queue(replies, &reply);
}

int replies_rooted(struct replies *replies, uint32_t id, uint64_t sealed_bytes, const struct failure *failure)
{
    struct reply reply;

    begin(&reply, LAUNCH_ROOTED, id);
    if (failure->error)
        put_failure(&reply, failure);
    else
        put_number(&reply, LAUNCH_SIZE_BYTES, sealed_bytes);
    return send_or_queue(replies, &reply);
}

int replies_opened(struct replies *replies, uint32_t id, int directory)
{
    struct reply reply;

    begin(&reply, LAUNCH_OPENED, id);
    if (directory < 0)
        put_number(&reply, LAUNCH_ERRNO, (uint64_t)-directory);
    else
        reply.descriptors[reply.count++] = directory;
    return send_or_queue(replies, &reply);
}

int replies_gone(struct replies *replies, uint32_t id)
{
    struct reply reply;

    begin(&reply, LAUNCH_GONE, id);
    return send_or_queue(replies, &reply);
}

int replies_ready(struct replies *replies, uint32_t id, int pidfd, int listener)
{
    struct reply reply;

    begin(&reply, LAUNCH_READY, id);
    reply.descriptors[reply.count++] = pidfd;
    if (listener >= 0)
        reply.descriptors[reply.count++] = listener;
    return send_or_queue(replies, &reply);
}
