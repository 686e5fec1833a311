/* Archives made up by the fuzzer, unpacked into a directory that is made anew for each. Nothing beside it may change. */
#include "guest/file_work.h"
#include "guest/tar_format.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char place[PATH_MAX];
static int beside = -1;

static void remove_place(void)
{
    remove_path(place, true);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *where = getenv("TMPDIR"), *memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    int canary;

    (void)argc;
    (void)argv;
    snprintf(place, sizeof place, "%s/excise-fuzz-XXXXXX", where != NULL ? where : memory);
    if (mkdtemp(place) == NULL || (beside = open(place, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
        abort();
    atexit(remove_place);
    canary = openat(beside, "canary", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (canary < 0 || write(canary, "canary", 6) != 6 || close(canary) < 0)
        abort();
    return 0;
}

/* Without right checksums no input would get past its first header. */
static void mend_checksums(uint8_t *data, size_t size)
{
    const size_t from = offsetof(struct tar_block, checksum);

    for (size_t at = 0; at + TAR_BLOCK <= size; at += TAR_BLOCK) {
        unsigned sum = 8 * ' ';

        for (size_t i = 0; i < TAR_BLOCK; i++)
            sum += i >= from && i < from + 8 ? 0 : data[at + i];
        if (sum > 8 * ' ')
            snprintf((char *)data + at + from, 8, "%06o", sum);
    }
}

static void check_canary(void)
{
    struct stat found;
    char bytes[8];
    int canary = openat(beside, "canary", O_RDONLY | O_CLOEXEC);

    if (canary < 0 || read(canary, bytes, sizeof bytes) != 6 || memcmp(bytes, "canary", 6) != 0 || fstat(canary, &found) < 0)
        abort();
    if ((found.st_mode & 07777) != 0600 || found.st_nlink != 1 || found.st_uid != geteuid())
        abort();
    close(canary);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int archive = memfd_create("archive", MFD_CLOEXEC), root;
    uint8_t *copy = malloc(size + 1);

    if (size == 0 || copy == NULL)
        return close(archive), free(copy), 0;
    memcpy(copy, data + 1, size - 1);
    if (data[0] & 1)
        mend_checksums(copy, size - 1);
    if (write(archive, copy, size - 1) != (ssize_t)(size - 1) || lseek(archive, 0, SEEK_SET) != 0)
        abort();
    if (mkdirat(beside, "root", 0700) < 0 || (root = openat(beside, "root", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
        abort();
    file_untar(archive, root);
    check_canary();
    if (fchmodat(beside, "root", 0700, 0) < 0 || remove_below(beside, "root") < 0)
        abort();
    close(root);
    close(archive);
    free(copy);
    return 0;
}
