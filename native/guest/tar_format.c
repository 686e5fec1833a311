#include "guest/tar_format.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Base 256, for what has no room in octal: the first bit set, then a number in two's complement. */
static int binary_number(const unsigned char *field, size_t length, int64_t *number)
{
    uint64_t value = field[0] & 0x40 ? UINT64_MAX : 0;

    for (size_t i = 0; i < length; i++) {
        unsigned char byte = i > 0 ? field[i] : (field[0] & 0x7f) | (field[0] & 0x40 ? 0x80 : 0);
        int64_t before = (int64_t)value;

        if (before > INT64_MAX >> 8 || before < -(INT64_MAX >> 8) - 1)
            return -EINVAL;
        value = value << 8 | byte;
    }
    *number = (int64_t)value;
    return 0;
}

static int parse_number(const char *field, size_t length, int64_t *number)
{
    size_t at = 0;
    int64_t value = 0;

    if (field[0] & 0x80)
        return binary_number((const unsigned char *)field, length, number);
    while (at < length && field[at] == ' ')
        at++;
    for (; at < length && field[at] >= '0' && field[at] <= '7'; at++)
        value = value << 3 | (field[at] - '0'); /* 12 digits at most: 36 bits */
    if (at < length && field[at] != ' ' && field[at] != '\0')
        return -EINVAL;
    *number = value;
    return 0;
}

static bool is_zero(const struct tar_block *block)
{
    const char *bytes = (const char *)block;

    return bytes[0] == '\0' && memcmp(bytes, bytes + 1, sizeof *block - 1) == 0;
}

/* The sum of all bytes, the field that holds it taken as spaces. Old programs took the bytes for signed. */
static void sums(const struct tar_block *block, int64_t *plain, int64_t *with_sign)
{
    const char *bytes = (const char *)block;
    size_t from = offsetof(struct tar_block, checksum);

    *plain = *with_sign = 0;
    for (size_t i = 0; i < sizeof *block; i++) {
        char byte = i >= from && i < from + sizeof block->checksum ? ' ' : bytes[i];

        *plain += (unsigned char)byte;
        *with_sign += (signed char)byte;
    }
}

static int check_sum(const struct tar_block *block)
{
    int64_t said, plain, with_sign;
    int error = parse_number(block->checksum, sizeof block->checksum, &said);

    sums(block, &plain, &with_sign);
    return error || (said != plain && said != with_sign) ? -EINVAL : 0;
}

static void parse_names(const struct tar_block *block, struct tar_member *member)
{
    size_t name = strnlen(block->name, sizeof block->name), used = 0;

    /* GNU's header has other things where POSIX has the prefix. */
    if (memcmp(block->magic, "ustar", 6) == 0 && block->prefix[0] != '\0') {
        used = strnlen(block->prefix, sizeof block->prefix);
        memcpy(member->name, block->prefix, used);
        member->name[used++] = '/';
    }
    memcpy(member->name + used, block->name, name);
    member->name[used + name] = '\0';
    used = strnlen(block->link, sizeof block->link);
    memcpy(member->link, block->link, used);
    member->link[used] = '\0';
}

static int parse_type(const struct tar_block *block, struct tar_member *member)
{
    size_t length = strlen(member->name);

    member->type = block->type;
    switch (block->type) {
    case '\0': /* before POSIX, a directory was told by its name */
        member->type = length > 0 && member->name[length - 1] == '/' ? '5' : '0';
        return 0;
    case '7':
        member->type = '0';
        return 0;
    case 'X':
        member->type = 'x';
        return 0;
    case '0': case '1': case '2': case '3': case '4': case '5': case '6':
    case 'x': case 'g': case 'L': case 'K': case 'V': case 'D':
        return 0;
    default: /* sparse files and parts of volumes among them: as plain files they would be wrong without a word */
        return -ENOTSUP;
    }
}

int tar_parse(const struct tar_block *block, struct tar_member *member)
{
    int64_t mode, seconds, major = 0, minor = 0;

    if (is_zero(block))
        return 1;
    if (check_sum(block) || parse_number(block->mode, sizeof block->mode, &mode) ||
        parse_number(block->uid, sizeof block->uid, &member->uid) || parse_number(block->gid, sizeof block->gid, &member->gid) ||
        parse_number(block->size, sizeof block->size, &member->size) || parse_number(block->mtime, sizeof block->mtime, &seconds))
        return -EINVAL;
    if (block->type == '3' || block->type == '4')
        if (parse_number(block->major, sizeof block->major, &major) || parse_number(block->minor, sizeof block->minor, &minor))
            return -EINVAL;
    if (member->size < 0)
        return -EINVAL;
    member->mode = (uint32_t)mode & 07777;
    member->mtime = (struct timespec){.tv_sec = seconds};
    member->major = (uint32_t)major;
    member->minor = (uint32_t)minor;
    parse_names(block, member);
    return parse_type(block, member);
}

/* Octal with a NUL at its end, else base 256. A field has at most 12 bytes. */
static void put_number(char *field, size_t length, int64_t number)
{
    if (number >= 0 && number >> 3 * (length - 1) == 0) {
        for (size_t i = length - 1; i-- > 0; number >>= 3)
            field[i] = (char)('0' + (number & 7));
        return;
    }
    for (size_t i = length; i-- > 0; number >>= 8)
        field[i] = (char)(number & 0xff);
    field[0] = (char)(field[0] | 0x80);
}

void tar_format(struct tar_block *block, const struct tar_member *member)
{
    int64_t plain, with_sign;

    memset(block, 0, sizeof *block);
    memcpy(block->name, member->name, strnlen(member->name, sizeof block->name));
    memcpy(block->link, member->link, strnlen(member->link, sizeof block->link));
    memcpy(block->magic, "ustar  ", 8);
    put_number(block->mode, sizeof block->mode, member->mode);
    put_number(block->uid, sizeof block->uid, member->uid);
    put_number(block->gid, sizeof block->gid, member->gid);
    put_number(block->size, sizeof block->size, member->size);
    put_number(block->mtime, sizeof block->mtime, member->mtime.tv_sec);
    block->type = member->type;
    if (member->type == '3' || member->type == '4') {
        put_number(block->major, sizeof block->major, member->major);
        put_number(block->minor, sizeof block->minor, member->minor);
    }
    sums(block, &plain, &with_sign);
    put_number(block->checksum, sizeof block->checksum - 1, plain);
    block->checksum[7] = ' ';
}
