/* A preload of the user's own, which also stands in front of open: it must be called, and so must the shim behind it. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

int open(const char *path, int flags, ...)
{
	static int (*next)(const char *, int, ...);

	if (!next)
		next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
	if (strncmp(path, "base/", 5) == 0)
		puts("user's open");
	return next(path, flags, 0600);
}
