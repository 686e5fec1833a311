/* Fields of a request: u16 tag, u16 zero, u32 length, bytes; little-endian, one after another. */
#ifndef EXCISE_FIELDS_H
#define EXCISE_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct field {
    uint16_t tag;
    uint32_t length;
    const char *bytes; /* into the payload; not terminated */
};

struct fields {
    const char *at;
    const char *end;
};

struct fields fields_of(const void *payload, size_t length);

/* 1: `field` is the next one; 0: there is no more; -EPROTO: the payload is malformed. */
int fields_next(struct fields *fields, struct field *field);

/* The integer a field holds. -EPROTO if it does not hold exactly 8 bytes. */
int field_number(const struct field *field, uint64_t *number);

/* Appends a field to a buffer of `size` bytes at `*used`; -ENOSPC if it does not fit. */
int fields_put(char *buffer, size_t size, size_t *used, uint16_t tag, const void *bytes, size_t length);
int fields_put_number(char *buffer, size_t size, size_t *used, uint16_t tag, uint64_t number);

#endif
