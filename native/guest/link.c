#include "guest/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/fields.h"
#include "guest/serve.h"

/* Untouched pages cost nothing: both buffers have their full size from the beginning. */
static char *reserve(size_t length)
{
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

void link_broken(struct guest *guest, const char *why)
{
    static const char prefix[] = "excise-guest: ";

    /* What the host was told before this is worth more than an orderly end. */
    if (write(STDERR_FILENO, prefix, sizeof prefix - 1) > 0 && write(STDERR_FILENO, why, strlen(why)) > 0)
        (void)!write(STDERR_FILENO, "\n", 1);
    guest_exit(guest, 1);
}

static size_t queued(const struct link *link)
{
    return link->queue_end - link->queue_begin;
}

char *link_room(struct guest *guest, size_t length)
{
    struct link *link = &guest->link;

    if (link->queue_begin == link->queue_end)
        link->queue_begin = link->queue_end = 0;
    if (LINK_OUT_BYTES - link->queue_end < WIRE_HEADER_BYTES + length && link->queue_begin > 0) {
        memmove(link->queue, link->queue + link->queue_begin, queued(link));
        link->queue_end -= link->queue_begin;
        link->queue_begin = 0;
    }
    if (LINK_OUT_BYTES - link->queue_end < WIRE_HEADER_BYTES + length)
        return NULL;
    return link->queue + link->queue_end + WIRE_HEADER_BYTES;
}

void link_put(struct guest *guest, uint8_t type, uint8_t flags, uint32_t id, size_t length)
{
    struct link *link = &guest->link;
    struct wire_header header = {.length = (uint32_t)length, .id = id, .epoch = link->epoch, .type = type, .flags = flags};

    memcpy(link->queue + link->queue_end, &header, sizeof header);
    link->queue_end += sizeof header + length;
}

void link_send(struct guest *guest, uint8_t type, uint8_t flags, uint32_t id, const void *payload, size_t length)
{
    char *room = link_room(guest, length);

    if (room == NULL)
        link_broken(guest, "the host does not read what it asked for");
    if (length > 0)
        memcpy(room, payload, length);
    link_put(guest, type, flags, id, length);
}

void link_refuse(struct guest *guest, uint32_t id, const char *message, int error)
{
    char payload[256];
    size_t used = 0;

    fields_put(payload, sizeof payload, &used, TAG_MESSAGE, message, strnlen(message, sizeof payload / 2));
    if (error != 0)
        fields_put_number(payload, sizeof payload, &used, TAG_ERRNO, (uint64_t)error);
    link_send(guest, WIRE_REFUSED, 0, id, payload, used);
}

bool link_crowded(const struct guest *guest)
{
    return queued(&guest->link) > LINK_OUTPUT_MARK;
}

static void set_reading(struct guest *guest)
{
    bool read = !guest->resetting && queued(&guest->link) <= LINK_ANSWER_MARK;

    watch_set(guest, &guest->link.in, read ? EPOLLIN : 0);
}

static void send_queued(struct guest *guest)
{
    struct link *link = &guest->link;

    while (queued(link) > 0) {
        ssize_t sent = write(link->out.fd, link->queue + link->queue_begin, queued(link));

        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            guest_exit(guest, 0);
        link->queue_begin += (size_t)sent;
    }
    watch_set(guest, &link->out, queued(link) > 0 ? EPOLLOUT : 0);
}

/* Lets outputs go on that stood still. True if they had something to send. */
static bool resume(struct guest *guest)
{
    struct link *link = &guest->link;

    if (!link->stalled || queued(link) > 0)
        return false;
    link->stalled = false;
    actions_resume(guest);
    return queued(link) > 0;
}

void link_flush(struct guest *guest)
{
    do
        send_queued(guest);
    while (resume(guest)); /* what they send now nobody would else: the loop sleeps next */
    set_reading(guest);
}

static void writable(struct guest *guest, struct watch *watch, uint32_t events)
{
    (void)watch;
    (void)events;
    link_flush(guest);
}

static struct assembly **find_assembly(struct link *link, uint32_t id)
{
    struct assembly **at = &link->assemblies;

    while (*at != NULL && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

void link_forget(struct guest *guest)
{
    struct link *link = &guest->link;

    while (link->assemblies != NULL) {
        struct assembly *first = link->assemblies;

        link->assemblies = first->next;
        free(first->bytes);
        free(first);
    }
    link->assembled = 0;
}

void link_wipe(struct guest *guest)
{
    struct link *link = &guest->link;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (link->received_end + page - 1) / page * page;

    if (used < LINK_IN_BYTES)
        madvise(link->received + used, LINK_IN_BYTES - used, MADV_DONTNEED);
    if (queued(link) == 0)
        madvise(link->queue, LINK_OUT_BYTES, MADV_DONTNEED);
}

/* Adds a frame to the request it belongs to. 0 or -errno. */
static int assemble(struct link *link, struct assembly **at, const struct wire_header *header, const char *payload)
{
    struct assembly *whole = *at;
    char *bytes;

    if (link->assembled + header->length > WIRE_MAX_REQUEST)
        return -EMSGSIZE;
    if (whole == NULL) {
        whole = *at = calloc(1, sizeof *whole);
        if (whole == NULL)
            return -ENOMEM;
        whole->id = header->id;
        whole->type = header->type;
    }
    if (whole->type != header->type)
        return -EPROTO;
    bytes = realloc(whole->bytes, whole->length + header->length + 1);
    if (bytes == NULL)
        return -ENOMEM;
    whole->bytes = bytes;
    memcpy(bytes + whole->length, payload, header->length);
    whole->length += header->length;
    link->assembled += header->length;
    return 0;
}

/* A request, or a piece of one. */
static void take_request(struct guest *guest, const struct wire_header *header, const char *payload)
{
    struct link *link = &guest->link;
    struct assembly **at = find_assembly(link, header->id), *whole;

    if (*at == NULL && !(header->flags & WIRE_FLAG_MORE)) {
        serve_request(guest, header, payload, header->length);
        return;
    }
    if (assemble(link, at, header, payload) < 0)
        link_broken(guest, "a request is larger than any may be");
    if (header->flags & WIRE_FLAG_MORE)
        return;
    whole = *at;
    *at = whole->next;
    link->assembled -= whole->length;
    serve_request(guest, header, whole->bytes, whole->length);
    free(whole->bytes);
    free(whole);
}

static void take_frame(struct guest *guest, const struct wire_header *header, const char *payload)
{
    struct link *link = &guest->link;

    if (header->type != WIRE_HELLO && (!link->greeted || header->epoch != link->epoch))
        return;
    if (header->type == WIRE_RUN || header->type == WIRE_FILE || header->type == WIRE_HELLO)
        take_request(guest, header, payload);
    else
        serve_frame(guest, header, payload);
}

/* Serves every whole frame that has come; what is left of one waits for its rest. */
void link_serve(struct guest *guest)
{
    struct link *link = &guest->link;
    size_t at = 0;

    link->held = false;
    while (link->received_end - at >= WIRE_HEADER_BYTES) {
        struct wire_header header;

        if (guest->resetting || queued(link) > LINK_ANSWER_MARK) {
            link->held = true;
            break;
        }
        memcpy(&header, link->received + at, sizeof header);
        if (header.length > WIRE_MAX_PAYLOAD || header.zero != 0)
            link_broken(guest, "the host sent no frame");
        if (link->received_end - at - WIRE_HEADER_BYTES < header.length)
            break;
        take_frame(guest, &header, link->received + at + WIRE_HEADER_BYTES);
        at += WIRE_HEADER_BYTES + header.length;
    }
    if (at > 0) {
        memmove(link->received, link->received + at, link->received_end - at);
        link->received_end -= at;
    }
}

static void readable(struct guest *guest, struct watch *watch, uint32_t events)
{
    struct link *link = &guest->link;
    ssize_t got;

    (void)events;
    /* Frames that wait because the queue was long leave no room when they fill the buffer: serve them first. */
    link_serve(guest);
    if (link->received_end == LINK_IN_BYTES || guest->resetting)
        return;
    got = read(watch->fd, link->received + link->received_end, LINK_IN_BYTES - link->received_end);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0)
        guest_exit(guest, 0);
    link->received_end += (size_t)got;
    link_serve(guest);
}

static int prepare(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return -errno;
    return 0;
}

int link_open(struct guest *guest)
{
    struct link *link = &guest->link;
    int out = guest->config->link_out, result;

    /* epoll knows a descriptor once: reading and writing are two watches. */
    if (out == guest->config->link_in && (out = fcntl(out, F_DUPFD_CLOEXEC, 3)) < 0)
        return -errno;
    link->in = (struct watch){.fd = guest->config->link_in, .ready = readable};
    link->out = (struct watch){.fd = out, .ready = writable};
    link->received = reserve(LINK_IN_BYTES);
    link->queue = reserve(LINK_OUT_BYTES);
    if (link->received == NULL || link->queue == NULL)
        return -ENOMEM;
    if ((result = prepare(link->in.fd)) < 0 || (result = prepare(link->out.fd)) < 0)
        return result;
    return watch_set(guest, &link->in, EPOLLIN);
}
