/* What a session's shell, or one who pretends to be it, might write: read in pieces it says the same as at once, and only who knows the nonce says anything. */
#include "guest/status.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char nonce[] = "0123456789abcdef";
    struct status whole = {.told = false}, pieces = {.told = false};
    size_t piece = size > 0 ? 1 + data[0] % 32u : 1;

    memcpy(whole.nonce, nonce, sizeof nonce);
    memcpy(pieces.nonce, nonce, sizeof nonce);
    status_feed(&whole, (const char *)data, size);
    for (size_t at = 0; at < size; at += piece)
        status_feed(&pieces, (const char *)data + at, size - at < piece ? size - at : piece);
    if (whole.told != pieces.told || whole.code != pieces.code)
        abort();
    if (whole.told && (memmem(data, size, nonce, NONCE_BYTES) == NULL || whole.code < 0 || whole.code > 999))
        abort();
    return 0;
}
