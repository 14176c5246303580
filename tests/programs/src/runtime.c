/*
 * Uses the driver as the CUDA runtime does, by what NVIDIA documents of both, and prints one JSON object with what it obtained:
 *
 *     runtime VERSION FLAGS MAX
 *
 * The only function that it looks up is cuGetProcAddress. All others it gets from that one, for the CUDA version VERSION (12000 or 13000)
 * and with FLAGS (0: default, 1: legacy stream, 2: per-thread default stream). Then it retains the primary context, loads code as a
 * library and as a module, copies in both directions, launches by both launch functions, times it with events, records a stream into a
 * graph and launches that, compares the data, and allocates MAX bytes or until it is refused: as linear memory, then in stream order.
 * Exits with 1 and a line on stderr if a function is missing, a call fails, or data are wrong.
 *
 * It is not NVIDIA's runtime, which also asks for tables of functions that are not documented (tests/simgpu/README.md).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address_t;
typedef int (*ask_t)(const char *, void **, int, unsigned long long, int *);

/* CUlaunchConfig */
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
} launch_t;

/* Name without the suffix of a version, and arguments. */
#define FUNCTIONS(F) \
    F(cuInit, (unsigned)) \
    F(cuDriverGetVersion, (int *)) \
    F(cuGetErrorName, (int, const char **)) \
    F(cuDeviceGetCount, (int *)) \
    F(cuDeviceGet, (int *, int)) \
    F(cuDeviceGetName, (char *, int, int)) \
    F(cuDeviceGetAttribute, (int *, int, int)) \
    F(cuDeviceTotalMem, (size_t *, int)) \
    F(cuDevicePrimaryCtxRetain, (void **, int)) \
    F(cuDevicePrimaryCtxRelease, (int)) \
    F(cuCtxSetCurrent, (void *)) \
    F(cuCtxGetCurrent, (void **)) \
    F(cuMemGetInfo, (size_t *, size_t *)) \
    F(cuMemAlloc, (address_t *, size_t)) \
    F(cuMemFree, (address_t)) \
    F(cuMemAllocAsync, (address_t *, size_t, void *)) \
    F(cuMemFreeAsync, (address_t, void *)) \
    F(cuMemcpyHtoD, (address_t, const void *, size_t)) \
    F(cuMemcpyDtoH, (void *, address_t, size_t)) \
    F(cuMemcpyHtoDAsync, (address_t, const void *, size_t, void *)) \
    F(cuMemcpyDtoHAsync, (void *, address_t, size_t, void *)) \
    F(cuMemcpyDtoDAsync, (address_t, address_t, size_t, void *)) \
    F(cuMemsetD8Async, (address_t, unsigned char, size_t, void *)) \
    F(cuLibraryLoadData, (void **, const void *, void *, void *, unsigned, void *, void *, unsigned)) \
    F(cuLibraryGetKernel, (void **, void *, const char *)) \
    F(cuKernelGetFunction, (void **, void *)) \
    F(cuLibraryUnload, (void *)) \
    F(cuModuleLoadData, (void **, const void *)) \
    F(cuModuleGetFunction, (void **, void *, const char *)) \
    F(cuModuleUnload, (void *)) \
    F(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
    F(cuLaunchKernelEx, (const launch_t *, void *, void **, void **)) \
    F(cuStreamCreate, (void **, unsigned)) \
    F(cuStreamSynchronize, (void *)) \
    F(cuStreamWaitEvent, (void *, void *, unsigned)) \
    F(cuStreamDestroy, (void *)) \
    F(cuEventCreate, (void **, unsigned)) \
    F(cuEventRecord, (void *, void *)) \
    F(cuEventSynchronize, (void *)) \
    F(cuEventElapsedTime, (float *, void *, void *)) \
    F(cuEventDestroy, (void *)) \
    F(cuStreamBeginCapture, (void *, int)) \
    F(cuStreamEndCapture, (void *, void **)) \
    F(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long)) \
    F(cuGraphLaunch, (void *, void *)) \
    F(cuGraphExecDestroy, (void *)) \
    F(cuGraphDestroy, (void *))

#define DECLARE(name, arguments) static int (*name) arguments;
FUNCTIONS(DECLARE)

/* cuCtxSynchronize takes the context from CUDA 13 on. */
static int (*synchronize_12)(void);
static int (*synchronize_13)(void *);

