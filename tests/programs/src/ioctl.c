/*
 * A library whose ioctl stands in front of the C library's, as that of a tracer or of a program with a function of this name does. Its
 * calls are counted: `ioctl N` on stderr at the end.
 */
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned long calls;

int ioctl(int descriptor, unsigned long request, void *argument)
{
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    return (int)syscall(SYS_ioctl, descriptor, request, argument);
}

__attribute__((destructor)) static void report(void)
{
    fprintf(stderr, "ioctl %lu\n", calls);
}
