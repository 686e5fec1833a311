#include "launch/failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

int fail(struct failure *failure, int error, const char *format, ...)
{
    va_list arguments;

    failure->error = error;
    va_start(arguments, format);
    vsnprintf(failure->step, sizeof failure->step, format, arguments);
    va_end(arguments);
    return -error;
}

void close_descriptor(const int *descriptor)
{
    if (*descriptor >= 0)
        close(*descriptor);
}
