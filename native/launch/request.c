#include "launch/request.h"

#include "common/fields.h"
#include "launch/failure.h"
#include "launch/plan.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { HOSTNAME_BYTES = 64 };

/* A terminated copy that lives as long as the plan. The strings fit: each is shorter than the field it came in. NULL: it holds a zero byte, or nothing. */
static const char *keep(struct plan *plan, const char *bytes, size_t length)
{
    char *copy = plan->strings + plan->string_bytes;

    if (length == 0 || memchr(bytes, '\0', length) || length >= sizeof plan->strings - plan->string_bytes)
        return NULL;
    memcpy(copy, bytes, length);
    copy[length] = '\0';
    plan->string_bytes += length + 1;
    return copy;
}

static const char *keep_path(struct plan *plan, const struct field *field)
{
    return field->length > 0 && field->bytes[0] == '/' ? keep(plan, field->bytes, field->length) : NULL;
}

static int add_path(struct plan *plan, const struct field *field, const char **list, size_t *count, size_t limit)
{
    const char *path = keep_path(plan, field);

    if (!path || *count == limit)
        return path ? -E2BIG : -EINVAL;
    list[(*count)++] = path;
    return 0;
}

static int add_lower(struct plan *plan, struct plan_lower lower)
{
    if (plan->lower_count == PLAN_LOWERS)
        return -E2BIG;
    plan->lowers[plan->lower_count++] = lower;
    return 0;
}

static int add_directory(struct plan *plan, const struct field *field)
{
    const char *path = keep_path(plan, field);

    return path ? add_lower(plan, (struct plan_lower){.path = path}) : -EINVAL;
}

/* The first string of a field that ends with a zero byte; the field goes on behind it. NULL if there is none. */
static const char *split(struct plan *plan, struct field *field)
{
    const char *end = memchr(field->bytes, '\0', field->length);
    const char *text = end ? keep(plan, field->bytes, (size_t)(end - field->bytes)) : NULL;

    if (text) {
        field->length -= (uint32_t)(end + 1 - field->bytes);
        field->bytes = end + 1;
    }
    return text;
}

static int add_bind(struct plan *plan, struct field field)
{
    const char *source = split(plan, &field);
    const char *target = source ? split(plan, &field) : NULL;

    if (!target || source[0] != '/' || target[0] != '/' || field.length != 1 || (unsigned char)field.bytes[0] > 1)
        return -EINVAL;
    if (plan->bind_count == PLAN_BINDS)
        return -E2BIG;
    plan->binds[plan->bind_count++] = (struct plan_bind){.source = source, .target = target, .read_only = field.bytes[0] == 1};
    return 0;
}

static int add_cgroup(struct plan *plan, const struct field *field)
{
    const char *path = keep_path(plan, field);

    if (!path || plan->cgroup_count == PLAN_CGROUPS)
        return path ? -E2BIG : -EINVAL;
    plan->cgroups[plan->cgroup_count++] = (struct plan_cgroup){.path = path};
    return 0;
}

static int add_write(struct plan *plan, struct field field)
{
    const char *file = split(plan, &field);
    const char *value = file ? keep(plan, field.bytes, field.length) : NULL;

    if (!value || strchr(file, '/') || plan->cgroup_count == 0)
        return -EINVAL;
    if (plan->write_count == PLAN_WRITES)
        return -E2BIG;
    plan->writes[plan->write_count++] = (struct plan_write){.file = file, .value = value};
    plan->cgroups[plan->cgroup_count - 1].writes++;
    return 0;
}

/* The controllers may be none: then groups only tell who is where. */
static int set_home(struct plan *plan, struct field field)
{
    plan->home = split(plan, &field);
    plan->home_controllers = field.length > 0 ? keep(plan, field.bytes, field.length) : "";
    return plan->home && plan->home[0] == '/' && plan->home_controllers ? 0 : -EINVAL;
}

static int add_device(struct plan *plan, const struct field *field)
{
    int error = add_path(plan, field, plan->devices, &plan->device_count, PLAN_DEVICES);
    const char *device = error ? NULL : plan->devices[plan->device_count - 1];

    if (error)
        return error;
    /* Directly in /dev, and not the tree's own names. */
    return strncmp(device, "/dev/", 5) != 0 || strchr(device + 5, '/') || device[5] == '.' || device[5] == '\0' ? -EINVAL : 0;
}

