/* Raw system calls on x86-64: number in rax, arguments in rdi, rsi, rdx, r10, r8, r9; the kernel clobbers rcx and r11. */
#ifndef LAZYRW_ARCH_AMD64_H
#define LAZYRW_ARCH_AMD64_H

#define LZ_ARCH "amd64"
#define LZ_NR_FSTATAT __NR_newfstatat

static inline long lz_syscall(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}

#endif
