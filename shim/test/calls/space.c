#include "check.h"

#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* The number of an error no call returns: if it is still there afterwards, the call left errno alone. */
enum { UNTOUCHED = 4711 };

/* <linux/fiemap.h>, which musl-gcc does not find: struct fiemap up to its extents, and struct fiemap_extent. */
struct map {
	uint64_t start, length;
	uint32_t flags, mapped, count, reserved;
};

struct extent {
	uint64_t logical, physical, length, reserved64[2];
	uint32_t flags, reserved[3];
};

enum {
	SYNC = 1,      /* FIEMAP_FLAG_SYNC */
	DELAYED = 4,   /* FIEMAP_EXTENT_DELALLOC: blocks that wait in memory for their place on the disk */
	SHARED = 8192, /* FIEMAP_EXTENT_SHARED */
};

/* Bytes of the file in extents that have one of these flags, or with has = 0 none of them. */
static long bytes_in_extents(int fd, uint32_t order, uint32_t flags, int has)
{
	struct stat st;
	struct {
		struct map map;
		struct extent extents[64];
	} f = { .map = { .flags = order, .count = 64 } };
	long sum = 0;

	CHECK(fstat(fd, &st) == 0);
	f.map.length = (uint64_t)st.st_size;
	CHECK(ioctl(fd, _IOWR('f', 11, struct map), &f) == 0); /* FS_IOC_FIEMAP */
	for (uint32_t i = 0; i < f.map.mapped; i++) {
		uint64_t end = f.extents[i].logical + f.extents[i].length;

		if (end > f.map.length) /* XFS allocates beyond the end, for a while */
			end = f.map.length;
		if (!(f.extents[i].flags & flags) == !has)
			sum += (long)(end - f.extents[i].logical);
	}
	return sum;
}

/* On an overlay the call itself does nothing. The kernel's own writeback comes after 30 seconds (vm.dirty_expire_centisecs). */
static void sync_file_range_of_a_new_file_starts_its_writeback(void)
{
	int (*f)(int, off_t, off_t, unsigned) = (int (*)(int, off_t, off_t, unsigned))function("sync_file_range");
	static const char bytes[1 << 20] = { 1 };
	int fd = open("base/1/synced", O_RDWR | O_CREAT | O_EXCL, 0600), left = open("base/1/left", O_RDWR | O_CREAT | O_EXCL, 0600);

	CHECK(f && fd >= 0 && left >= 0);
	CHECK(write(fd, bytes, sizeof(bytes)) == sizeof(bytes) && write(left, bytes, sizeof(bytes)) == sizeof(bytes));
	CHECK(bytes_in_extents(fd, 0, DELAYED, 1) > 0);
	errno = UNTOUCHED;
	CHECK(f(fd, 0, sizeof(bytes), SYNC_FILE_RANGE_WRITE) == 0);
	CHECK(errno == UNTOUCHED);
	for (int i = 0; bytes_in_extents(fd, 0, DELAYED, 1) > 0; i++) {
		CHECK(i < 500);
		usleep(10000);
	}
	CHECK(bytes_in_extents(left, 0, DELAYED, 1) > 0);
	CHECK(f(-1, 0, 0, SYNC_FILE_RANGE_WRITE) < 0 && errno == EBADF);
	CHECK(f(fd, -1, 0, SYNC_FILE_RANGE_WRITE) < 0 && errno == EINVAL);
	CHECK(unlink("base/1/synced") == 0 && unlink("base/1/left") == 0);
}

/* What Postgres adds to a relation at once (smgrzeroextend), and the ways in which it does. */
enum { ADDED = 16 * 8192, SLACK = 16384, WAYS = 4 };

static void extend(int way, int fd, off_t at)
{
	static char zeros[ADDED];
	struct iovec iov[2] = { { zeros, ADDED / 2 }, { zeros, ADDED / 2 } };

	switch (way) {
	case 0:
		CHECK(posix_fallocate(fd, at, ADDED) == 0);
		break;
	case 1:
		CHECK(fallocate(fd, 0, at, ADDED) == 0);
		break;
	case 2:
		CHECK(pwrite(fd, zeros, ADDED, at) == ADDED);
		break;
	default:
		CHECK(pwritev(fd, iov, 2, at) == ADDED);
	}
}

/*
 * An extension owns what it adds, beside the one copy that the first write to a seed's file makes where the file system cannot
 * clone. Where it can, not even that.
 */
static void an_extension_owns_what_it_adds(void)
{
	for (int way = 0; way < WAYS; way++) {
		const char *path = fresh();
		int fd = open_rw(path), old = open_rw(path);
		char zeros[8192] = { 0 };
		long there = atoi(getenv("LZ_CLONES")) ? 0 : SEED_SIZE;

		extend(way, fd, SEED_SIZE);
		CHECK(lseek(old, 0, SEEK_END) == SEED_SIZE + ADDED);
		CHECK(reads_seed(old, path, 0, SEED_SIZE));
		CHECK(reads(old, SEED_SIZE + ADDED - 8192, zeros, sizeof(zeros)));
		CHECK(bytes_in_extents(fd, SYNC, SHARED, 0) <= there + ADDED + SLACK);
	}
}

/* Where nothing is to remain, nothing is copied: in an emptied file of the seed, and in a new one. */
static void an_extension_from_nothing_copies_nothing(void)
{
	for (int way = 0; way < WAYS; way++) {
		const char *path = fresh();
		int fd = open_rw(path);

		CHECK(ftruncate(fd, 0) == 0);
		extend(way, fd, 0);
		CHECK(bytes_in_extents(fd, SYNC, SHARED, 1) == 0);
		CHECK(upper_blocks(path) * 512 <= ADDED + SLACK);
	}
}

const struct test space_tests[] = {
	{ "sync_file_range of a new file starts its writeback", sync_file_range_of_a_new_file_starts_its_writeback },
	{ "an extension owns what it adds", an_extension_owns_what_it_adds },
	{ "an extension from nothing copies nothing", an_extension_from_nothing_copies_nothing },
	{ 0 },
};

/* FS_IOC_SHUTDOWN (include/uapi/linux/fs.h), with what keeps the log in memory from the disk. */
static void cut_power(void)
{
	const uint32_t no_log_flush = 2;
	int dir = open(getenv("LZ_UPPER"), O_RDONLY | O_DIRECTORY);

	CHECK(dir >= 0 && ioctl(dir, _IOR('X', 125, uint32_t), &no_log_flush) == 0);
}

static const char *const synced = "base/1/0", *const unsynced = "base/1/1";

/*
 * Another process writes two files that this one has open for reading in truth. The fsync by such an old descriptor must make
 * durable what is in the upper file; then the power goes.
 */
void sync_and_cut(void)
{
	int old = open_rw(synced), other = open_rw(unsynced), status;

	if (fork() == 0) {
		CHECK(write_news(open_rw(synced)) == 0 && write_news(open_rw(unsynced)) == 0);
		_exit(0);
	}
	CHECK(wait(&status) > 0 && status == 0);
	CHECK(true_accmode(old) == O_RDONLY && true_accmode(other) == O_RDONLY);
	CHECK(fsync(old) == 0);
	cut_power();
}

/* After the cut: what was fsynced is there, and what was not is lost, without which the first would prove nothing. */
void look_after_cut(void)
{
	CHECK(in_upper(synced) && reads_news(open(synced, O_RDONLY), synced));
	CHECK(reads_seed(open(unsynced, O_RDONLY), unsynced, 0, SEED_SIZE));
}
