/*
 * Allocates until the driver refuses and prints the result, like the program fill, but reaches the driver in a given way:
 *
 *     linked              linked to libcuda.so.1                                       (cc -DLINKED)
 *     load dlopen | deepbind | dlmopen    loads it like that and looks functions up with dlsym
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
    return run(how, (init_t)dlsym(driver, "cuInit"), (device_t)dlsym(driver, "cuDeviceGet"), (context_t)dlsym(driver, "cuCtxCreate_v2"),
        (info_t)dlsym(driver, "cuMemGetInfo_v2"), (allocate_t)dlsym(driver, "cuMemAlloc_v2"), (name_t)dlsym(driver, "cuGetErrorName"));
}

#endif
