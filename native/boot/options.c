#include "boot/boot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int take_number(uint64_t *into, const char *text)
{
    char *end;

    errno = 0;
    *into = strtoull(text, &end, 10);
    return errno != 0 || end == text || *end != 0 || text[0] == '-' ? -EINVAL : 0;
}

static int take_text(char *into, size_t size, const char *text)
{
    if (strlen(text) >= size)
        return -EINVAL;
    strcpy(into, text);
    return 0;
}

static int take(struct options *options, const char *name, const char *value)
{
    const struct {
        const char *name;
        uint64_t *number;
    } numbers[] = {
        {"disk_bytes", &options->disk_bytes}, {"inodes", &options->inodes}, {"memory_bytes", &options->memory_bytes},
        {"pids", &options->pids},             {"cpu_us", &options->cpu_us}, {"vsock", &options->vsock},
    };

    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
        if (strcmp(name, numbers[at].name) == 0)
            return take_number(numbers[at].number, value);
    }
    if (strcmp(name, "disk") == 0)
        return take_text(options->disk, sizeof options->disk, value);
    if (strcmp(name, "upper") == 0)
        return take_text(options->upper, sizeof options->upper, value);
    if (strcmp(name, "init") == 0)
        return take_text(options->init, sizeof options->init, value);
    if (strcmp(name, "guest") == 0) {
        options->guest = strcmp(value, "off") != 0;
        return 0;
    }
    if (strcmp(name, "probe") == 0) {
        options->probe = strcmp(value, "on") == 0;
        return 0;
    }
    return -EINVAL;
}

int options_parse(struct options *options, const char *line)
{
    static const char prefix[] = "excise.";
    char words[4096], *rest = words, *word;

    *options = (struct options){.disk = "/dev/vda", .guest = true};
    if (strlen(line) >= sizeof words)
        return -E2BIG;
    strcpy(words, line);
    while ((word = strsep(&rest, " \n")) != NULL) {
        char *value;

        if (strncmp(word, prefix, sizeof prefix - 1) != 0)
            continue;
        word += sizeof prefix - 1;
        if ((value = strchr(word, '=')) == NULL)
            return -EINVAL;
        *value++ = 0;
        if (take(options, word, value) < 0)
            return -EINVAL;
    }
    return 0;
}
