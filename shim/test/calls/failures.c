#include "check.h"
#include "write_calls.h"

#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>

/*
 * After a first write that was refused: the file is not in the upper, reads go on, the descriptor is lazy still, and the
 * number of open files is what it was.
 */
static void check_untouched(int fd, const char *path)
{
	CHECK(!in_upper(path));
	CHECK(reads_seed(fd, path, 0, SEED_SIZE));
	CHECK(true_accmode(fd) == O_RDONLY);
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
}

/* The lowest free number: grows when something was leaked. */
static int next_number(void)
{
	int fd = open("/dev/null", O_RDONLY);

	CHECK(fd >= 0 && close(fd) == 0);
	return fd;
}

static void emfile_fails_the_write_only(void)
{
	const char *path = fresh();
	int fd = open_rw(path), free_number = next_number();
	struct rlimit limit, none;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	none = limit;
	none.rlim_cur = (rlim_t)free_number;
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	CHECK(write_news(fd) == EMFILE);
	CHECK(ftruncate(fd, 100) < 0 && errno == EMFILE);
	CHECK(ftruncate(fd, 0) < 0 && errno == EMFILE);
	errno = 0;
	CHECK(posix_fallocate(fd, 0, SEED_SIZE * 2) == EMFILE);
	CHECK(errno == 0);
	CHECK(dup(fd) < 0 && errno == EMFILE);
	check_untouched(fd, path);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	CHECK(next_number() == free_number);
	CHECK(write_news(fd) == 0);
	CHECK(reads_news(fd, path));
	CHECK(next_number() == free_number); /* nor does a first write that succeeds leave one open */
}

/* truncate(path, 0) needs no descriptor, so it must do without one. */
static void truncate_by_path_works_without_a_free_descriptor(void)
{
	const char *path = fresh();
	int fd = open_rw(path);
	struct rlimit none = { (rlim_t)next_number(), 1024 };

	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	CHECK(truncate(path, 0) == 0);
	CHECK(lseek(fd, 0, SEEK_END) == 0);
}

static void eacces_fails_every_write_call(void)
{
	int (*allocate)(int, off_t, off_t) = (int (*)(int, off_t, off_t))function("posix_fallocate");
	int free_number = next_number();

	CHECK(setgid(12345) == 0 && setuid(12345) == 0); /* may read base/1/N, may not write */
	for (const struct write_call *c = write_calls; c->name; c++) {
		const char *path = fresh();
		int fd = open_rw(path);

		CHECK(c->put(function(c->name), fd) == EACCES);
		CHECK(ftruncate(fd, 1) < 0 && errno == EACCES);
		CHECK(ftruncate(fd, 0) < 0 && errno == EACCES);
		CHECK(truncate(path, 0) < 0 && errno == EACCES);
		CHECK(allocate(fd, 0, 1) == EACCES);
		CHECK(fallocate(fd, 0, 0, 1) < 0 && errno == EACCES);
		CHECK(dup(fd) < 0 && errno == EACCES);
		CHECK(dup2(fd, 250) < 0 && errno == EACCES);
		check_untouched(fd, path);
		CHECK(close(fd) == 0);
		CHECK(next_number() == free_number);
	}
}

