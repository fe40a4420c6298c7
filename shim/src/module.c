/*
 * The second way in: the same object as an entry of shared_preload_libraries, for a server that was started without
 * LD_PRELOAD. The postmaster loads it before it has shared memory or a child (postmaster/postmaster.c, PostmasterMain:
 * process_shared_preload_libraries), and has opened no relation by then.
 *
 * By then it has claimed the data directory too. A second server is refused here, after it may have taken the first one's
 * postmaster.pid for a stale one and replaced it: claim.h says how that is undone.
 */
#include "got.h"
#include "kernel.h"
#include "server.h"
#include "text.h"

/* Of libc and of the server; all weak, since this object is loaded into every program of a container. */
extern void *dlopen(const char *, int) __attribute__((weak, visibility("default")));
extern void *dlsym(void *, const char *) __attribute__((weak, visibility("default")));
extern char pkglib_path __attribute__((weak, visibility("default"))); /* an array: its first; utils/init/globals.c */
extern char process_shared_preload_libraries_in_progress /* a bool; utils/init/miscinit.c */
	__attribute__((weak, visibility("default")));

#define EXPORTED __attribute__((visibility("default")))

/* Marks this object among those of a process. By its public name each copy would be given the first one's address. */
static const char this_object = 1;
extern const char lazyrw_object __attribute__((alias("this_object"), visibility("default")));

const void *Pg_magic_func(void) EXPORTED;
void _PG_init(void) EXPORTED;

static const void *magic_of(const char *module)
{
	const int now = 2; /* RTLD_NOW, in both libcs */
	char path[LZ_PATH_MAX] = "";
	const void *(*magic)(void);
	void *handle;

	if (!dlopen || !dlsym || !&pkglib_path)
		return NULL;
	if (lz_append(path, sizeof(path), &pkglib_path) < 0 || lz_append(path, sizeof(path), module) < 0)
		return NULL;
	handle = dlopen(path, now);
	if (!handle)
		return NULL;
	magic = (const void *(*)(void))dlsym(handle, "Pg_magic_func");
	return magic && magic != Pg_magic_func ? magic() : NULL;
}

/*
 * A loadable module must describe the server that it was compiled for, in a block whose form depends on the major
 * (include/fmgr.h, Pg_magic_struct). This one was compiled for none and calls nothing of the server, so it fits all: it answers
 * with the block of a module that the server brought along.
 */
const void *Pg_magic_func(void)
{
	static const char modules[][24] = { "/plpgsql.so", "/dict_snowball.so", "/libpqwalreceiver.so" };
	static const int none[64]; /* of length 0: the server says that the library is incompatible */

	for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++) {
		const void *magic = magic_of(modules[i]);

		if (magic)
			return magic;
	}
	return none;
}

/*
 * Whether LD_PRELOAD names another copy of this object: it is found first. It has the branch lock, which this one must not
 * ask for again: it would wait for its own process.
 */
static int another_copy_is_first(void)
{
	const void *first = dlsym ? dlsym(NULL /* RTLD_DEFAULT, in both libcs */, "lazyrw_object") : NULL;

	return first && first != &this_object;
}

void _PG_init(void)
{
	if (lz_in_server() || another_copy_is_first()) /* LD_PRELOAD was first */
		return;
	if (!&process_shared_preload_libraries_in_progress || !process_shared_preload_libraries_in_progress)
		return; /* LOAD, or session_preload_libraries: too late, relations are open */
	lz_server_start_late(lz_got_patch);
}
