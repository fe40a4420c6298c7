#include "check.h"
#include "write_calls.h"

#include <sys/mman.h>

/* The number of an error no call returns: if it is still there afterwards, the call left errno alone. */
enum { UNTOUCHED = 4711 };

static void every_write_call_copies_up_and_is_seen(void)
{
	for (const struct write_call *c = write_calls; c->name; c++) {
		const char *path = fresh();
		int writer = open_rw(path), lazy = open_rw(path), reader = open(path, O_RDONLY);
		void *f = function(c->name);

		CHECK(reader >= 0);
		if (!f)
			fprintf(stderr, "    %s", c->name);
		CHECK(f);
		CHECK(reads_seed(writer, path, 0, SEED_SIZE));
		CHECK(reads_seed(lazy, path, 0, SEED_SIZE));
		CHECK(reads_seed(reader, path, 0, SEED_SIZE));
		CHECK(!in_upper(path));
		errno = UNTOUCHED;
		CHECK(c->put(f, writer) == 0);
		CHECK(errno == UNTOUCHED);
		CHECK(in_upper(path));
		CHECK(true_accmode(writer) == O_RDWR);
		CHECK(true_accmode(lazy) == O_RDONLY);
		CHECK(reads_news(writer, path));
		CHECK(reads_news(lazy, path));
		CHECK(reads_news(reader, path));
		CHECK(fsync(lazy) == 0);
		close(writer);
		close(lazy);
		close(reader);
	}
}

static void ftruncate_to_nothing_copies_nothing(void)
{
	static const char *const names[] = { "ftruncate", "ftruncate64" };

	for (int i = 0; i < 2; i++) {
		int (*f)(int, off_t) = (int (*)(int, off_t))function(names[i]);
		const char *path = fresh();
		int fd = open_rw(path), old = open_rw(path);

		CHECK(f);
		errno = UNTOUCHED;
		CHECK(f(fd, 0) == 0);
		CHECK(errno == UNTOUCHED);
		CHECK(in_upper(path) && upper_blocks(path) == 0);
		CHECK(lseek(old, 0, SEEK_END) == 0);
		CHECK(lseek(fd, 0, SEEK_CUR) == 0 && lseek(fd, 0, SEEK_END) == 0);
		CHECK(write(fd, NEWS, NEWS_SIZE) == NEWS_SIZE);
		CHECK(reads(old, 0, NEWS, NEWS_SIZE));
	}
}

static void ftruncate_keeps_what_remains(void)
{
	const char *path = fresh();
	int fd = open_rw(path), old = open_rw(path);

	CHECK(ftruncate(fd, 10000) == 0);
	CHECK(lseek(old, 0, SEEK_END) == 10000);
	CHECK(reads_seed(old, path, 0, 10000));
	path = fresh();
	fd = open_rw(path);
	old = open_rw(path);
	CHECK(ftruncate(fd, SEED_SIZE + 8192) == 0);
	CHECK(lseek(old, 0, SEEK_END) == SEED_SIZE + 8192);
	CHECK(reads_seed(old, path, 0, SEED_SIZE));
	CHECK(ftruncate(fd, -1) < 0 && errno == EINVAL);
}

static void truncate_to_nothing_copies_nothing(void)
{
	static const char *const names[] = { "truncate", "truncate64" };

	for (int i = 0; i < 2; i++) {
		int (*f)(const char *, off_t) = (int (*)(const char *, off_t))function(names[i]);
		const char *path = fresh();
		int old = open_rw(path);

		CHECK(f);
		errno = UNTOUCHED;
		CHECK(f(path, 0) == 0);
		CHECK(errno == UNTOUCHED);
		CHECK(in_upper(path) && upper_blocks(path) == 0);
		CHECK(lseek(old, 0, SEEK_END) == 0);
		CHECK(unlink(path) == 0);
		CHECK(write_news(old) == 0); /* its file is ours since the truncation: an unlinked one may be written */
		path = fresh();
		old = open_rw(path);
		CHECK(f(path, 5000) == 0);
		CHECK(lseek(old, 0, SEEK_END) == 5000);
		CHECK(reads_seed(old, path, 0, 5000));
	}
}

static void truncate_fails_alike(void)
{
	const char *const volatile nowhere = NULL; /* volatile: the compiler knows that truncate does not take NULL */

	CHECK(truncate("base/1/none", 0) < 0 && errno == ENOENT);
	CHECK(truncate("base/1", 0) < 0 && errno == EISDIR);
	CHECK(truncate(nowhere, 0) < 0 && errno == EFAULT);
	CHECK(truncate(fresh(), -1) < 0 && errno == EINVAL);
}

