/* Requests to the launcher made up by the fuzzer: what is taken from one lies in the plan's own memory, and ends there. */
#include "launch/failure.h"
#include "launch/plan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct plan *plan, const char *text)
{
    if (text < plan->strings || text >= plan->strings + plan->string_bytes)
        abort();
    if (memchr(text, '\0', (size_t)(plan->strings + plan->string_bytes - text)) == NULL)
        abort();
}

static void check_all(const struct plan *plan)
{
    size_t writes = 0;

    for (size_t i = 0; i < plan->lower_count; i++)
        if (plan->lowers[i].path)
            check(plan, plan->lowers[i].path);
        else if (plan->lowers[i].layer == 0)
            abort();
    for (size_t i = 0; i < plan->bind_count; i++) {
        check(plan, plan->binds[i].source);
        check(plan, plan->binds[i].target);
    }
    for (size_t i = 0; i < plan->cgroup_count; i++) {
        check(plan, plan->cgroups[i].path);
        writes += plan->cgroups[i].writes;
    }
    for (size_t i = 0; i < plan->write_count; i++) {
        check(plan, plan->writes[i].file);
        check(plan, plan->writes[i].value);
    }
    for (size_t i = 0; i < plan->directory_count; i++)
        check(plan, plan->directories[i]);
    for (size_t i = 0; i < plan->device_count; i++)
        check(plan, plan->devices[i]);
    if (plan->home) {
        check(plan, plan->home);
        if (plan->home_controllers[0] != '\0')
            check(plan, plan->home_controllers);
    }
    if (writes != plan->write_count)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plan *plan = malloc(sizeof *plan);
    struct failure failure = {0};
    const int none[] = {-1, -1}; /* nothing of the fuzzer's own is closed */

    for (size_t count = 0; count < 3; count += 2) /* a ROOT, a CREATE */
        if (size <= PLAN_PACKET_BYTES && plan_parse(plan, count > 0, data, size, none, count, &failure) == 0)
            check_all(plan);
    free(plan);
    return 0;
}