/* Kernels: spin(ns) keeps the GPU busy for that time, empty() does nothing. */
static const char code[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 ns)\n{\n"
    ".reg .u64 %start, %now, %wanted;\n.reg .pred %early;\n"
    "ld.param.u64 %wanted, [ns];\nmov.u64 %start, %globaltimer;\n"
    "again:\nmov.u64 %now, %globaltimer;\nsub.u64 %now, %now, %start;\n"
    "setp.lt.u64 %early, %now, %wanted;\n@%early bra again;\nret;\n}\n"
    ".visible .entry empty()\n{\nret;\n}\n";

enum { SIZE = 1 << 20, CHUNK = 16 << 20, LAUNCHES = 3, SPIN_NS = 1000000, NON_BLOCKING = 1, RELAXED = 2 };

static const char *name_of(int status)
{
    const char *name = 0;

    return cuGetErrorName && !cuGetErrorName(status, &name) && name ? name : "unknown error";
}

/* Ends the program unless a call succeeded. */
static void must(const char *call, int status)
{
    if (status) {
        fprintf(stderr, "%s: %s (%d)\n", call, name_of(status), status);
        exit(1);
    }
}

#define MUST(call) must(#call, call)

/* Ends the program unless what it found is right. */
static void expect(const char *what, int is_right)
{
    if (!is_right) {
        fprintf(stderr, "wrong: %s\n", what);
        exit(1);
    }
}

/* Gets a function in the form that a CUDA version has. */
static void *get(ask_t ask, const char *name, int version, unsigned long long flags)
{
    void *function = 0;
    int found = -1, status = ask(name, &function, version, flags, &found);

    if (status || found || !function) {
        fprintf(stderr, "cuGetProcAddress %s %d %llu: status %d, symbol status %d\n", name, version, flags, status, found);
        exit(1);
    }
    return function;
}

/* Gets all functions. Returns their number. */
static int get_all(int version, unsigned long long flags)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ask_t ask = driver ? (ask_t)dlsym(driver, "cuGetProcAddress_v2") : 0;
    int count = 0, found = -1;
    void *none = &count;

    if (!ask) {
        fprintf(stderr, "cuGetProcAddress_v2: %s\n", dlerror());
        exit(1);
    }
    ask = (ask_t)get(ask, "cuGetProcAddress", version, flags);
    /* By the documentation a name that is invalid is no error. */
    MUST(ask("", &none, version, flags, &found));
    expect("cuGetProcAddress of an empty name finds nothing", !none && found == 1);
#define GET(name, arguments) *(void **)&name = get(ask, #name, version, flags); count++;
    FUNCTIONS(GET)
    if (version < 13000)
        *(void **)&synchronize_12 = get(ask, "cuCtxSynchronize", version, flags);
    else
        *(void **)&synchronize_13 = get(ask, "cuCtxSynchronize", version, flags);
    return count + 1;
}

static void synchronize(void)
{
    void *context;

    MUST(cuCtxGetCurrent(&context));
    if (synchronize_13)
        MUST(synchronize_13(context));
    else
        MUST(synchronize_12());
}

/* Fills a block with a pattern that depends on a number. */
static void fill(unsigned char *block, unsigned number)
{
    unsigned at;

    for (at = 0; at < SIZE; at++)
        block[at] = (unsigned char)(at * 7 + number * 31 + (at >> 8));
}

/* Copies to the GPU, on it, and back: at once, in a stream, and in stream-ordered memory. */
static void copy(void *stream)
{
    static unsigned char here[SIZE], back[SIZE];
    address_t first, second, ordered;

    MUST(cuMemAlloc(&first, SIZE));
    MUST(cuMemAlloc(&second, SIZE));
    fill(here, 1);
    MUST(cuMemcpyHtoD(first, here, SIZE));
    MUST(cuMemcpyDtoH(back, first, SIZE));
    expect("a copy there and back", !memcmp(here, back, SIZE));

    fill(here, 2);
    MUST(cuMemAllocAsync(&ordered, SIZE, stream));
    MUST(cuMemcpyHtoDAsync(ordered, here, SIZE, stream));
    MUST(cuMemcpyDtoDAsync(second, ordered, SIZE, stream));
    MUST(cuMemFreeAsync(ordered, stream));
    MUST(cuMemcpyDtoHAsync(back, second, SIZE, stream));
    MUST(cuStreamSynchronize(stream));
    expect("copies in a stream", !memcmp(here, back, SIZE));
    MUST(cuMemFree(first));
    MUST(cuMemFree(second));
}

/* Launches kernels of a library and of a module by both functions, in two streams. Returns the time between the events in ns. */
static double launch(void *stream)
{
    void *library, *kernel, *function, *module, *empty, *other, *begin, *end;
    unsigned long long ns = SPIN_NS;
    void *parameters[] = {&ns};
    launch_t config = {{1, 1, 1}, {1, 1, 1}, 0, stream, 0, 0};
    float milliseconds = 0;

    MUST(cuLibraryLoadData(&library, code, 0, 0, 0, 0, 0, 0));
    MUST(cuLibraryGetKernel(&kernel, library, "spin"));
    MUST(cuKernelGetFunction(&function, kernel));
    MUST(cuModuleLoadData(&module, code));
    MUST(cuModuleGetFunction(&empty, module, "empty"));
    MUST(cuStreamCreate(&other, NON_BLOCKING));
    MUST(cuEventCreate(&begin, 0));
    MUST(cuEventCreate(&end, 0));
    MUST(cuEventRecord(begin, stream));
    MUST(cuLaunchKernelEx(&config, function, parameters, 0));
    MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0));
    MUST(cuEventRecord(end, stream));
    MUST(cuStreamWaitEvent(other, end, 0));
    MUST(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, other, 0, 0));
    MUST(cuStreamSynchronize(other));
    MUST(cuEventSynchronize(end));
    MUST(cuEventElapsedTime(&milliseconds, begin, end));
    synchronize();
    MUST(cuEventDestroy(begin));
    MUST(cuEventDestroy(end));
    MUST(cuStreamDestroy(other));
    MUST(cuModuleUnload(module));
    MUST(cuLibraryUnload(library));
    return milliseconds * 1e6;
}

