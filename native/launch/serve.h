#ifndef EXCISE_LAUNCH_SERVE_H
#define EXCISE_LAUNCH_SERVE_H

struct launcher;

/* Serves the client until its end of the socket is closed. 0, or -errno. */
int launcher_serve(struct launcher *launcher);

#endif
