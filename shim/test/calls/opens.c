#include "check.h"

static const char *const volatile nowhere = NULL; /* volatile: the compiler knows that open does not take NULL */

typedef int open_fn(const char *, int, ...);
typedef int openat_fn(int, const char *, int, ...);

/* The descriptor is lazy: nothing copied, and yet all that a caller can ask says O_RDWR. Then it writes like any other. */
static void check_lazy(int fd, const char *path)
{
	CHECK(fd >= 0);
	CHECK(!in_upper(path));
	CHECK(true_accmode(fd) == O_RDONLY);
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
	CHECK(reads_seed(fd, path, 0, SEED_SIZE));
	CHECK(write_news(fd) == 0);
	CHECK(in_upper(path));
	CHECK(reads_news(fd, path));
	CHECK(true_accmode(fd) == O_RDWR);
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
	CHECK(close(fd) == 0);
}

static void every_open_is_lazy(void)
{
	static const char *const names[] = { "open", "open64", "__open", "__open64", "__open_2", "__open64_2" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		open_fn *f = (open_fn *)function(names[i]);
		const char *path = fresh();

		CHECK(f);
		check_lazy(f(path, O_RDWR), path);
	}
}

static void every_openat_is_lazy(void)
{
	static const char *const names[] = { "openat", "openat64", "__openat_2", "__openat64_2" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		openat_fn *f = (openat_fn *)function(names[i]);
		const char *path = fresh();

		CHECK(f);
		check_lazy(f(AT_FDCWD, path, O_RDWR), path);
	}
}

static void absolute_and_dotted_paths_are_lazy(void)
{
	char cwd[2048], full[4096];
	const char *path = fresh();

	CHECK(getcwd(cwd, sizeof(cwd)));
	snprintf(full, sizeof(full), "%s/%s", cwd, path);
	check_lazy(open(full, O_RDWR), path);
	path = fresh();
	snprintf(full, sizeof(full), "././%s", path);
	check_lazy(open(full, O_RDWR), path);
	path = fresh();
	snprintf(full, sizeof(full), "%s/%s", cwd, path);
	check_lazy(openat(12345, full, O_RDWR), path); /* the descriptor is ignored for an absolute path */
}

static void write_only_open_is_lazy(void)
{
	const char *path = fresh();
	int fd = open(path, O_WRONLY);

	CHECK(fd >= 0);
	CHECK(!in_upper(path));
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY);
	CHECK(write_news(fd) == 0);
	CHECK(true_accmode(fd) == O_WRONLY);
	CHECK(reads_news(open(path, O_RDONLY), path));
}

static void create_of_an_existing_file_is_lazy(void)
{
	const char *path = fresh();

	check_lazy(open(path, O_RDWR | O_CREAT, 0600), path);
	path = fresh();
	check_lazy(openat(AT_FDCWD, path, O_RDWR | O_CREAT, 0600), path);
}

static void create_of_a_new_file_creates_it(void)
{
	struct stat st;
	int fd;

	umask(0);
	fd = open("base/1/new", O_RDWR | O_CREAT, 0640);
	CHECK(fd >= 0);
	CHECK(in_upper("base/1/new"));
	CHECK(fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0640);
	CHECK(true_accmode(fd) == O_RDWR);
	CHECK(write(fd, NEWS, NEWS_SIZE) == NEWS_SIZE);
	CHECK(reads(fd, 0, NEWS, NEWS_SIZE));
}

static void exclusive_create_of_an_existing_file_copies_nothing(void)
{
	const char *path = fresh();

	CHECK(open(path, O_RDWR | O_CREAT | O_EXCL, 0600) < 0 && errno == EEXIST);
	CHECK(!in_upper(path));
}

static void truncating_open_copies_nothing(void)
{
	static const char *const names[] = { "creat", "creat64" };
	const char *path = fresh();
	int old = open_rw(path);
	int fd = open(path, O_RDWR | O_TRUNC);

	CHECK(fd >= 0);
	CHECK(in_upper(path) && upper_blocks(path) == 0);
	CHECK(lseek(old, 0, SEEK_END) == 0);
	CHECK(true_accmode(fd) == O_RDWR);
	for (size_t i = 0; i < 2; i++) {
		int (*f)(const char *, mode_t) = (int (*)(const char *, mode_t))function(names[i]);

		path = fresh();
		CHECK(f && (fd = f(path, 0600)) >= 0);
		CHECK(in_upper(path) && upper_blocks(path) == 0);
		CHECK(write(fd, NEWS, NEWS_SIZE) == NEWS_SIZE);
	}
}