static int set_number(const struct field *field, uint64_t least, uint64_t most, uint64_t *number)
{
    int error = field_number(field, number);

    return error ? error : *number < least || *number > most ? -ERANGE : 0;
}

static int take_number(struct plan *plan, const struct field *field, bool *shell)
{
    uint64_t number = 0;
    int error;

    switch (field->tag) {
    case LAUNCH_DISK_BYTES:
        return set_number(field, 1, INT64_MAX, &plan->disk_bytes);
    case LAUNCH_INODES:
        return set_number(field, 1, INT64_MAX / 1024, &plan->inodes);
    case LAUNCH_LISTEN:
        error = set_number(field, 1, UINT16_MAX, &number);
        plan->listen_port = (uint16_t)number;
        return error;
    case LAUNCH_PRIVILEGES:
        error = set_number(field, 0, 1, &number);
        plan->privileges = number == 1;
        return error;
    case LAUNCH_SHELL:
        error = set_number(field, 0, 1, &number);
        *shell = number == 1;
        return error;
    case LAUNCH_LAYER:
        error = set_number(field, 1, UINT32_MAX, &number);
        return error ? error : add_lower(plan, (struct plan_lower){.layer = (uint32_t)number});
    case LAUNCH_SEAL:
        error = set_number(field, 1, UINT32_MAX, &number);
        plan->seal = (uint32_t)number;
        return error;
    default:
        return -EPROTO;
    }
}

static int take(struct plan *plan, const struct field *field, bool *shell)
{
    switch (field->tag) {
    case LAUNCH_LOWER:
        return add_directory(plan, field);
    case LAUNCH_MAKE_DIR:
        return add_path(plan, field, plan->directories, &plan->directory_count, PLAN_DIRECTORIES);
    case LAUNCH_DEVICE:
        return add_device(plan, field);
    case LAUNCH_BIND:
        return add_bind(plan, *field);
    case LAUNCH_CGROUP:
        return add_cgroup(plan, field);
    case LAUNCH_WRITE:
        return add_write(plan, *field);
    case LAUNCH_CGROUP_HOME:
        return set_home(plan, *field);
    case LAUNCH_HOSTNAME:
        plan->hostname = field->length <= HOSTNAME_BYTES ? keep(plan, field->bytes, field->length) : NULL;
        return plan->hostname ? 0 : -EINVAL;
    default:
        return take_number(plan, field, shell);
    }
}

static void take_descriptors(struct plan *plan, const int *descriptors, size_t count)
{
    plan->link = count > 0 ? descriptors[0] : -1;
    plan->shell = count > 1 ? descriptors[1] : -1;
    for (size_t index = 2; index < count; index++)
        close(descriptors[index]);
}

int plan_parse(struct plan *plan, bool create, const void *fields, size_t length, const int *descriptors, size_t descriptor_count, struct failure *failure)
{
    struct fields rest = fields_of(fields, length);
    struct field field;
    bool shell = false;
    int found;

    memset(plan, 0, offsetof(struct plan, strings));
    take_descriptors(plan, descriptors, descriptor_count);
    while ((found = fields_next(&rest, &field)) == 1) {
        int error = take(plan, &field, &shell);

        if (error)
            return fail(failure, -error, "read field %u of the request", field.tag);
    }
    if (found < 0)
        return fail(failure, -found, "read the request");
    if (plan->lower_count == 0)
        return fail(failure, EINVAL, "read the request: it names no directory of an image");
    if (create && plan->seal)
        return fail(failure, EINVAL, "read the request: nothing is to be sealed yet");
    if (descriptor_count != (create ? (shell ? 2u : 1u) : 0u))
        return fail(failure, EINVAL, "read the request: %zu descriptors came with it", descriptor_count);
    return 0;
}

void plan_close(struct plan *plan)
{
    close_descriptor(&plan->link);
    close_descriptor(&plan->shell);
    plan->link = plan->shell = -1;
}