static void erofs_fails_the_write_only(void)
{
	const char *path = fresh();
	char cwd[4096];
	int fd;

	CHECK(unshare(CLONE_NEWNS) == 0); /* the read-only view is this process's alone */
	fd = open_rw(path);
	CHECK(getcwd(cwd, sizeof(cwd)));
	CHECK(mount(NULL, cwd, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0);
	CHECK(write_news(fd) == EROFS);
	check_untouched(fd, path);
	CHECK(mount(NULL, cwd, NULL, MS_REMOUNT | MS_BIND, NULL) == 0);
	CHECK(write_news(fd) == 0);
}

/* Eats the space of the upper's file system, and gives it back. */
static int fill(void)
{
	static char block[1 << 20];
	int fd = open("../fill", O_RDWR | O_CREAT | O_TRUNC, 0600);
	size_t n = sizeof(block);

	CHECK(fd >= 0);
	memset(block, 'x', sizeof(block)); /* not zero, and not shared: btrfs and XFS must pay for it */
	while (n >= 4096) {
		if (write(fd, block, n) != (ssize_t)n)
			n /= 2;
	}
	fsync(fd);
	while (write(fd, block, 4096) == 4096) /* what the delayed allocation gave back */
		;
	return fd;
}

/*
 * Truncation to nothing needs no room for what it drops, whichever of the three ways it takes: with less space than one
 * file left, a write is refused and a truncation is not. (Where a copy is a clone there is always room.)
 */
static void truncation_needs_no_space(int filler)
{
	off_t size = lseek(filler, 0, SEEK_END);
	const char *path = fresh();
	int fd = open_rw(path);

	CHECK(ftruncate(filler, size - SEED_SIZE / 2) == 0 && fsync(filler) == 0);
	CHECK(write_news(fd) == ENOSPC);
	check_untouched(fd, path);
	CHECK(ftruncate(fd, 0) == 0);
	CHECK(lseek(fd, 0, SEEK_END) == 0);
	path = fresh();
	fd = open_rw(path);
	CHECK(truncate(path, 0) == 0);
	CHECK(lseek(fd, 0, SEEK_END) == 0);
	CHECK(open(fresh(), O_RDWR | O_TRUNC) >= 0);
}

/*
 * A disk without space: where the copy is a clone, the first write may still fit in what is left of metadata; then it must be
 * there. Otherwise it fails with ENOSPC, the file is as it was, and once there is space the same descriptor writes.
 */
static void enospc_fails_the_write_only(void)
{
	char upper[4096], cwd[4096];
	int filler, refused = 0;

	snprintf(upper, sizeof(upper), "%s", getenv("LZ_UPPER"));
	CHECK(getcwd(cwd, sizeof(cwd)));
	CHECK(chdir(upper) == 0);
	filler = fill();
	CHECK(chdir(cwd) == 0);
	if (!atoi(getenv("LZ_CLONES")))
		truncation_needs_no_space(filler);
	for (int i = 0; i < 20; i++) {
		const char *path = fresh();
		int fd = open_rw(path);
		int rc = write_news(fd);

		CHECK(rc == 0 || rc == ENOSPC);
		if (rc == 0) {
			CHECK(in_upper(path) && reads_news(fd, path));
			continue;
		}
		refused++;
		CHECK(reads_seed(fd, path, 0, SEED_SIZE));
		if (true_accmode(fd) == O_RDONLY)
			check_untouched(fd, path);
		CHECK(write_news(fd) == ENOSPC);
		CHECK(ftruncate(filler, 0) == 0 && fsync(filler) == 0);
		CHECK(write_news(fd) == 0);
		CHECK(in_upper(path) && reads_news(fd, path));
		CHECK(fsync(fd) == 0);
		break;
	}
	CHECK(ftruncate(filler, 0) == 0 && fsync(filler) == 0);
	CHECK(close(filler) == 0);
	CHECK(refused || atoi(getenv("LZ_CLONES")));
}

const struct test failure_tests[] = {
	{ "EMFILE fails the write only", emfile_fails_the_write_only },
	{ "truncate by path works without a free descriptor", truncate_by_path_works_without_a_free_descriptor },
	{ "EACCES fails every write call", eacces_fails_every_write_call },
	{ "EROFS fails the write only", erofs_fails_the_write_only },
	{ "ENOSPC fails the write only", enospc_fails_the_write_only },
	{ 0 },
};

/* FS_IOC_SHUTDOWN (include/uapi/linux/fs.h), which ext4 and XFS know by names of their own; 2 keeps the log from the disk. */
static void stop_file_system(void)
{
	int dir = open(getenv("LZ_UPPER"), O_RDONLY | O_DIRECTORY), flags = 2;

	CHECK(dir >= 0);
	CHECK(ioctl(dir, _IOR('X', 125, unsigned int), &flags) == 0);
	CHECK(close(dir) == 0);
}

/*
 * A file system that has met its end: the reopen fails as the write to it would, and takes nothing else along. Only the calls
 * that are told where to write: XFS lets nobody seek any more.
 */
static void eio_fails_every_write_call(void)
{
	const struct write_call *calls[16];
	const char *path = NULL;
	int fds[16], n = 0, free_number;

	for (const struct write_call *c = write_calls; c->name; c++) {
		if (!strstr(c->name, "pwrite"))
			continue;
		CHECK(n < 16);
		path = fresh();
		calls[n] = c;
		fds[n++] = open_rw(path);
	}
	CHECK(n >= 4);
	free_number = next_number();
	stop_file_system();
	for (int i = 0; i < n; i++) {
		CHECK(calls[i]->put(function(calls[i]->name), fds[i]) == EIO);
		CHECK(ftruncate(fds[i], 1) < 0 && errno == EIO);
		CHECK(ftruncate(fds[i], 0) < 0 && errno == EIO);
		CHECK(posix_fallocate(fds[i], 0, 1) == EIO);
		CHECK(dup(fds[i]) < 0 && errno == EIO);
		CHECK(true_accmode(fds[i]) == O_RDONLY);
		CHECK((fcntl(fds[i], F_GETFL) & O_ACCMODE) == O_RDWR);
		CHECK(next_number() == free_number);
	}
}

/* Nothing can be done to the file system afterwards but to unmount it. */
const struct test last_tests[] = {
	{ "EIO fails every write call", eio_fails_every_write_call },
	{ 0 },
};
