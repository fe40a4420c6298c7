#include "library.h"
#include "check.h"

#include <dlfcn.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

/* What the shim asks of a server. */
char pkglib_path[1024] = "/nonexistent";
_Bool process_shared_preload_libraries_in_progress;

static void check_sealed(void);

void load_library(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* utils/fmgr/dfmgr.c, internal_load_library */
	void (*init)(void);

	if (!handle)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(handle);
	init = (void (*)(void))dlsym(handle, "_PG_init");
	CHECK(init);
	init(); /* as LOAD does: nothing may happen */
	CHECK(true_accmode(open_rw("base/1/998")) == O_RDWR);
	process_shared_preload_libraries_in_progress = 1;
	init();
	process_shared_preload_libraries_in_progress = 0;
	init(); /* a second time: nothing more */
	check_sealed();
}

/* Every alias stands for the plain function: on this way the program's own tables are patched, whatever names they hold. */
static void *const plain[] = { open, openat, creat, write, writev, pwrite, pwritev, ftruncate, truncate, posix_fallocate, fallocate,
	copy_file_range, sendfile, splice, mmap, dup2 };

static const struct {
	const char *name;
	size_t index;
} linked[] = {
	{ "open", 0 }, { "open64", 0 }, { "__open", 0 }, { "__open64", 0 }, { "__open_2", 0 }, { "__open64_2", 0 }, { "openat", 1 },
	{ "openat64", 1 }, { "__openat_2", 1 }, { "__openat64_2", 1 }, { "creat", 2 }, { "creat64", 2 }, { "write", 3 }, { "__write", 3 },
	{ "writev", 4 }, { "pwrite", 5 }, { "pwrite64", 5 }, { "__pwrite64", 5 }, { "pwritev", 6 }, { "pwritev64", 6 }, { "pwritev2", 6 },
	{ "pwritev64v2", 6 }, { "ftruncate", 7 }, { "ftruncate64", 7 }, { "truncate", 8 }, { "truncate64", 8 }, { "posix_fallocate", 9 },
	{ "posix_fallocate64", 9 }, { "fallocate", 10 }, { "fallocate64", 10 }, { "copy_file_range", 11 }, { "sendfile", 12 },
	{ "sendfile64", 12 }, { "splice", 13 }, { "mmap", 14 }, { "mmap64", 14 }, { "__dup2", 15 },
};

/* Whether the page at this address may be written, by /proc/self/maps. */
static int is_writable(const void *at)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start, end;
	char line[4096], perms[8], writable = 0;

	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %7s", &start, &end, perms) == 3 && (unsigned long)at >= start && (unsigned long)at < end)
			writable = perms[1] == 'w';
	fclose(maps);
	return writable;
}

/* The table is constant, so the loader sealed it after relocation (RELRO); it must be sealed again after the patching. */
static void check_sealed(void)
{
	CHECK(!is_writable(plain));
}

void *linked_function(const char *name)
{
	for (size_t i = 0; i < sizeof(linked) / sizeof(linked[0]); i++)
		if (strcmp(linked[i].name, name) == 0)
			return plain[linked[i].index];
	return dlsym(dlopen(getenv("LZ_LIBRARY"), RTLD_NOW), name); /* close_range and closefrom, which old libcs do not have */
}
