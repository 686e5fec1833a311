/* /etc/passwd and /etc/group made up by the fuzzer, and the name that is looked for in them: up to the first newline. */
#include "common/sys.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int input = -1;

/* The same code, but whatever it opens is the input. */
static long fuzz6(long n, long a, long b, long c, long d, long e, long f)
{
    if (n != SYS_openat)
        return sys6(n, a, b, c, d, e, f);
    lseek(input, 0, SEEK_SET);
    return dup(input);
}
#define sys6 fuzz6
#include "guest/users.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *newline = memchr(data, '\n', size);
    size_t length = newline == NULL ? size : (size_t)(newline - data), rest = newline == NULL ? 0 : size - length - 1;
    char *user = calloc(1, length + 1);
    struct identity identity;
    const char *what;

    memcpy(user, data, length);
    input = memfd_create("passwd", MFD_CLOEXEC);
    if (input < 0 || (rest > 0 && write(input, newline + 1, rest) != (ssize_t)rest))
        abort();
    if (identity_find(user, &identity, &what) == 0) {
        if (identity.group_count == 0 || identity.group_count > IDENTITY_GROUPS || identity.uid == UINT32_MAX)
            abort();
        if (memchr(identity.home, '\0', sizeof identity.home) == NULL || memchr(identity.name, '\0', sizeof identity.name) == NULL)
            abort();
    }
    close(input);
    free(user);
    return 0;
}
