#include "common/fields.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

enum { HEAD = 8 };

struct fields fields_of(const void *payload, size_t length)
{
    return (struct fields){.at = payload, .end = (const char *)payload + length};
}

int fields_next(struct fields *fields, struct field *field)
{
    size_t left = (size_t)(fields->end - fields->at);
    uint16_t tag, zero;
    uint32_t length;

    if (left == 0)
        return 0;
    if (left < HEAD)
        return -EPROTO;
    memcpy(&tag, fields->at, sizeof tag);
    memcpy(&zero, fields->at + 2, sizeof zero);
    memcpy(&length, fields->at + 4, sizeof length);
    length = le32toh(length);
    if (zero != 0 || length > left - HEAD)
        return -EPROTO;
    *field = (struct field){.tag = le16toh(tag), .length = length, .bytes = fields->at + HEAD};
    fields->at += HEAD + length;
    return 1;
}

int field_number(const struct field *field, uint64_t *number)
{
    if (field->length != sizeof *number)
        return -EPROTO;
    memcpy(number, field->bytes, sizeof *number);
    *number = le64toh(*number);
    return 0;
}

int fields_put(char *buffer, size_t size, size_t *used, uint16_t tag, const void *bytes, size_t length)
{
    uint16_t tag_le = htole16(tag), zero = 0;
    uint32_t length_le = htole32((uint32_t)length);

    if (*used > size || size - *used < HEAD || size - *used - HEAD < length)
        return -ENOSPC;
    memcpy(buffer + *used, &tag_le, sizeof tag_le);
    memcpy(buffer + *used + 2, &zero, sizeof zero);
    memcpy(buffer + *used + 4, &length_le, sizeof length_le);
    if (length > 0)
        memcpy(buffer + *used + HEAD, bytes, length);
    *used += HEAD + length;
    return 0;
}

int fields_put_number(char *buffer, size_t size, size_t *used, uint16_t tag, uint64_t number)
{
    uint64_t number_le = htole64(number);

    return fields_put(buffer, size, used, tag, &number_le, sizeof number_le);
}
