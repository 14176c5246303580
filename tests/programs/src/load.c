/*
 * Allocates until the driver refuses and prints the result, like the program fill, but reaches the driver in a given way:
 *
 *     linked              linked to libcuda.so.1                                       (cc -DLINKED)
 *     load dlopen | deepbind | dlmopen    loads it like that and looks functions up with dlsym
 *     load procaddress    asks the driver for each, as the CUDA runtime does
 *     load version        allocates nothing, and prints the driver's version
 *     load newer          allocates nothing, and prints which functions it finds that only a driver newer than vgpu has, and some others
 *     load PLUGIN.so      loads a plugin linked to libcuda.so.1 with RTLD_DEEPBIND      (the plugin: cc -DLINKED -DPLUGIN -shared)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int (*init_t)(unsigned);
typedef int (*device_t)(int *, int);
typedef int (*context_t)(void **, unsigned, int);
typedef int (*info_t)(size_t *, size_t *);
typedef int (*allocate_t)(unsigned long long *, size_t);
typedef int (*name_t)(int, const char **);
typedef int (*ask_t)(const char *, void **, int, unsigned long long, int *);

static int run(const char *how, init_t init, device_t device, context_t context, info_t info, allocate_t allocate, name_t name)
{
    size_t chunk = 16 << 20, obtained = 0, free = 0, total = 0;
    unsigned long long address;
    const char *error = "missing functions";
    int number, code = -1;
    void *made;

    if (init && device && context && info && allocate && name) {
        if (!(code = init(0)) && !(code = device(&number, 0)) && !(code = context(&made, 0, number)))
            while (obtained < (4ull << 30) && !(code = allocate(&address, chunk)))
                obtained += chunk;
        name(code, &error);
        info(&free, &total);
    }
    printf("{\"api\":\"%s\",\"obtained\":%zu,\"error\":\"%s\",\"free\":%zu,\"total\":%zu}\n", how, obtained, error, free, total);
    return fflush(stdout);
}

#ifdef LINKED

int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuCtxCreate_v2(void **, unsigned, int);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuGetErrorName(int, const char **);

#ifdef PLUGIN
int plugin(void)
#else
int main(void)
#endif
{
    return run("linked", cuInit, cuDeviceGet, cuCtxCreate_v2, cuMemGetInfo_v2, cuMemAlloc_v2, cuGetErrorName);
}

#else

/* Returns a function in the form that a CUDA version brought; null if the driver has none. A driver before CUDA 12 ignores the status. */
static void *answer(ask_t ask, const char *name, int version)
{
    void *function = 0;
    int status = 0;

    return ask && !ask(name, &function, version, 0, &status) ? function : 0;
}

/* Runs with functions that the driver gives. A launch function is asked for as well, and is not called. */
static int run_asking(ask_t ask)
{
    if (!answer(ask, "cuLaunchKernel", 4000) || !answer(ask, "cuGraphLaunch", 10000))
        return run("procaddress, a launch function is missing", 0, 0, 0, 0, 0, 0);
    return run("procaddress", (init_t)answer(ask, "cuInit", 2000), (device_t)answer(ask, "cuDeviceGet", 2000),
        (context_t)answer(ask, "cuCtxCreate", 3020), (info_t)answer(ask, "cuMemGetInfo", 3020), (allocate_t)answer(ask, "cuMemAlloc", 3020),
        (name_t)answer(ask, "cuGetErrorName", 6000));
}

/* Prints whether functions are found. One whose address is null without an error would be taken for found. */
static int run_newer(void *driver)
{
    static const struct { const char *name; int version; } asked[] = {
        {"cuLaunchTomorrow", 13060}, {"cuTomorrow", 13060}, {"cuMemAlloc", 13060}, {"cuMemAlloc", 13000}, {"cuLaunchHostFunc", 13020},
        {"cuLaunchHostFunc", 10000},
    };
    static const char *names[] = {
        "cuLaunchTomorrow", "cuTomorrow", "cuMemAlloc_v3", "cuMemAlloc_v2", "cuLaunchHostFunc_v2", "nvmlDeviceGetMemoryInfo_v3",
    };
    ask_t ask = (ask_t)dlsym(driver, "cuGetProcAddress_v2");
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    unsigned at;

    for (at = 0; at < sizeof names / sizeof *names; at++) {
        void *function = dlsym(*names[at] == 'n' ? nvml : driver, names[at]);

        printf("dlsym %s: %s\n", names[at], function ? "found" : dlerror() ? "not found" : "null");
    }
    for (at = 0; at < sizeof asked / sizeof *asked; at++)
        printf("cuGetProcAddress %s %d: %s\n", asked[at].name, asked[at].version,
            answer(ask, asked[at].name, asked[at].version) ? "found" : "not found");
    return fflush(stdout);
}

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "dlopen";
    int (*plugin)(void);
    void *driver;

    if (strchr(how, '/')) {
        driver = dlopen(how, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        plugin = driver ? (int (*)(void))dlsym(driver, "plugin") : 0;
        if (plugin)
            return plugin();
    } else if (!strcmp(how, "dlmopen"))
        driver = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    else
        driver = dlopen("libcuda.so.1", RTLD_NOW | (strcmp(how, "deepbind") ? 0 : RTLD_DEEPBIND));
    if (!driver || strchr(how, '/')) {
        fprintf(stderr, "%s: %s\n", how, dlerror());
        return 1;
    }
    if (!strcmp(how, "version")) {
        int (*ask)(int *) = (int (*)(int *))dlsym(driver, "cuDriverGetVersion"), version = 0;

        printf("%d\n", ask && !ask(&version) ? version : -1);
        return fflush(stdout);
    }
    if (!strcmp(how, "newer"))
        return run_newer(driver);
    if (!strcmp(how, "procaddress")) {
        /* Where vgpu replaces a driver before CUDA 12, the second form is there and finds nothing. */
        ask_t ask = (ask_t)dlsym(driver, "cuGetProcAddress_v2");

        return run_asking(answer(ask, "cuInit", 2000) ? ask : (ask_t)dlsym(driver, "cuGetProcAddress"));
    }
    return run(how, (init_t)dlsym(driver, "cuInit"), (device_t)dlsym(driver, "cuDeviceGet"), (context_t)dlsym(driver, "cuCtxCreate_v2"),
        (info_t)dlsym(driver, "cuMemGetInfo_v2"), (allocate_t)dlsym(driver, "cuMemAlloc_v2"), (name_t)dlsym(driver, "cuGetErrorName"));
}

#endif
