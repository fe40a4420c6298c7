#include "got.h"

#include <linux/auxvec.h>
#include <linux/elf.h>

#include "kernel.h"
#include "table.h"
#include "text.h"

#if defined(__x86_64__)
enum { JUMP_SLOT = 7, GLOB_DAT = 6, ABSOLUTE = 1 }; /* R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64 */
#else
enum { JUMP_SLOT = 1026, GLOB_DAT = 1025, ABSOLUTE = 257 }; /* R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64 */
#endif

/* <elf.h> has these; the uapi header does not. */
enum { TAG_JMPREL = 23, TAG_PLTRELSZ = 2, TAG_RELA = 7, TAG_RELASZ = 8, TAG_SYMTAB = 6, TAG_STRTAB = 5, SEGMENT_RELRO = 0x6474e552 };

/* The part of struct dl_phdr_info (link.h) that glibc and musl have in common. */
struct object_info {
	uintptr_t base;
	const char *name;
	const Elf64_Phdr *headers;
	uint16_t count;
};

extern int dl_iterate_phdr(int (*)(struct object_info *, size_t, void *), void *) __attribute__((weak, visibility("default")));
extern void *dlopen(const char *, int) __attribute__((weak, visibility("default")));

struct object {
	uintptr_t base, low, high;         /* where it is loaded */
	uintptr_t relro_start, relro_end;  /* read-only since it was relocated */
	const Elf64_Dyn *dynamic;
	const Elf64_Sym *symbols;
	const char *strings;
	const Elf64_Rela *relocations[2];  /* of the PLT, and all others */
	size_t counts[2];
};

static uintptr_t page_size(void)
{
	struct {
		uint64_t key, value;
	} entry;
	uintptr_t size = 4096;
	int fd = (int)lz_sys_openat(AT_FDCWD, "/proc/self/auxv", O_RDONLY | O_CLOEXEC, 0);

	if (fd < 0)
		return 0;
	while (lz_sys_read(fd, &entry, sizeof(entry)) == sizeof(entry) && entry.key != AT_NULL)
		if (entry.key == AT_PAGESZ)
			size = entry.value;
	(void)lz_sys_close(fd);
	return size;
}

static void read_headers(struct object *o, const struct object_info *info)
{
	o->base = info->base;
	o->low = UINTPTR_MAX;
	for (unsigned i = 0; i < info->count; i++) {
		const Elf64_Phdr *h = &info->headers[i];
		uintptr_t start = info->base + h->p_vaddr, end = start + h->p_memsz;

		if (h->p_type == PT_LOAD) {
			o->low = start < o->low ? start : o->low;
			o->high = end > o->high ? end : o->high;
		} else if (h->p_type == PT_DYNAMIC) {
			o->dynamic = (const Elf64_Dyn *)start;
		} else if (h->p_type == SEGMENT_RELRO) {
			o->relro_start = start;
			o->relro_end = end;
		}
	}
}

/* glibc turns the pointers of the dynamic section into addresses (elf/get-dynamic-info.h), musl leaves them as offsets. */
static const void *address(const struct object *o, uint64_t pointer)
{
	return (const void *)(pointer >= o->low && pointer < o->high ? pointer : o->base + pointer);
}

static void read_dynamic(struct object *o)
{
	for (const Elf64_Dyn *d = o->dynamic; d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case TAG_SYMTAB:
			o->symbols = address(o, d->d_un.d_ptr);
			break;
		case TAG_STRTAB:
			o->strings = address(o, d->d_un.d_ptr);
			break;
		case TAG_JMPREL:
			o->relocations[0] = address(o, d->d_un.d_ptr);
			break;
		case TAG_PLTRELSZ:
			o->counts[0] = d->d_un.d_val / sizeof(Elf64_Rela);
			break;
		case TAG_RELA:
			o->relocations[1] = address(o, d->d_un.d_ptr);
			break;
		case TAG_RELASZ:
			o->counts[1] = d->d_un.d_val / sizeof(Elf64_Rela);
			break;
		}
	}
}

static long protect(uintptr_t page, uintptr_t size, int prot)
{
	return lz_syscall(__NR_mprotect, (long)page, (long)size, prot, 0, 0, 0);
}

/* Returns 1 when the slot was changed. */
static int put(const struct object *o, uintptr_t slot, void *function, uintptr_t page)
{
	uintptr_t at = slot & ~(page - 1);
	int sealed = at + page > o->relro_start && at < o->relro_end;

	if (*(void **)slot == function)
		return 0;
	if (sealed && protect(at, page, PROT_READ | PROT_WRITE) < 0)
		return 0;
	*(void **)slot = function;
	/* The page that RELRO ends in may be writable by right: only those that lie in it whole are sealed again. */
	if (sealed && at + page <= o->relro_end && protect(at, page, PROT_READ) < 0)
		return 1; /* changed, if less well kept */
	return 1;
}

static void *dlopen_and_patch(const char *path, int flags)
{
	void *handle = dlopen(path, flags);

	if (handle)
		(void)lz_got_patch(); /* what an object asks of libc is patched, or there was nothing to patch */
	return handle;
}

static void *wanted(const char *name)
{
	return lz_equal(name, "dlopen") ? (void *)dlopen_and_patch : lz_wrapper_of(name);
}

static unsigned patch_list(const struct object *o, const Elf64_Rela *list, size_t count, uintptr_t page)
{
	unsigned changed = 0;

	for (size_t i = 0; list && i < count; i++) {
		unsigned type = (unsigned)ELF64_R_TYPE(list[i].r_info);
		const Elf64_Sym *symbol = &o->symbols[ELF64_R_SYM(list[i].r_info)];
		void *function;

		if ((type != JUMP_SLOT && type != GLOB_DAT && type != ABSOLUTE) || list[i].r_addend != 0)
			continue;
		function = wanted(o->strings + symbol->st_name);
		if (function)
			changed += (unsigned)put(o, o->base + list[i].r_offset, function, page);
	}
	return changed;
}

struct pass {
	unsigned changed;
	uintptr_t page;
};

static int patch_object(struct object_info *info, size_t size, void *arg)
{
	struct pass *pass = arg;
	struct object o = { 0 };

	(void)size;
	read_headers(&o, info);
	if (!o.dynamic || ((uintptr_t)&patch_object >= o.low && (uintptr_t)&patch_object < o.high))
		return 0; /* this object's own dlopen must stay libc's */
	read_dynamic(&o);
	if (!o.symbols || !o.strings)
		return 0;
	for (int i = 0; i < 2; i++)
		pass->changed += patch_list(&o, o.relocations[i], o.counts[i], pass->page);
	return 0;
}

unsigned lz_got_patch(void)
{
	struct pass pass = { 0, page_size() };

	if (!dl_iterate_phdr || !dlopen || pass.page == 0)
		return 0;
	(void)dl_iterate_phdr(patch_object, &pass); /* patch_object never asks to stop */
	return pass.changed;
}
