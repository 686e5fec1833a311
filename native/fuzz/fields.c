/* Payloads made up by the fuzzer, read as fields; what was read, written again, is the same payload. */
#include "common/fields.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fields fields = fields_of(data, size);
    struct field field;
    char *again = malloc(size + 1);
    size_t used = 0;
    uint64_t number;
    int more;

    while ((more = fields_next(&fields, &field)) == 1) {
        if (fields_put(again, size, &used, field.tag, field.bytes, field.length) < 0)
            abort();
        if ((field_number(&field, &number) == 0) != (field.length == 8))
            abort();
    }
    if (memcmp(again, data, used) != 0 || (more == 0 && used != size))
        abort();
    free(again);
    return 0;
}
