/* Bytes made up by the fuzzer as the host's side of the link, in pieces of any size; the frames' payloads are read as requests are. */
#include "common/fields.h"
#include "guest/internal.h"
#include "guest/serve.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static jmp_buf exited;
static uint64_t sum;

void guest_exit(struct guest *guest, int status)
{
    (void)guest;
    longjmp(exited, status + 1);
}

int watch_set(struct guest *guest, struct watch *watch, uint32_t events)
{
    (void)guest;
    (void)watch;
    (void)events;
    return 0;
}

void actions_resume(struct guest *guest)
{
    (void)guest;
}

void serve_request(struct guest *guest, const struct wire_header *header, const char *payload, size_t length)
{
    struct fields fields = fields_of(payload, length);
    struct field field;
    int more;

    while ((more = fields_next(&fields, &field)) == 1)
        for (uint32_t i = 0; i < field.length; i++)
            sum += (unsigned char)field.bytes[i];
    if (more < 0)
        link_refuse(guest, header->id, "the request is malformed");
}

void serve_frame(struct guest *guest, const struct wire_header *header, const char *payload)
{
    for (uint32_t i = 0; i < header->length; i++)
        sum += (unsigned char)payload[i];
    if (header->type == WIRE_HELLO) {
        link_forget(guest);
        guest->link.greeted = true;
        guest->link.epoch = header->epoch;
    }
}

/* As much of the input as fits, at most as much as its first byte says. */
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct guest guest;
    size_t piece = size > 0 ? 1 + (size_t)data[0] * 16 : 1, got;

    memset(&guest, 0, sizeof guest);
    /* Exactly as large as the guest's own, so that the sanitizer sees the first byte beyond. */
    guest.link.received = malloc(LINK_IN_BYTES);
    guest.link.queue = malloc(LINK_OUT_BYTES);
    if (setjmp(exited) == 0) {
        while (size > 0 && (got = receive(&guest.link, data, size, piece)) > 0) {
            data += got;
            size -= got;
            link_serve(&guest);
            guest.link.queue_begin = guest.link.queue_end; /* the host reads at once */
        }
    }
    link_forget(&guest);
    free(guest.link.received);
    free(guest.link.queue);
    return 0;
}
