/* One file action from the command line, for the tests: file_tool OPERATION PATH [key=value ...]; stdin, stdout and the exit code are the action's. */
#include "common/wire.h"
#include "guest/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USAGE = 250 };

static const char *const operations[] = {
    [FILE_READ] = "read",     [FILE_WRITE] = "write", [FILE_LIST] = "list",         [FILE_STAT] = "stat",   [FILE_REMOVE] = "remove",
    [FILE_MOVE] = "move",     [FILE_UNTAR] = "untar", [FILE_MAKE_DIR] = "make_dir", [FILE_TAR] = "tar",     [FILE_CONNECT] = "connect",
};

static int set(struct file_request *request, const char *word)
{
    const char *value = strchr(word, '=');
    size_t length = value == NULL ? 0 : (size_t)(value++ - word);
    unsigned long long number = value == NULL ? 0 : strtoull(value, NULL, 0);

    if (length == 6 && strncmp(word, "target", length) == 0)
        request->target = value;
    else if (length == 6 && strncmp(word, "offset", length) == 0)
        request->offset = number;
    else if (length == 6 && strncmp(word, "length", length) == 0)
        request->has_length = true, request->length = number;
    else if (length == 4 && strncmp(word, "mode", length) == 0)
        request->has_mode = true, request->mode = (uint32_t)number;
    else if (length == 4 && strncmp(word, "flag", length) == 0)
        request->flag = number != 0;
    else if (length == 4 && strncmp(word, "port", length) == 0)
        request->port = (uint16_t)number;
    else
        return USAGE;
    return 0;
}

int main(int argc, char **argv)
{
    struct file_request request = {0};

    if (argc < 3)
        return USAGE;
    for (uint32_t i = 1; i < sizeof operations / sizeof *operations; i++)
        if (strcmp(argv[1], operations[i]) == 0)
            request.operation = i;
    request.path = argv[2];
    for (int i = 3; i < argc; i++)
        if (set(&request, argv[i])) {
            fprintf(stderr, "file_tool: what is %s?\n", argv[i]);
            return USAGE;
        }
    return request.operation == 0 ? USAGE : file_action(&request);
}
