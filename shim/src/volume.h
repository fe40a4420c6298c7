#ifndef LAZYRW_VOLUME_H
#define LAZYRW_VOLUME_H

#include <stddef.h>

/*
 * The root of the volume that carries this shim: where the object is mapped from (/proc/self/maps), up to the folder
 * .pgoverlay. The name as the kernel spells it is used, not LD_PRELOAD, which may be relative, a link, or a list.
 *
 * Returns 0, or -1 when the object does not lie in a volume (or /proc is not there).
 */
int lz_volume_of_shim(char *volume, size_t size);

/* The path of this object's file, as the kernel spells it. Returns 0, or -1. */
int lz_path_of_shim(char *path, size_t size);

#endif