static void posix_fallocate_extends(void)
{
	static const char *const names[] = { "posix_fallocate", "posix_fallocate64" };

	for (int i = 0; i < 2; i++) {
		int (*f)(int, off_t, off_t) = (int (*)(int, off_t, off_t))function(names[i]);
		const char *path = fresh();
		int fd = open_rw(path), old = open_rw(path);
		char zeros[8192] = { 0 };

		CHECK(f);
		errno = UNTOUCHED;
		CHECK(f(fd, SEED_SIZE, 16 * 8192) == 0);
		CHECK(errno == UNTOUCHED);
		CHECK(in_upper(path));
		CHECK(lseek(old, 0, SEEK_END) == SEED_SIZE + 16 * 8192);
		CHECK(reads_seed(old, path, 0, SEED_SIZE));
		CHECK(reads(old, SEED_SIZE + 15 * 8192, zeros, sizeof(zeros)));
		errno = UNTOUCHED;
		CHECK(f(-1, 0, 1) == EBADF);
		CHECK(f(fd, 0, 0) == EINVAL);
		CHECK(f(fd, -1, 1) == EINVAL);
		CHECK(errno == UNTOUCHED); /* it returns the number and sets nothing */
	}
}

static void fallocate_extends(void)
{
	static const char *const names[] = { "fallocate", "fallocate64" };

	for (int i = 0; i < 2; i++) {
		int (*f)(int, int, off_t, off_t) = (int (*)(int, int, off_t, off_t))function(names[i]);
		const char *path = fresh();
		int fd = open_rw(path), old = open_rw(path);

		CHECK(f);
		errno = UNTOUCHED;
		CHECK(f(fd, 0, 0, SEED_SIZE + 100) == 0);
		CHECK(errno == UNTOUCHED);
		CHECK(lseek(old, 0, SEEK_END) == SEED_SIZE + 100);
		CHECK(reads_seed(old, path, 0, SEED_SIZE));
		CHECK(f(-1, 0, 0, 1) < 0 && errno == EBADF);
	}
}

/* A shared mapping made before the copy-up would show the old bytes for ever, so it is one of the calls that copy up. */
static void shared_mapping_sees_later_writes(void)
{
	const char *path = fresh();
	int fd = open_rw(path), other = open_rw(path);
	char *at = mmap(NULL, SEED_SIZE, PROT_READ, MAP_SHARED, fd, 0);

	CHECK(at != MAP_FAILED);
	CHECK(in_upper(path));
	CHECK(write_news(other) == 0);
	CHECK(memcmp(at + SPOT, NEWS, NEWS_SIZE) == 0);
	CHECK(mprotect(at, SEED_SIZE, PROT_READ | PROT_WRITE) == 0);
	at[0] = (char)~at[0];
	CHECK(reads(other, 0, at, 1));
}

static void private_and_anonymous_mappings_copy_nothing(void)
{
	const char *path = fresh();
	int fd = open_rw(path);
	char *at = mmap(NULL, SEED_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);

	CHECK(at != MAP_FAILED && (unsigned char)at[5] == seed_byte(path, 5));
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, -1, 0) == MAP_FAILED && errno == EBADF);
	CHECK(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(!in_upper(path));
}

/* Reading sides of the copying calls need no copy. */
static void copying_from_a_lazy_descriptor_copies_nothing_up(void)
{
	const char *path = fresh();
	int from = open_rw(path), to = open("base/1/copy", O_RDWR | O_CREAT | O_TRUNC, 0600);
	off_t a = 0, b = 0;

	CHECK(to >= 0);
	CHECK(copy_file_range(from, &a, to, &b, SEED_SIZE, 0) == SEED_SIZE);
	CHECK(reads_seed(to, path, 0, SEED_SIZE));
	CHECK(!in_upper(path));
	CHECK(unlink("base/1/copy") == 0);
}

static void a_file_changed_in_its_metadata_is_still_lazy(void)
{
	const char *path = fresh();
	int early = open_rw(path), late, writer;

	CHECK(chown(path, 1, 1) == 0); /* metacopy: an inode in the upper (on ext4 a block of attributes, too), its data below */
	CHECK(upper_blocks(path) * 512 < SEED_SIZE);
	late = open_rw(path);
	CHECK(reads_seed(late, path, 0, SEED_SIZE));
	CHECK(upper_blocks(path) * 512 < SEED_SIZE);
	writer = open_rw(path);
	CHECK(write_news(writer) == 0);
	CHECK(reads_news(writer, path) && reads_news(early, path) && reads_news(late, path));
	CHECK(write_news(early) == 0 && write_news(late) == 0);
	CHECK(reads_news(writer, path));
}

const struct test write_tests[] = {
	{ "every write call copies up and is seen by old descriptors", every_write_call_copies_up_and_is_seen },
	{ "ftruncate to nothing copies nothing", ftruncate_to_nothing_copies_nothing },
	{ "ftruncate keeps what remains", ftruncate_keeps_what_remains },
	{ "truncate to nothing copies nothing", truncate_to_nothing_copies_nothing },
	{ "truncate fails alike", truncate_fails_alike },
	{ "posix_fallocate extends", posix_fallocate_extends },
	{ "fallocate extends", fallocate_extends },
	{ "a shared mapping sees later writes", shared_mapping_sees_later_writes },
	{ "private and anonymous mappings copy nothing", private_and_anonymous_mappings_copy_nothing },
	{ "copying from a lazy descriptor copies nothing up", copying_from_a_lazy_descriptor_copies_nothing_up },
	{ "a chowned file is still lazy and coherent", a_file_changed_in_its_metadata_is_still_lazy },
	{ 0 },
};
