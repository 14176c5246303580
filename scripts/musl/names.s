# glibc has separate names for functions with 64-bit offsets. In musl, all offsets have 64 bits.
.macro same name
.globl \name\()64
.type \name\()64, @function
\name\()64: jmp \name
.endm

same fstat
same ftruncate
same lseek
same lstat
same mmap
same open
same openat
same pread
same readdir
same stat

# Rust uses posix_spawn depending on glibc's version. Version 0.0 makes it use fork and exec.
.globl gnu_get_libc_version
.type gnu_get_libc_version, @function
gnu_get_libc_version:
    lea none(%rip), %rax
    ret

.section .rodata
none: .asciz "0.0"

.section .note.GNU-stack, "", @progbits
