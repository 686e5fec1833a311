/* Reads frames from stdin and says in words what is in them, by the guest's own headers and parser; "entries" reads a LIST's answer instead. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fields.h"
#include "common/wire.h"

static void print_hex(const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        printf("%02x", (unsigned char)bytes[i]);
    putchar('\n');
}

static int print_fields(const char *payload, size_t length)
{
    struct fields fields = fields_of(payload, length);
    struct field field;
    int more;

    while ((more = fields_next(&fields, &field)) > 0) {
        printf("  tag %u: ", field.tag);
        print_hex(field.bytes, field.length);
    }
    return more;
}

static void print_ended(const char *payload)
{
    struct wire_ended ended;

    memcpy(&ended, payload, sizeof ended);
    printf("  end %u flags %u code %d signal %d error %d guest_ns %" PRIu64 " cpu_ns %" PRIu64 " max_rss_bytes %" PRIu64 "\n", ended.end, ended.flags,
           ended.exit_code, ended.signal, ended.error, ended.guest_ns, ended.cpu_ns, ended.max_rss_bytes);
}

static void print_numbers(const char *payload, size_t length)
{
    uint32_t number;

    for (size_t at = 0; at + sizeof number <= length; at += sizeof number) {
        memcpy(&number, payload + at, sizeof number);
        printf("  number %" PRIu32 "\n", number);
    }
}

static int print_payload(const struct wire_header *header, const char *payload)
{
    switch (header->type) {
    case WIRE_HELLO:
    case WIRE_RUN:
    case WIRE_FILE:
    case WIRE_REFUSED:
        return print_fields(payload, header->length);
    case WIRE_CREDIT:
    case WIRE_RESIZE:
    case WIRE_SIGNAL:
        print_numbers(payload, header->length);
        return 0;
    case WIRE_ENDED:
        print_ended(payload);
        return 0;
    default:
        if (header->length) {
            printf("  bytes ");
            print_hex(payload, header->length);
        }
        return 0;
    }
}

static int print_frames(const char *at, size_t left)
{
    struct wire_header header;

    while (left >= sizeof header) {
        memcpy(&header, at, sizeof header);
        if (header.zero || header.length > left - sizeof header)
            return -1;
        printf("type %u action %" PRIu32 " epoch %" PRIu32 " flags %u\n", header.type, header.id, header.epoch, header.flags);
        if (print_payload(&header, at + sizeof header) < 0)
            return -1;
        at += sizeof header + header.length;
        left -= sizeof header + header.length;
    }
    return left ? -1 : 0;
}

static int print_entries(const char *at, size_t left)
{
    struct wire_entry entry;

    while (left >= sizeof entry) {
        memcpy(&entry, at, sizeof entry);
        at += sizeof entry;
        left -= sizeof entry;
        if ((size_t)entry.name_bytes + entry.target_bytes > left)
            return -1;
        printf("%.*s -> %.*s kind %u mode %o uid %u gid %u size_bytes %" PRIu64 " mtime_ns %" PRId64 "\n", (int)entry.name_bytes, at,
               (int)entry.target_bytes, at + entry.name_bytes, entry.kind, entry.mode, entry.uid, entry.gid, entry.size_bytes, entry.mtime_ns);
        at += entry.name_bytes + entry.target_bytes;
        left -= (size_t)entry.name_bytes + entry.target_bytes;
    }
    return left ? -1 : 0;
}

int main(int argc, char **argv)
{
    static char input[1 << 20];
    size_t length = fread(input, 1, sizeof input, stdin);
    int entries = argc > 1 && !strcmp(argv[1], "entries");

    return (entries ? print_entries(input, length) : print_frames(input, length)) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
