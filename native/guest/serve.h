/* What each frame of the host does. */
#ifndef EXCISE_GUEST_SERVE_H
#define EXCISE_GUEST_SERVE_H

#include <stddef.h>

#include "common/wire.h"

struct guest;

/* A RUN or FILE, whole. */
void serve_request(struct guest *guest, const struct wire_header *header, const char *payload, size_t length);
/* Any other frame. */
void serve_frame(struct guest *guest, const struct wire_header *header, const char *payload);

#endif
