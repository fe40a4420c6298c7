#include "text.h"

size_t lz_length(const char *s)
{
	size_t n = 0;

	while (s[n])
		n++;
	return n;
}

int lz_equal(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

const char *lz_after(const char *s, const char *prefix)
{
	while (*prefix)
		if (*s++ != *prefix++)
			return NULL;
	return s;
}

const char *lz_basename(const char *path)
{
	const char *base = path;

	for (; *path; path++)
		if (*path == '/')
			base = path + 1;
	return base;
}

int lz_append(char *buf, size_t size, const char *s)
{
	size_t at = lz_length(buf);
	size_t n = lz_length(s);

	if (at + n >= size)
		return -1;
	for (size_t i = 0; i <= n; i++)
		buf[at + i] = s[i];
	return 0;
}

int lz_append_number(char *buf, size_t size, unsigned long n)
{
	char digits[24];
	size_t at = sizeof(digits) - 1;

	digits[at] = '\0';
	do {
		digits[--at] = (char)('0' + n % 10);
		n /= 10;
	} while (n);
	return lz_append(buf, size, digits + at);
}

unsigned long lz_number(const char *s)
{
	unsigned long n = 0;

	for (; *s >= '0' && *s <= '9'; s++)
		n = n * 10 + (unsigned long)(*s - '0');
	return n;
}

/*
 * gcc may turn a loop or a structure copy into a call of one of these, also with -ffreestanding (gcc manual, "Standards":
 * a freestanding environment must provide memcpy, memmove, memset and memcmp). Hidden, so that no program ever binds to them.
 */
void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int c, size_t n);

void *memcpy(void *to, const void *from, size_t n)
{
	unsigned char *d = to;
	const unsigned char *s = from;

	while (n--)
		*d++ = *s++;
	return to;
}

void *memset(void *to, int c, size_t n)
{
	unsigned char *d = to;

	while (n--)
		*d++ = (unsigned char)c;
	return to;
}
