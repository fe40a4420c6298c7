#include "volume.h"
#include "kernel.h"
#include "text.h"

/* Reads a file line by line, without allocation. Lines longer than the buffer are cut. */
struct reader {
	int fd;
	size_t at, end;
	char buf[1024];
};

static int next_byte(struct reader *r)
{
	if (r->at == r->end) {
		long n = lz_sys_read(r->fd, r->buf, sizeof(r->buf));

		if (n <= 0)
			return -1;
		r->at = 0;
		r->end = (size_t)n;
	}
	return (unsigned char)r->buf[r->at++];
}

/* Returns 0, or -1 at the end of the file. */
static int next_line(struct reader *r, char *line, size_t size)
{
	size_t n = 0;
	int c = next_byte(r);

	if (c < 0)
		return -1;
	for (; c >= 0 && c != '\n'; c = next_byte(r))
		if (n + 1 < size)
			line[n++] = (char)c;
	line[n] = '\0';
	return 0;
}

static const char *parse_hex(const char *s, uintptr_t *value)
{
	for (*value = 0;; s++) {
		if (*s >= '0' && *s <= '9')
			*value = *value * 16 + (uintptr_t)(*s - '0');
		else if (*s >= 'a' && *s <= 'f')
			*value = *value * 16 + (uintptr_t)(*s - 'a' + 10);
		else
			return s;
	}
}

/* "START-END perms offset dev inode   PATH" (fs/proc/task_mmu.c, show_map_vma): PATH, if START <= at < END. */
static const char *path_of_mapping(const char *line, uintptr_t at)
{
	uintptr_t start, end;

	line = parse_hex(line, &start);
	if (*line != '-')
		return NULL;
	line = parse_hex(line + 1, &end);
	if (at < start || at >= end)
		return NULL;
	while (*line && *line != '/') /* no field before the path holds a slash */
		line++;
	return *line ? line : NULL;
}

int lz_path_of_shim(char *path, size_t size)
{
	struct reader r = { .fd = (int)lz_sys_openat(AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0) };
	char line[LZ_PATH_MAX + 128];
	const char *found = NULL;

	if (r.fd < 0)
		return -1;
	while (!found && next_line(&r, line, sizeof(line)) == 0)
		found = path_of_mapping(line, (uintptr_t)&lz_path_of_shim);
	(void)lz_sys_close(r.fd);
	path[0] = '\0';
	return found ? lz_append(path, size, found) : -1;
}

int lz_volume_of_shim(char *volume, size_t size)
{
	char *cut = NULL;

	if (lz_path_of_shim(volume, size) < 0)
		return -1;
	for (char *p = volume; *p; p++)
		if (lz_after(p, "/.pgoverlay/"))
			cut = p;
	if (!cut || cut == volume) /* an object in /.pgoverlay would make the whole container its volume */
		return -1;
	*cut = '\0';
	return 0;
}