static void read_only_open_stays_read_only(void)
{
	const char *path = fresh();
	int fd = open(path, O_RDONLY);

	CHECK(fd >= 0);
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY);
	CHECK(write_news(fd) == EBADF);
	CHECK(!in_upper(path));
}

static void failing_opens_fail_alike(void)
{
	CHECK(open("base/1/none", O_RDWR) < 0 && errno == ENOENT);
	CHECK(open("base/none/1", O_RDWR | O_CREAT, 0600) < 0 && errno == ENOENT);
	CHECK(open("base/1", O_RDWR) < 0 && errno == EISDIR);
	CHECK(open("base/1/0/1", O_RDWR) < 0 && errno == ENOTDIR);
	CHECK(open(nowhere, O_RDWR) < 0 && errno == EFAULT);
	CHECK(open(nowhere, O_RDWR | O_CREAT | O_EXCL, 0600) < 0 && errno == EFAULT);
	CHECK(openat(12345, "base/1/0", O_RDWR) < 0 && errno == EBADF);
}

static void other_places_are_opened_as_asked(void)
{
	int fd = open("PG_VERSION", O_RDWR);

	CHECK(fd >= 0);
	CHECK(true_accmode(fd) == O_RDWR);
	fd = open("pg_wal/000000010000000000000001", O_RDWR);
	CHECK(fd >= 0);
	CHECK(true_accmode(fd) == O_RDWR);
	fd = open("/dev/null", O_RDWR);
	CHECK(fd >= 0);
	CHECK(true_accmode(fd) == O_RDWR);
}

static void temporary_file_without_a_name(void)
{
	int fd = open("base/1", O_TMPFILE | O_RDWR, 0600);

	CHECK(fd >= 0);
	CHECK(write_news(fd) == 0);
	CHECK(reads(fd, SPOT, NEWS, NEWS_SIZE));
}

static void a_read_only_pass_leaves_the_upper_empty(void)
{
	for (int i = 0; i < 50; i++) {
		const char *path = fresh();
		int fd = open_rw(path);
		struct stat st;

		CHECK(reads_seed(fd, path, 0, SEED_SIZE));
		CHECK(lseek(fd, 0, SEEK_END) == SEED_SIZE);
		CHECK(fstat(fd, &st) == 0 && st.st_size == SEED_SIZE);
		CHECK(fsync(fd) == 0);
		CHECK(fdatasync(fd) == 0);
		CHECK(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE) == 0);
		CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED) == 0);
		CHECK(close(fd) == 0);
		CHECK(!in_upper(path));
	}
}

const struct test open_tests[] = {
	{ "every open is lazy", every_open_is_lazy },
	{ "every openat is lazy", every_openat_is_lazy },
	{ "absolute and dotted paths are lazy", absolute_and_dotted_paths_are_lazy },
	{ "write-only open is lazy", write_only_open_is_lazy },
	{ "O_CREAT on an existing file is lazy", create_of_an_existing_file_is_lazy },
	{ "O_CREAT on no file creates it", create_of_a_new_file_creates_it },
	{ "O_EXCL on an existing file copies nothing", exclusive_create_of_an_existing_file_copies_nothing },
	{ "O_TRUNC and creat copy nothing", truncating_open_copies_nothing },
	{ "O_RDONLY stays read-only", read_only_open_stays_read_only },
	{ "failing opens fail alike", failing_opens_fail_alike },
	{ "other places are opened as asked", other_places_are_opened_as_asked },
	{ "O_TMPFILE", temporary_file_without_a_name },
	{ "a read-only pass leaves the upper empty", a_read_only_pass_leaves_the_upper_empty },
	{ 0 },
};

/* Without the shim, the same open copies the file. Were it not so, every test above would prove nothing. */
static void open_for_writing_copies_the_file(void)
{
	const char *path = fresh();
	int fd = open_rw(path);

	CHECK(in_upper(path));
	CHECK(upper_blocks(path) * 512 >= SEED_SIZE);
	CHECK(true_accmode(fd) == O_RDWR);
}

static void truncate_by_path_copies_the_file(void)
{
	const char *path = fresh();

	CHECK(truncate(path, 0) == 0);
	CHECK(in_upper(path));
}

const struct test control_tests[] = {
	{ "control: an open for writing copies the file", open_for_writing_copies_the_file },
	{ "control: truncate by path works", truncate_by_path_copies_the_file },
	{ 0 },
};
