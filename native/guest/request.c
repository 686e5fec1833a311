#include "guest/internal.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "common/fields.h"

/* Beyond these a sum could overflow, and nobody can tell the difference. */
#define LONGEST_NS (UINT64_MAX / 4)
#define WIDEST_BYTES (UINT64_MAX / 4)

struct count {
    size_t arguments, variables;
};

/* Whether it is well formed, and how many words it has. A text that holds a NUL byte cannot be passed on by any system. */
static int check(const char *bytes, size_t length, struct count *count)
{
    struct fields fields = fields_of(bytes, length);
    struct field field;
    int more;

    while ((more = fields_next(&fields, &field)) > 0) {
        bool text = (field.tag >= TAG_ARG && field.tag <= TAG_SCRIPT) || field.tag == TAG_PATH || field.tag == TAG_TARGET;
        uint64_t number;

        if (text ? memchr(field.bytes, 0, field.length) != NULL : field_number(&field, &number) < 0)
            return -EPROTO;
        if (field.tag == TAG_ENV && memchr(field.bytes, '=', field.length) == NULL)
            return -EPROTO;
        count->arguments += field.tag == TAG_ARG;
        count->variables += field.tag == TAG_ENV;
    }
    return more;
}

static void take_number(struct request *request, const struct field *field)
{
    uint64_t number = 0;

    field_number(field, &number);
    switch (field->tag) {
    case TAG_TIMEOUT_NS: request->timeout_ns = number < LONGEST_NS ? number : LONGEST_NS; break;
    case TAG_WINDOW: request->window = number < WIDEST_BYTES ? number : WIDEST_BYTES; break;
    case TAG_ROWS: request->rows = (uint32_t)number; break;
    case TAG_COLUMNS: request->columns = (uint32_t)number; break;
    case TAG_OPERATION: request->file.operation = (uint32_t)number; break;
    case TAG_OFFSET: request->file.offset = number; break;
    case TAG_LENGTH:
        request->file.length = number;
        request->file.has_length = true;
        break;
    case TAG_MODE:
        request->file.mode = (uint32_t)number;
        request->file.has_mode = true;
        break;
    case TAG_FLAG: request->file.flag = number != 0; break;
    case TAG_PORT: request->file.port = (uint16_t)number; break;
    default: break; /* of a later version: it means nothing to us */
    }
}

static void take_text(struct request *request, uint16_t tag, char *text)
{
    switch (tag) {
    case TAG_CWD: request->cwd = text; break;
    case TAG_USER: request->user = text; break;
    case TAG_SESSION: request->session = text; break;
    case TAG_SCRIPT: request->script = text; break;
    case TAG_PATH: request->file.path = text; break;
    case TAG_TARGET: request->file.target = text; break;
    default: break;
    }
}

static bool is_set(char *const *variables, size_t count, const char *variable)
{
    size_t name = strcspn(variable, "=") + 1;

    for (size_t i = 0; i < count; i++) {
        if (strncmp(variables[i], variable, name) == 0)
            return true;
    }
    return false;
}

/* Adds what HELLO said and the request did not. */
static size_t add_defaults(char **variables, size_t own, const struct defaults *defaults)
{
    size_t count = own;

    for (size_t i = 0; i < defaults->environment_count; i++) {
        if (!is_set(variables, own, defaults->environment[i]))
            variables[count++] = defaults->environment[i];
    }
    return count;
}

/* Points into the copy, whose fields' ends become the texts' terminators: the byte after each is the next one's tag, which has been read by then. */
static void fill(struct request *request, size_t length, struct count *count)
{
    struct fields fields = fields_of(request->bytes, length);
    struct field field;
    char *text = NULL;

    while (fields_next(&fields, &field) > 0) {
        if (text != NULL)
            *text = 0;
        text = (char *)field.bytes + field.length;
        if (field.tag == TAG_ARG)
            request->argv[count->arguments++] = (char *)field.bytes;
        else if (field.tag == TAG_ENV)
            request->environment[count->variables++] = (char *)field.bytes;
        else
            take_text(request, field.tag, (char *)field.bytes);
        take_number(request, &field);
    }
    if (text != NULL)
        *text = 0;
}

int request_parse(struct request *request, const struct defaults *defaults, const char *payload, size_t length)
{
    struct count count = {0}, filled = {0};
    int result = check(payload, length, &count);
    size_t words;

    if (result < 0)
        return result;
    if (count.variables > VARIABLES_MAX)
        return -E2BIG;
    words = count.arguments + count.variables + defaults->environment_count + 2 + ENVIRONMENT_SPARE;
    request->bytes = malloc(length + 1);
    request->words = calloc(words, sizeof *request->words);
    if (request->bytes == NULL || request->words == NULL) {
        request_free(request);
        return -ENOMEM;
    }
    memcpy(request->bytes, payload, length);
    request->argv = request->words;
    request->environment = request->words + count.arguments + 1;
    request->argument_count = count.arguments;
    request->window = WIRE_WINDOW;
    fill(request, length, &filled);
    add_defaults(request->environment, filled.variables, defaults);
    return 0;
}

void request_free(struct request *request)
{
    /* Variables may hold secrets, and what is freed is not gone: a machine's memory may be saved. */
    if (request->bytes != NULL)
        explicit_bzero(request->bytes, malloc_usable_size(request->bytes));
    free(request->bytes);
    free(request->words);
    request->bytes = NULL;
    request->words = NULL;
}