/* Records a fill, a copy and a kernel into a graph, and launches it. */
static void run_graph(void *stream)
{
    static unsigned char here[SIZE], back[SIZE];
    address_t first, second;
    void *module, *empty, *graph, *executable;
    int at;

    MUST(cuMemAlloc(&first, SIZE));
    MUST(cuMemAlloc(&second, SIZE));
    MUST(cuModuleLoadData(&module, code));
    MUST(cuModuleGetFunction(&empty, module, "empty"));
    MUST(cuStreamBeginCapture(stream, RELAXED));
    MUST(cuMemsetD8Async(first, 42, SIZE, stream));
    MUST(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
    MUST(cuMemcpyDtoDAsync(second, first, SIZE, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
    memset(here, 42, SIZE);
    for (at = 0; at < LAUNCHES; at++) {
        fill(back, (unsigned)at);
        MUST(cuMemcpyHtoD(second, back, SIZE));
        MUST(cuGraphLaunch(executable, stream));
        MUST(cuStreamSynchronize(stream));
        MUST(cuMemcpyDtoH(back, second, SIZE));
        expect("what a graph filled and copied", !memcmp(here, back, SIZE));
    }
    MUST(cuGraphExecDestroy(executable));
    MUST(cuGraphDestroy(graph));
    MUST(cuModuleUnload(module));
    MUST(cuMemFree(first));
    MUST(cuMemFree(second));
}

/* Allocates `most` bytes or until it is refused, then frees all. Prints both. In a stream if there is one. */
static void allocate(const char *how, size_t most, void *stream)
{
    size_t count = 0, room = most / CHUNK, at;
    address_t *blocks = calloc(room + 1, sizeof *blocks);
    int status = 0;

    expect("memory for the addresses", !!blocks);
    for (; count < room; count++) {
        status = stream ? cuMemAllocAsync(&blocks[count], CHUNK, stream) : cuMemAlloc(&blocks[count], CHUNK);
        if (status)
            break;
    }
    for (at = 0; at < count; at++)
        MUST(stream ? cuMemFreeAsync(blocks[at], stream) : cuMemFree(blocks[at]));
    if (stream)
        MUST(cuStreamSynchronize(stream));
    free(blocks);
    printf(",\"%s\":%zu,\"%s_error\":\"%s\"", how, count * CHUNK, how, name_of(status));
}

int main(int count, char **arguments)
{
    int version = count > 1 ? atoi(arguments[1]) : 12000, functions, drivers = 0, devices = 0, device, processors = 0;
    unsigned long long flags = count > 2 ? strtoull(arguments[2], 0, 0) : 0;
    size_t most = count > 3 ? strtoull(arguments[3], 0, 0) : 0, free_memory = 0, total = 0, device_total = 0;
    char name[128] = "";
    void *context, *stream;
    double elapsed;

    functions = get_all(version, flags);
    MUST(cuInit(0));
    MUST(cuDriverGetVersion(&drivers));
    MUST(cuDeviceGetCount(&devices));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDeviceGetName(name, sizeof name, device));
    MUST(cuDeviceGetAttribute(&processors, 16, device));
    MUST(cuDeviceTotalMem(&device_total, device));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, NON_BLOCKING));
    copy(stream);
    elapsed = launch(stream);
    expect("the events are as far apart as the first of two kernels is long", elapsed >= SPIN_NS);
    run_graph(stream);
    MUST(cuMemGetInfo(&free_memory, &total));
    printf("{\"version\":%d,\"functions\":%d,\"driver\":%d,\"devices\":%d,\"processors\":%d", version, functions, drivers, devices, processors);
    printf(",\"name\":\"%s\",\"device_total\":%zu,\"free\":%zu,\"total\":%zu", name, device_total, free_memory, total);
    allocate("linear", most, 0);
    allocate("ordered", most, stream);
    /* A refusal leaves the context as it was. */
    copy(stream);
    run_graph(stream);
    MUST(cuStreamDestroy(stream));
    MUST(cuDevicePrimaryCtxRelease(device));
    printf("}\n");
    return fflush(stdout);
}
