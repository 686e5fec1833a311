#include "guest/status.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

int status_expect(struct status *status)
{
    uint64_t random;

    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return -EIO;
    status->told = false;
    snprintf(status->nonce, sizeof status->nonce, "%016llx", (unsigned long long)random);
    return 0;
}

/* A word has ended: is it the status that is waited for? */
static void judge(struct status *status)
{
    int code = 0;

    if (status->told || status->length < NONCE_BYTES + 2 || status->length > STATUS_BYTES)
        return;
    if (memcmp(status->word, status->nonce, NONCE_BYTES) != 0 || status->word[NONCE_BYTES] != ' ')
        return;
    for (size_t i = NONCE_BYTES + 1; i < status->length; i++) {
        if (status->word[i] < '0' || status->word[i] > '9')
            return;
        code = 10 * code + (status->word[i] - '0');
    }
    status->code = code;
    status->told = true;
}

void status_feed(struct status *status, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] == '\0') {
            judge(status);
            status->length = 0;
        } else if (status->length < STATUS_BYTES) {
            status->word[status->length++] = bytes[i];
        } else {
            status->length = STATUS_BYTES + 1;
        }
    }
}
