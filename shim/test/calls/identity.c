#include "check.h"

/*
 * Between the lazy open and the first write, the name may have come to mean another file. What is written must reach the
 * file that was opened, or nothing.
 */

static void a_renamed_file_is_still_found(void)
{
	const char *path = fresh();
	int fd = open_rw(path), reader;

	CHECK(rename(path, "base/1/moved") == 0);
	CHECK(write_news(fd) == 0);
	reader = open("base/1/moved", O_RDONLY);
	CHECK(reads_news(reader, path));
	CHECK(access(path, F_OK) < 0 && errno == ENOENT);
	CHECK(unlink("base/1/moved") == 0);
}

/* Stands for a file that another process puts in the place of the one that fd has open. */
static void put_other_file_at(const char *path)
{
	int fd = open("base/1/other", O_RDWR | O_CREAT | O_EXCL, 0600);

	CHECK(fd >= 0 && write(fd, "the other file", 14) == 14 && close(fd) == 0);
	CHECK(rename("base/1/other", path) == 0);
}

static void check_other_file_at(const char *path)
{
	int fd = open(path, O_RDONLY);

	CHECK(fd >= 0 && lseek(fd, 0, SEEK_END) == 14);
	CHECK(reads(fd, 0, "the other file", 14));
}

static void a_file_renamed_over_is_never_written_by_its_successor(void)
{
	const char *path = fresh();
	int fd = open_rw(path);

	put_other_file_at(path);
	CHECK(write_news(fd) == ESTALE);
	CHECK(ftruncate(fd, 0) < 0 && errno == ESTALE);
	CHECK(dup(fd) < 0 && errno == ESTALE);
	check_other_file_at(path);
	CHECK(reads_seed(fd, path, 0, SEED_SIZE)); /* the old file is still there to be read */
}

static void an_unlinked_lower_file_does_not_come_back(void)
{
	const char *path = fresh();
	int fd = open_rw(path);

	CHECK(unlink(path) == 0);
	CHECK(write_news(fd) == ESTALE);
	CHECK(ftruncate(fd, 0) < 0 && errno == ESTALE);
	CHECK(access(path, F_OK) < 0 && errno == ENOENT);
	CHECK(!in_upper(path));
	CHECK(reads_seed(fd, path, 0, SEED_SIZE));
	fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0 && write_news(fd) == 0);
}

static void an_unlinked_and_made_again_file_is_another(void)
{
	const char *path = fresh();
	int fd = open_rw(path), again;

	CHECK(unlink(path) == 0);
	again = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
	CHECK(again >= 0 && write(again, "the other file", 14) == 14);
	CHECK(write_news(fd) == ESTALE);
	check_other_file_at(path);
}

static void an_unlinked_upper_file_is_written(void)
{
	const char *path = fresh();
	int writer = open_rw(path), lazy = open_rw(path);

	CHECK(pwrite(writer, "x", 1, 0) == 1);
	CHECK(unlink(path) == 0);
	CHECK(write_news(lazy) == 0); /* as on any file system: the file lives until its last descriptor */
	CHECK(reads(writer, SPOT, NEWS, NEWS_SIZE));
	put_other_file_at(path);
	lazy = open_rw(path);
	CHECK(write(lazy, "THE", 3) == 3);
	CHECK(reads(writer, SPOT, NEWS, NEWS_SIZE));
	writer = open(path, O_RDONLY);
	CHECK(reads(writer, 0, "THE other file", 14));
}

/* A whole directory removed and made again (DROP DATABASE; CREATE DATABASE with the same OID in redo). */
static void a_file_of_a_removed_directory_does_not_come_back(void)
{
	int fd = open_rw("base/2/0"), again;

	CHECK(unlink("base/2/0") == 0 && rmdir("base/2") == 0);
	CHECK(write_news(fd) != 0);
	CHECK(access("base/2", F_OK) < 0);
	CHECK(mkdir("base/2", 0700) == 0);
	CHECK(write_news(fd) != 0);
	CHECK(access("base/2/0", F_OK) < 0 && errno == ENOENT);
	again = open("base/2/0", O_RDWR | O_CREAT | O_EXCL, 0600);
	CHECK(again >= 0 && write(again, "the other file", 14) == 14);
	CHECK(write_news(fd) != 0);
	check_other_file_at("base/2/0");
}

const struct test identity_tests[] = {
	{ "a renamed file is still found", a_renamed_file_is_still_found },
	{ "a file renamed over: its successor is not written", a_file_renamed_over_is_never_written_by_its_successor },
	{ "an unlinked lower file does not come back", an_unlinked_lower_file_does_not_come_back },
	{ "an unlinked file made again is another", an_unlinked_and_made_again_file_is_another },
	{ "an unlinked upper file is written", an_unlinked_upper_file_is_written },
	{ "a file of a removed directory does not come back", a_file_of_a_removed_directory_does_not_come_back },
	{ 0 },
};
