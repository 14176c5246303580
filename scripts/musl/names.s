# glibc has names of their own for functions whose offsets have 64 bits. In musl, and on x86-64, all have.
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
same readdir
same stat

# By the version Rust decides whether posix_spawn can be trusted; of none it is not, and programs are started by fork and exec.
.globl gnu_get_libc_version
.type gnu_get_libc_version, @function
gnu_get_libc_version:
    lea none(%rip), %rax
    ret

.section .rodata
none: .asciz "0.0"

.section .note.GNU-stack, "", @progbits
