// Probes what a process may tell an NVIDIA GPU's scheduler: time slices, preemption, and switching channels off. README.md lists the scenarios.
//
// One process for each role; each forks before cuInit. The program interposes ioctl, so it sees the channel groups that libcuda makes and
// issues controls on them. A work kernel runs a fixed number of iterations and checks its own result; its first block writes a counter to
// host memory about every 10 us, so shares and stalls are exact inside a kernel.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ioctl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef uint32_t u32;
#define MS 1000000ull
#define US 1000ull
#define MAXW 24
#define MAXG 64
#define MAXC 128

static u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void relax(void) {
    __builtin_ia32_pause();
}
static void sleep_ns(u64 n) {
    struct timespec t = {n / 1000000000ull, n % 1000000000ull};
    nanosleep(&t, NULL);
}
static void until(u64 t) {
    for (;;) {
        u64 n = now_ns();
        if (n >= t)
            return;
        if (t - n > 250 * US)
            sleep_ns(t - n - 150 * US);
        else
            relax();
    }
}

// ------------------------------------------------------------------ CUDA
typedef unsigned long long devptr;
#define CUDA_FNS                                                                                                                           \
    X(int, cuInit, "cuInit", (unsigned))                                                                                                   \
    X(int, cuDeviceGet, "cuDeviceGet", (int *, int)) X(int, cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int))               \
        X(int, cuDeviceGetName, "cuDeviceGetName", (char *, int, int)) X(int, cuDriverGetVersion, "cuDriverGetVersion", (int *)) X(        \
            int, cuPrimarySetFlags, "cuDevicePrimaryCtxSetFlags_v2",                                                                       \
            (int, unsigned)) X(int, cuPrimaryRetain, "cuDevicePrimaryCtxRetain", (void **, int)) X(int, cuPrimaryRelease,                  \
                                                                                                   "cuDevicePrimaryCtxRelease_v2", (int))  \
            X(int, cuCtxSetCurrent, "cuCtxSetCurrent", (void *)) X(int, cuCtxCreate, "cuCtxCreate_v2", (void **, unsigned, int))           \
                X(int, cuCtxDestroy, "cuCtxDestroy_v2", (void *)) X(int, cuCtxSynchronize, "cuCtxSynchronize", (void)) X(                  \
                    int, cuModuleLoadData, "cuModuleLoadData", (void **, const void *)) X(int, cuModuleUnload, "cuModuleUnload", (void *)) \
                    X(int, cuModuleGetFunction, "cuModuleGetFunction", (void **, void *, const char *)) X(                                 \
                        int, cuLaunchKernel, "cuLaunchKernel",                                                                             \
                        (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))          \
                        X(int, cuStreamCreate, "cuStreamCreate",                                                                           \
                          (void **, unsigned)) X(int, cuStreamCreatePrio, "cuStreamCreateWithPriority",                                    \
                                                 (void **, unsigned, int)) X(int, cuStreamDestroy, "cuStreamDestroy_v2", (void *))         \
                            X(int, cuStreamSynchronize, "cuStreamSynchronize", (void *)) X(int, cuStreamQuery, "cuStreamQuery", (void *))  \
                                X(int, cuEventCreate, "cuEventCreate",                                                                     \
                                  (void **, unsigned)) X(int, cuEventRecord, "cuEventRecord",                                              \
                                                         (void *, void *)) X(int, cuEventQuery, "cuEventQuery", (void *))                  \
                                    X(int, cuMemAlloc, "cuMemAlloc_v2", (devptr *, size_t)) X(int, cuMemFree, "cuMemFree_v2", (devptr)) X( \
                                        int, cuMemcpyDtoH, "cuMemcpyDtoH_v2",                                                              \
                                        (void *, devptr, size_t)) X(int, cuMemcpyHtoD, "cuMemcpyHtoD_v2", (devptr, const void *, size_t))  \
                                        X(int, cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (devptr, const void *, size_t, void *))          \
                                            X(int, cuMemsetD8, "cuMemsetD8_v2", (devptr, unsigned char, size_t))                           \
                                                X(int, cuMemHostRegister, "cuMemHostRegister_v2", (void *, size_t, unsigned))              \
                                                    X(int, cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2",                      \
                                                      (devptr *, void *, unsigned)) X(int, cuMemHostAlloc, "cuMemHostAlloc",               \
                                                                                      (void **, size_t, unsigned))                         \
                                                        X(int, cuMemFreeHost, "cuMemFreeHost",                                             \
                                                          (void *)) X(int, cuStreamBeginCapture, "cuStreamBeginCapture_v2", (void *, int)) \
                                                            X(int, cuStreamEndCapture, "cuStreamEndCapture",                               \
                                                              (void *, void **)) X(int, cuGraphInstantiate, "cuGraphInstantiateWithFlags", \
                                                                                   (void **, void *, unsigned long long))                  \
                                                                X(int, cuGraphLaunch, "cuGraphLaunch", (void *, void *)) X(                \
                                                                    int, cuGraphExecDestroy, "cuGraphExecDestroy",                         \
                                                                    (void *)) X(int, cuGraphDestroy, "cuGraphDestroy", (void *))           \
                                                                    X(int, cuDeviceGetDevResource, "cuDeviceGetDevResource",               \
                                                                      (int, void *, int))                                                  \
                                                                        X(int, cuDevSmResourceSplitByCount, "cuDevSmResourceSplitByCount", \
                                                                          (void *, unsigned *, const void *, void *, unsigned, unsigned))  \
                                                                            X(int, cuDevResourceGenerateDesc, "cuDevResourceGenerateDesc", \
                                                                              (void **, void *, unsigned))                                 \
                                                                                X(int, cuGreenCtxCreate, "cuGreenCtxCreate",               \
                                                                                  (void **, void *, int, unsigned))                        \
                                                                                    X(int, cuGreenCtxStreamCreate,                         \
                                                                                      "cuGreenCtxStreamCreate",                            \
                                                                                      (void **, void *, unsigned, int))
#define X(r, n, s, a) static r(*n) a;
CUDA_FNS
#undef X

static const char PTX[] =
    ".version 6.4\n.target sm_70\n.address_size 64\n"
    ".visible .entry work(.param .u64 prog,.param .u64 base,.param .u32 chunks,.param .u32 iters,.param .u32 A,.param .u32 C,.param .u64 "
    "errs)\n"
    "{ .reg .pred %p<6>; .reg .b32 %r<16>; .reg .b64 %d<6>;\n"
    " ld.param.u64 %d1,[prog]; ld.param.u64 %d2,[base]; ld.param.u32 %r6,[chunks]; ld.param.u32 %r7,[iters];\n"
    " ld.param.u32 %r10,[A]; ld.param.u32 %r11,[C]; ld.param.u64 %d3,[errs];\n"
    " mov.u32 %r1,%tid.x; mov.u32 %r2,%ctaid.x; mov.u32 %r3,%ntid.x; mad.lo.u32 %r4,%r2,%r3,%r1; mov.u32 %r5,%r4; setp.eq.u32 %p1,%r4,0;\n"
    "OUTER: mov.u32 %r8,%r7;\n"
    "INNER:\n"
    " mad.lo.u32 %r5,%r5,1664525,1013904223; mad.lo.u32 %r5,%r5,1664525,1013904223; mad.lo.u32 %r5,%r5,1664525,1013904223; mad.lo.u32 "
    "%r5,%r5,1664525,1013904223;\n"
    " mad.lo.u32 %r5,%r5,1664525,1013904223; mad.lo.u32 %r5,%r5,1664525,1013904223; mad.lo.u32 %r5,%r5,1664525,1013904223; mad.lo.u32 "
    "%r5,%r5,1664525,1013904223;\n"
    " sub.u32 %r8,%r8,1; setp.ne.u32 %p2,%r8,0; @%p2 bra INNER;\n"
    " add.u64 %d2,%d2,1; @%p1 st.relaxed.sys.global.u64 [%d1],%d2;\n"
    " sub.u32 %r6,%r6,1; setp.ne.u32 %p3,%r6,0; @%p3 bra OUTER;\n"
    " mad.lo.u32 %r9,%r4,%r10,%r11; setp.ne.u32 %p4,%r9,%r5; @%p4 red.global.add.u32 [%d3],1;\n"
    " setp.eq.u32 %p5,%r1,0; @%p5 red.global.add.u32 [%d3+4],1; ret; }\n"
    ".visible .entry linger(.param .u64 flag,.param .u64 seq,.param .u64 ns)\n"
    "{ .reg .pred %p<3>; .reg .b64 %d<8>;\n"
    " ld.param.u64 %d1,[flag]; ld.param.u64 %d2,[seq]; ld.param.u64 %d3,[ns]; mov.u64 %d4,%globaltimer; add.u64 %d3,%d3,%d4;\n"
    "L: ld.relaxed.sys.global.u64 %d5,[%d1]; setp.ge.u64 %p1,%d5,%d2; @%p1 bra E; mov.u64 %d6,%globaltimer; setp.lt.u64 %p2,%d6,%d3; @%p2 "
    "bra L;\n"
    "E: ret; }\n";


// ------------------------------------------------------------------ shared state
struct group {
    int fd, nch, live;
    u32 client, parent, handle, engine;
    u32 ch[MAXC], chclass[MAXC];
};
struct subdev {
    int fd;
    u32 client, device, handle;
};
struct logent {
    u32 cmd, obj, status;
    u64 val, t;
};
enum role { R_CAL = 1, R_BUSY, R_LAT, R_PROBE, R_TOG, R_API, R_RELEASE, R_CALLTIME, R_GROUPS, R_XDIS, R_LONGOFF, R_EXITOFF, R_PROPS, R_CHANNELS };
struct params {
    int role, mech, reps, sync, lmode, prio_restart, turn_i, cilp, prop, off_at_end;
    long slice;
    u64 t0, t1, period, on_a, on_b, depth, linger, hold, idleset;
    u32 kchunks, lkernels;
    double rate;
    u32 seed;
    int target;
    int realtime;
    int iset;
    int demand;
};
struct result {
    int err, st_off, st_on, bad, cycles, dead, n;
    double off50, off99, offmax, on50, on99, onmax;
    double ran, leak, resume, extra, vr_on, vr_off, base;
    double p50, p90, p99, max, s50, s90, s99;
    double offl;
    u64 kernels;
    u32 save[6];
    char txt[6000];
    int tl;
};
struct wrk {
    _Atomic u64 go, done;
    _Atomic int pid, ready;
    struct params p;
    struct result r;
    _Atomic u64 soft;
    u64 queued;
    int ng, ns, nl;
    struct group g[MAXG];
    struct subdev s[8];
    struct logent l[64];
};
struct shared {
    struct wrk w[MAXW];
    _Atomic int turn, want;
    _Atomic u64 turn_end;
    int turn_k;
    u64 turn_ns;
    u32 iters;
    double chunk_ns;
    int sms;
    u32 grid;
    char name[64];
    int drv, host_reg;
};
static struct shared *sh;
static u64 (*page)[512]; // one page a worker: [0] progress, [8] flag, [16] scratch progress
static struct wrk *me;
static int mi = -1, log_on = 1;

// ------------------------------------------------------------------ the driver's ioctl, seen and made
static int (*stub_ioctl)(int, unsigned long, void *);
static int raw_ioctl(int fd, unsigned long rq, void *a) {
    return stub_ioctl ? stub_ioctl(fd, rq, a) : (int)syscall(SYS_ioctl, fd, rq, a);
}
static atomic_flag lk = ATOMIC_FLAG_INIT;
static struct group *grp(u32 c, u32 h) {
    for (int i = 0; i < me->ng; i++)
        if (me->g[i].live && me->g[i].client == c && me->g[i].handle == h)
            return &me->g[i];
    return NULL;
}
static void track(int fd, unsigned nr, unsigned size, void *a) {
    u32 *v = a;
    if (nr == 0x2b && (size == 32 || size == 48)) {
        u32 st = size == 32 ? v[7] : v[10];
        u32 *ap = *(u32 **)(v + 4);
        u32 cl = v[3];
        if (st)
            return;
        if (cl == 0xa06c && me->ng < MAXG) {
            struct group *g = &me->g[me->ng];
            memset(g, 0, sizeof *g);
            g->fd = fd;
            g->client = v[0];
            g->parent = v[1];
            g->handle = v[2];
            g->engine = ap ? ap[3] : 0;
            g->live = 1;
            me->ng++;
        } else if (cl == 0x2080 && me->ns < 8)
            me->s[me->ns++] = (struct subdev){fd, v[0], v[1], v[2]};
        else if ((cl & 0xff) == 0x6f && cl >= 0x906f) {
            struct group *g = grp(v[0], v[1]);
            if (g && g->nch < MAXC) {
                g->ch[g->nch] = v[2];
                g->chclass[g->nch++] = cl;
            }
        }
    } else if (nr == 0x29 && size >= 16) {
        if (v[3])
            return;
        struct group *g = grp(v[0], v[2]);
        if (g)
            g->live = 0;
        for (int i = 0; i < me->ng; i++)
            if (me->g[i].client == v[0]) {
                if (v[2] == v[0] || v[2] == me->g[i].parent)
                    me->g[i].live = 0;
                for (int k = 0; k < me->g[i].nch; k++)
                    if (me->g[i].ch[k] == v[2]) {
                        me->g[i].ch[k] = me->g[i].ch[--me->g[i].nch];
                        break;
                    }
            }
    } else if (nr == 0x2a && size == 32 && log_on) {
        u32 c = v[2];
        u64 val = 0;
        void *pp = *(void **)(v + 4);
        if ((c >> 16) != 0xa06c && (c >> 8) != 0xa06f01 && c != 0x2080110b && c != 0x20801210)
            return;
        if (pp && v[6] >= 8)
            memcpy(&val, pp, 8);
        else if (pp && v[6])
            memcpy(&val, pp, v[6]);
        if (me->nl < 64)
            me->l[me->nl++] = (struct logent){c, v[1], v[7], val, now_ns()};
    }
}
int ioctl(int fd, unsigned long rq, ...) {
    va_list ap;
    va_start(ap, rq);
    void *a = va_arg(ap, void *);
    va_end(ap);
    int r = raw_ioctl(fd, rq, a), e = errno;
    if (r == 0 && me && _IOC_TYPE(rq) == 'F' && a) {
        while (atomic_flag_test_and_set(&lk))
            relax();
        unsigned nr = _IOC_NR(rq), sz = _IOC_SIZE(rq);
        if (nr == 211 && sz == 16)
            track(fd, ((u32 *)a)[0], ((u32 *)a)[1], ((void **)a)[1]);
        else
            track(fd, nr, sz, a);
        atomic_flag_clear(&lk);
    }
    errno = e;
    return r;
}
struct ctl {
    u32 client, object, cmd, flags;
    void *params;
    u32 size, status;
};
static int control(int fd, u32 client, u32 object, u32 cmd, void *p, u32 size) {
    struct ctl c = {client, object, cmd, 0, p, size, 0xdead};
    int r = raw_ioctl(fd, _IOWR('F', 0x2a, struct ctl), &c);
    return r < 0 ? -errno : (int)c.status;
}
static int g_slice(struct group *g, u64 us) {
    return control(g->fd, g->client, g->handle, 0xa06c0103, &us, 8);
}
static int g_getslice(struct group *g, u64 *us) {
    *us = ~0ull;
    return control(g->fd, g->client, g->handle, 0xa06c0104, us, 8);
}
static int g_preempt(struct group *g, int wait) {
    struct {
        uint8_t w, m;
        u32 us;
    } p = {wait, 1, 200000};
    return control(g->fd, g->client, g->handle, 0xa06c0105, &p, sizeof p);
}
static int g_sched(struct group *g, int en, int nosubmit, int noenable) {
    uint8_t p[3] = {en, nosubmit, noenable};
    return control(g->fd, g->client, g->handle, 0xa06c0101, p, 3);
}
static int c_sched(struct group *g, int en) {
    int st = 0;
    for (int i = 0; i < g->nch; i++) {
        uint8_t p[3] = {en, 0, 0};
        int r = control(g->fd, g->client, g->ch[i], 0xa06f0103, p, 3);
        if (r)
            st = r;
    }
    return st;
}
struct disch {
    uint8_t dis;
    u32 n;
    uint8_t only, rewind;
    u64 ev;
    u32 cl[64], ch[64];
};
static int dis_list(int fd, u32 client, u32 sub, struct group *g, int dis, int only) {
    int st = 0;
    for (int b = 0; b < g->nch; b += 64) {
        struct disch d;
        memset(&d, 0, sizeof d);
        d.dis = dis;
        d.only = only;
        for (int i = b; i < g->nch && i < b + 64; i++) {
            d.cl[d.n] = g->client;
            d.ch[d.n++] = g->ch[i];
        }
        int r = control(fd, client, sub, 0x2080110b, &d, sizeof d);
        if (r)
            st = r;
    }
    return st;
}
static struct subdev *subof(struct wrk *w, struct group *g) {
    struct subdev *any = NULL;
    for (int i = 0; i < w->ns; i++)
        if (w->s[i].client == g->client) {
            any = &w->s[i];
            if (w->s[i].device == g->parent)
                return any;
        }
    return any;
}
static int g_disable(struct wrk *w, struct group *g, int dis, int only) {
    struct subdev *s = subof(w, g);
    return s ? dis_list(g->fd, s->client, s->handle, g, dis, only) : -1000;
}
static int g_ctxstats(struct wrk *w, struct group *g, u32 out[6]) {
    struct subdev *s = subof(w, g);
    u32 p[8] = {g->handle, 0};
    if (!s)
        return -1000;
    int r = control(g->fd, s->client, s->handle, 0x20801215, p, sizeof p);
    memcpy(out, p + 2, 24);
    return r;
}
static int g_cilp(struct wrk *w, struct group *g, u32 mode) {
    struct subdev *s = subof(w, g);
    struct {
        u32 flags, h, gfxp, cilp, rf, pad;
        u64 rt;
    } p = {1, g->handle, 0, mode, 0, 0, 0};
    if (!s)
        return -1000;
    int r = control(g->fd, s->client, s->handle, 0x20801210, &p, sizeof p);
    if (r && g->nch) {
        int q = 0;
        for (int i = 0; i < g->nch; i++) {
            p.h = g->ch[i];
            int e = control(g->fd, s->client, s->handle, 0x20801210, &p, sizeof p);
            if (e)
                q = e;
        }
        if (!q)
            return 0;
    }
    return r;
}
static struct group *compute(struct wrk *w, int k) {
    for (int i = 0; i < w->ng; i++)
        if (w->g[i].live && w->g[i].engine == 1 && k-- == 0)
            return &w->g[i];
    return NULL;
}
#define EACH_COMPUTE(w, g) for (int _k = 0; (g = compute(w, _k)); _k++)
static int set_slice(u64 us) {
    int st = 0;
    struct group *g;
    EACH_COMPUTE(me, g) {
        int r = g_slice(g, us);
        if (r)
            st = r;
    }
    return st;
}

#define NMECH 11
static const char *MECH[NMECH] = {"preempt",     "sched0+preempt", "sched0ns+preempt", "disable",          "disableonly+preempt",
                                  "disableonly", "sched0",         "chsched0+preempt", "sched0ne+preempt", "sched0+preemptnw",
                                  "sched0+slice"};
// Off for one group. Works on any process's group when g->fd is valid here.
static int m_off(struct wrk *w, struct group *g, int m) {
    int r = 0, q = 0;
    u64 us;
    switch (m) {
    case 0:
        r = g_preempt(g, 1);
        break;
    case 1:
        r = g_sched(g, 0, 0, 0);
        q = g_preempt(g, 1);
        break;
    case 2:
        r = g_sched(g, 0, 1, 0);
        q = g_preempt(g, 1);
        break;
    case 3:
        r = g_disable(w, g, 1, 0);
        break;
    case 4:
        r = g_disable(w, g, 1, 1);
        q = g_preempt(g, 1);
        break;
    case 5:
        r = g_disable(w, g, 1, 1);
        break;
    case 6:
        r = g_sched(g, 0, 0, 0);
        break;
    case 7:
        r = c_sched(g, 0);
        q = g_preempt(g, 1);
        break;
    case 8:
        r = g_sched(g, 0, 0, 1);
        q = g_preempt(g, 1);
        break;
    case 9:
        r = g_sched(g, 0, 0, 0);
        q = g_preempt(g, 0);
        break;
    case 10:
        r = g_sched(g, 0, 0, 0);
        g_getslice(g, &us);
        q = g_slice(g, us);
        break;
    }
    return r ? r : q;
}
static int m_on(struct wrk *w, struct group *g, int m) {
    switch (m) {
    case 0:
        return 0;
    case 2:
        return g_sched(g, 1, 1, 0);
    case 3:
    case 4:
    case 5:
        return g_disable(w, g, 0, 0);
    case 7:
        return c_sched(g, 1);
    case 8:
        return g_sched(g, 1, 0, 1);
    default:
        return g_sched(g, 1, 0, 0);
    }
}
static int off(int m) {
    int st = 0;
    struct group *g;
    EACH_COMPUTE(me, g) {
        int r = m_off(me, g, m);
        if (r)
            st = r;
    }
    return st;
}
static int on(int m) {
    int st = 0;
    struct group *g;
    EACH_COMPUTE(me, g) {
        int r = m_on(me, g, m);
        if (r)
            st = r;
    }
    return st;
}
static void rescue(void) {
    struct group *g;
    EACH_COMPUTE(me, g) {
        g_sched(g, 1, 0, 0);
        g_disable(me, g, 0, 0);
        c_sched(g, 1);
    }
}

// ------------------------------------------------------------------ worker
static void *ctx, *mod, *f_work, *f_linger, *st0;
static devptr d_page, d_errs, d_base;
static u64 dflt_slice;
static int dev;
static u64 *local_page;
static u64 launched_kernels;
static void say(const char *f, ...) {
    va_list a;
    va_start(a, f);
    int left = (int)sizeof me->r.txt - me->r.tl - 1;
    if (left > 0) {
        int n = vsnprintf(me->r.txt + me->r.tl, left, f, a);
        me->r.tl += n < left ? n : left - 1;
    }
    va_end(a);
}
static u64 prog(int i) {
    return __atomic_load_n(&page[i][0], __ATOMIC_RELAXED);
}
static u64 mypr(void) {
    return prog(mi);
}
static void lcg(u64 n, u32 *A, u32 *C) {
    u32 ra = 1, rc = 0, a = 1664525, c = 1013904223;
    for (; n; n >>= 1) {
        if (n & 1) {
            rc = rc * a + c;
            ra *= a;
        }
        c = c * a + c;
        a *= a;
    }
    *A = ra;
    *C = rc;
}
static int launch_to(void *fn, void *st, u64 slot, u64 base, u32 chunks, u32 iters) {
    static u32 ca, cc, cn, ci;
    if (chunks != cn || iters != ci) {
        lcg(8ull * iters * chunks, &ca, &cc);
        cn = chunks;
        ci = iters;
    }
    devptr p = d_page + slot * 8, e = d_errs;
    u32 A = ca, C = cc;
    void *a[] = {&p, &base, &chunks, &iters, &A, &C, &e};
    return cuLaunchKernel(fn, sh->grid, 1, 1, 1024, 1, 1, 0, st, a, NULL);
}
static int launch(u32 chunks) {
    int r = launch_to(f_work, st0, 0, me->queued, chunks, sh->iters);
    if (r) {
        if (!me->r.err)
            me->r.err = r;
        return r;
    }
    me->queued += chunks;
    launched_kernels++;
    return 0;
}
static int launch_linger(u64 seq, u64 ns) {
    devptr f = d_page + 64;
    void *a[] = {&f, &seq, &ns};
    return cuLaunchKernel(f_linger, 1, 1, 1, 1, 1, 1, 0, st0, a, NULL);
}
static void *copier(void *x) {
    (void)x;
    for (;;) {
        page[mi][0] = local_page[0];
        __atomic_store_n(&local_page[8], page[mi][8], __ATOMIC_RELAXED);
        sleep_ns(10 * US);
    }
    return NULL;
}
static int wait_prog(u64 v, u64 timeout) {
    u64 t = now_ns() + timeout;
    while (mypr() < v) {
        if (now_ns() > t)
            return -1;
        relax();
    }
    return 0;
}
static int wait_idle(u64 timeout) {
    u64 t = now_ns() + timeout;
    int r;
    while ((r = cuStreamQuery(st0)) == 600) {
        if (now_ns() > t)
            return -1;
        sleep_ns(20 * US);
    }
    if (r && !me->r.err)
        me->r.err = r;
    return r;
}
static u32 errs_seen, blocks_seen;
static int check(void) { // 0 = every thread of every kernel since the last check had the right result
    u32 v[2] = {0, 0};
    int r = cuMemcpyDtoH(v, d_errs, 8);
    if (r) {
        if (!me->r.err)
            me->r.err = r;
        return 1;
    }
    int bad = v[0] != errs_seen || v[1] - blocks_seen != (u32)(launched_kernels * sh->grid);
    errs_seen = v[0];
    blocks_seen = v[1];
    launched_kernels = 0;
    return bad;
}
#define T(c)                                                                                                                               \
    do {                                                                                                                                   \
        int _r = (c);                                                                                                                      \
        if (_r) {                                                                                                                          \
            fprintf(stderr, "worker %d: %s = %d\n", mi, #c, _r);                                                                           \
            return _r;                                                                                                                     \
        }                                                                                                                                  \
    } while (0)
static int cuda_init(void) {
    void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!h)
        h = dlopen("/usr/local/nvidia/lib64/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!h)
        h = dlopen("/usr/lib/x86_64-linux-gnu/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!h) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
#define X(r, n, s, a)                                                                                                                      \
    n = (r(*) a)dlsym(h, s);                                                                                                               \
    if (!n)                                                                                                                                \
        fprintf(stderr, "worker %d: no %s\n", mi, s);
    CUDA_FNS
#undef X
    stub_ioctl = (int (*)(int, unsigned long, void *))dlsym(h, "stub_ioctl");
    T(cuInit(0));
    T(cuDeviceGet(&dev, 0));
    if (cuPrimarySetFlags)
        cuPrimarySetFlags(dev, 1);
    T(cuPrimaryRetain(&ctx, dev));
    T(cuCtxSetCurrent(ctx));
    T(cuModuleLoadData(&mod, PTX));
    T(cuModuleGetFunction(&f_work, mod, "work"));
    T(cuModuleGetFunction(&f_linger, mod, "linger"));
    T(cuStreamCreate(&st0, 1));
    T(cuMemAlloc(&d_base, 65536));
    d_errs = d_base;
    T(cuMemsetD8(d_base, 0, 65536));
    memset(page[mi], 0, 4096);
    int r = cuMemHostRegister(page[mi], 4096, 2);
    if (!r)
        r = cuMemHostGetDevicePointer(&d_page, page[mi], 0);
    if (r) { // no registered shared memory: a copy that a thread brings over
        sh->host_reg = r;
        T(cuMemHostAlloc((void **)&local_page, 4096, 2));
        memset(local_page, 0, 4096);
        T(cuMemHostGetDevicePointer(&d_page, local_page, 0));
        pthread_t t;
        pthread_create(&t, NULL, copier, NULL);
    }
    cuDeviceGetAttribute(&sh->sms, 16, dev);
    cuDeviceGetName(sh->name, 64, dev);
    cuDriverGetVersion(&sh->drv);
    sh->grid = 2 * sh->sms;
    launched_kernels = 0;
    int e = launch_to(f_work, st0, 16, 0, 2, 16);
    T(e);
    T(cuCtxSynchronize());
    cuMemsetD8(d_base, 0, 65536);
    e = launch_linger(0, 1000);
    T(e);
    T(cuCtxSynchronize());
    me->queued = 0;
    struct group *g = compute(me, 0);
    if (g)
        g_getslice(g, &dflt_slice);
    else
        fprintf(stderr, "worker %d: no compute group seen (%d groups)\n", mi, me->ng);
    return 0;
}
static int cmpd(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double pct(double *v, int n, double q) {
    if (!n)
        return -1;
    qsort(v, n, sizeof *v, cmpd);
    int i = (int)(q * n);
    return v[i >= n ? n - 1 : i];
}

static void r_cal(void) {
    int it = 200;
    sh->iters = it;
    for (int k = 0; k < 3; k++) {
        u64 t = now_ns();
        launch_to(f_work, st0, 16, 0, 1000, it);
        cuStreamSynchronize(st0);
        double ns = (double)(now_ns() - t) / 1000;
        if (k) {
            it = (int)(it * 10000 / ns + .5);
            if (it < 1)
                it = 1;
        }
    }
    sh->iters = it;
    double v[3];
    u64 w = now_ns();
    while (now_ns() - w < 300 * MS) {
        launch_to(f_work, st0, 16, 0, 1000, it);
        cuStreamSynchronize(st0);
    }
    for (int k = 0; k < 3; k++) {
        u64 t = now_ns();
        launch_to(f_work, st0, 16, 0, 20000, it);
        cuStreamSynchronize(st0);
        v[k] = (double)(now_ns() - t - 8000) / 20000;
    }
    sh->chunk_ns = pct(v, 3, .5);
    launched_kernels = 0;
    cuCtxSynchronize();
    u32 b[2];
    cuMemcpyDtoH(b, d_errs, 8);
    errs_seen = b[0];
    blocks_seen = b[1];
    if (b[0])
        me->r.bad = 1;
}

struct ctrlthr {
    struct params p;
    double *offd, *ond;
    int no, nn, errs, st;
};
static void *controller(void *x) {
    struct ctrlthr *c = x;
    struct params *p = &c->p;
    int state = 1;
    if (p->demand) { // off while another tenant has a request, on when it has none
        for (;;) {
            while (!atomic_load(&sh->want)) {
                if (now_ns() >= p->t1)
                    return NULL;
                relax();
            }
            u64 t = now_ns();
            int r = off(p->mech);
            double d = (double)(now_ns() - t) / 1000;
            if (c->no < 8192)
                c->offd[c->no++] = d;
            if (r) {
                c->errs++;
                c->st = r;
            }
            while (atomic_load(&sh->want) && now_ns() < p->t1 + 100 * MS)
                relax();
            t = now_ns();
            r = on(p->mech);
            d = (double)(now_ns() - t) / 1000;
            if (c->nn < 8192)
                c->ond[c->nn++] = d;
            if (r) {
                c->errs++;
                c->st = r;
            }
        }
    }
    for (u64 k = 0;; k++) {
        u64 a = p->t0 + k * p->period + p->on_a, b = p->t0 + k * p->period + p->on_b;
        if (a >= p->t1)
            break;
        if (state && (p->on_a > 0 || k > 0)) {
            u64 t = now_ns();
            int r = off(p->mech);
            double d = (double)(now_ns() - t) / 1000;
            if (c->no < 8192)
                c->offd[c->no++] = d;
            if (r) {
                c->errs++;
                c->st = r;
            }
            state = 0;
        }
        until(a);
        if (!state) {
            u64 t = now_ns();
            int r = on(p->mech);
            double d = (double)(now_ns() - t) / 1000;
            if (c->nn < 8192)
                c->ond[c->nn++] = d;
            if (r) {
                c->errs++;
                c->st = r;
            }
            state = 1;
        }
        if (b >= p->t1)
            break;
        until(b);
    }
    if (!state)
        on(p->mech);
    return NULL;
}
static void r_busy(struct params *p) {
    struct result *r = &me->r;
    double cn = sh->chunk_ns;
    u64 depth = p->depth ? p->depth : 3 * MS;
    struct ctrlthr c;
    pthread_t th;
    int hc = 0;
    u32 s0[6] = {0}, s1[6] = {0};
    struct group *g = compute(me, 0);
    memset(&c, 0, sizeof c);
    c.offd = malloc(65536);
    c.ond = malloc(65536);
    c.p = *p;
    if (g)
        g_ctxstats(me, g, s0);
    if (p->cilp) {
        int e = g_cilp(me, g, p->cilp - 1);
        if (e) {
            r->st_off = e;
        }
    }
    if (p->prop) {
        struct group *q;
        EACH_COMPUTE(me, q) for (int i = 0; i < q->nch; i++) {
            struct {
                u32 h, prop;
                u64 v;
            } a = {q->ch[i], p->prop == 1 ? 2 : 3, 0};
            int e = control(q->fd, q->client, q->parent, 0x80170f, &a, sizeof a);
            if (e)
                r->st_off = e;
        }
    }
    until(p->t0);
    if (p->period || p->demand)
        hc = !pthread_create(&th, NULL, controller, &c);
    u64 kn = (u64)(p->kchunks * cn);
    while (now_ns() < p->t1 && !r->err) {
        if (sh->turn_k && p->turn_i >= 0) { // software turns: only the holder launches, and hands over when it has drained
            if (atomic_load(&sh->turn) != p->turn_i) {
                relax();
                continue;
            }
            if (now_ns() >= atomic_load(&sh->turn_end)) {
                if (mypr() < me->queued) {
                    relax();
                    continue;
                }
                atomic_store(&sh->turn_end, now_ns() + sh->turn_ns);
                atomic_store(&sh->turn, (p->turn_i + 1) % sh->turn_k);
                continue;
            }
        }
        u64 pend = (u64)((double)(me->queued - mypr()) * cn);
        if (pend < depth || pend < 2 * kn - kn / 2) {
            if (!(sh->turn_k && p->turn_i >= 0 && pend > 2 * MS)) {
                launch(p->kchunks);
                r->kernels++;
                continue;
            }
        }
        if (pend > 1500 * US && !sh->turn_k)
            sleep_ns(100 * US);
        else
            relax();
    }
    if (hc)
        pthread_join(th, NULL);
    if (wait_prog(me->queued, 6000 * MS)) {
        r->dead = 1;
        rescue();
    }
    if (!r->dead) {
        wait_idle(3000 * MS);
        r->bad = check();
    }
    if (g && !g_ctxstats(me, g, s1))
        for (int i = 0; i < 6; i++)
            r->save[i] = s1[i] - s0[i];
    if (p->cilp && g)
        g_cilp(me, g, 2);
    if (hc) {
        r->off50 = pct(c.offd, c.no, .5);
        r->off99 = pct(c.offd, c.no, .99);
        r->offmax = pct(c.offd, c.no, 1);
        r->on50 = pct(c.ond, c.nn, .5);
        r->on99 = pct(c.ond, c.nn, .99);
        r->onmax = pct(c.ond, c.nn, 1);
        r->cycles = c.nn;
        r->st_off = c.st;
        r->n = c.errs;
    }
    free(c.offd);
    free(c.ond);
}
static void restart_runlist(void) {
    struct group *g = compute(me, 0);
    uint8_t q[2] = {1, 1};
    if (g && g->nch) {
        int e = control(g->fd, g->client, g->ch[0], 0xa06f0111, q, 2);
        if (e)
            me->r.st_on = e;
    }
}
static void r_lat(struct params *p) {
    struct result *r = &me->r;
    static double lat[20000], svc[20000];
    int n = 0;
    u64 x = 88172645463325252ull ^ ((u64)p->seed << 17);
    void *ev, *gr = NULL, *ge = NULL;
    cuEventCreate(&ev, 2);
    static u64 seq;
    struct group *g = compute(me, 0);
    if (p->realtime && g) {
        uint8_t b = 1;
        int e = control(g->fd, g->client, g->handle, 0xa06c0110, &b, 1);
        if (e)
            r->st_off = e;
    }
    if (p->iset && g) {
        u32 l = 2;
        int e = control(g->fd, g->client, g->handle, 0xa06c0107, &l, 4);
        if (e)
            r->st_off = e;
    }
    if (p->lmode == 1) {
        int e = cuStreamBeginCapture(st0, 2);
        for (u32 k = 0; k < p->lkernels && !e; k++)
            e = launch_to(f_work, st0, 16, 0, p->kchunks, sh->iters);
        if (!e)
            e = cuStreamEndCapture(st0, &gr);
        if (!e)
            e = cuGraphInstantiate(&ge, gr, 0);
        if (e) {
            r->err = e;
            return;
        }
    }
    until(p->t0);
    u64 next = p->t0;
    for (;;) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        double u = ((double)(x >> 11) + 1) / 9007199254740993.0;
        next += (u64)(-log(u) / p->rate * 1e9);
        if (next >= p->t1 || n >= 20000)
            break;
        until(next);
        u64 s = now_ns();
        if (s > p->t1 + 1000 * MS)
            break;
        if (p->prio_restart)
            restart_runlist();
        if (p->demand)
            atomic_store(&sh->want, 1);
        if (p->lmode >= 3)
            __atomic_store_n(&page[mi][8], ++seq, __ATOMIC_RELAXED); // ends a spinner still there
        int e = 0;
        if (p->lmode == 1) {
            e = cuGraphLaunch(ge, st0);
            launched_kernels += p->lkernels;
        } else
            for (u32 k = 0; k < p->lkernels && !e; k++) {
                if (p->lmode == 3 && k)
                    __atomic_store_n(&page[mi][8], ++seq, __ATOMIC_RELAXED);
                e = launch_to(f_work, st0, 16, 0, p->kchunks, sh->iters);
                launched_kernels++;
                if (p->lmode == 2 || p->lmode == 3) {
                    cuEventRecord(ev, st0);
                    if (p->lmode == 3)
                        launch_linger(seq + 1, p->linger);
                    int q;
                    while ((q = cuEventQuery(ev)) == 600) {
                        relax();
                        if (now_ns() > p->t1 + 3000 * MS) {
                            q = 600;
                            break;
                        }
                    }
                    if (q)
                        e = q;
                }
            }
        if (p->lmode != 2 && p->lmode != 3 && !e) {
            cuEventRecord(ev, st0);
            if (p->lmode == 4)
                launch_linger(seq + 1, p->linger);
            while ((e = cuEventQuery(ev)) == 600) {
                relax();
                if (now_ns() > p->t1 + 3000 * MS)
                    break;
            }
        }
        if (p->demand)
            atomic_store(&sh->want, 0);
        if (e) {
            r->err = e;
            break;
        }
        u64 d = now_ns();
        lat[n] = (double)(d - next) / 1e6;
        svc[n++] = (double)(d - s) / 1e6;
        atomic_fetch_add(&me->soft, (u64)p->kchunks * p->lkernels);
    }
    __atomic_store_n(&page[mi][8], ++seq, __ATOMIC_RELAXED);
    wait_idle(3000 * MS);
    r->bad = check();
    r->n = n;
    r->p50 = pct(lat, n, .5);
    r->p90 = pct(lat, n, .9);
    r->p99 = pct(lat, n, .99);
    r->max = pct(lat, n, 1);
    r->s50 = pct(svc, n, .5);
    r->s90 = pct(svc, n, .9);
    r->s99 = pct(svc, n, .99);
    if (ge)
        cuGraphExecDestroy(ge);
    if (gr)
        cuGraphDestroy(gr);
    if (p->realtime && g) {
        uint8_t b = 0;
        control(g->fd, g->client, g->handle, 0xa06c0110, &b, 1);
    }
    if (p->iset && g) {
        u32 l = 0;
        control(g->fd, g->client, g->handle, 0xa06c0107, &l, 4);
    }
}
static void r_tog(struct params *p) {
    struct result *r = &me->r;
    double cn = sh->chunk_ns / 1000;
    u32 K = p->kchunks;
    double a_off[16], a_on[16], a_ran[16], a_leak[16], a_res[16], a_ex[16], vo[16], vf[16];
    int n = 0;
    until(p->t0);
    u64 pre = (u64)(20000 / cn);
    for (int k = 0; k < p->reps && k < 16; k++) {
        u64 b0 = me->queued, v0 = p->target >= 0 ? prog(p->target) : 0, tl = now_ns();
        launch(K);
        if (wait_prog(b0 + pre, 3000 * MS)) {
            r->dead = 1;
            break;
        }
        u64 t0 = now_ns(), p0 = mypr(), v1 = p->target >= 0 ? prog(p->target) : 0;
        int s = off(p->mech);
        u64 t1 = now_ns(), p1 = mypr(), v2 = p->target >= 0 ? prog(p->target) : 0;
        if (s)
            r->st_off = s;
        until(t1 + p->hold);
        u64 p2 = mypr(), v3 = p->target >= 0 ? prog(p->target) : 0;
        u64 t2 = now_ns();
        s = on(p->mech);
        u64 t3 = now_ns();
        if (s)
            r->st_on = s;
        u64 tt = now_ns() + 2000 * MS;
        int lost = 0;
        while (mypr() == p2 && mypr() < b0 + K) {
            if (now_ns() > tt) {
                lost = 1;
                break;
            }
            relax();
        }
        u64 t4 = now_ns();
        if (lost || wait_prog(b0 + K, 5000 * MS)) {
            rescue();
            if (wait_prog(b0 + K, 2000 * MS)) {
                r->dead = 1;
                say("LOST ");
                break;
            }
            say("rescued ");
        }
        u64 te = now_ns();
        a_off[n] = (double)(t1 - t0) / 1000;
        a_on[n] = (double)(t3 - t2) / 1000;
        a_ran[n] = (double)(p1 - p0) * cn;
        a_leak[n] = (double)(p2 - p1) * cn;
        a_res[n] = (double)(t4 - t2) / 1000;
        a_ex[n] = ((double)(te - tl) - K * cn * 1000 - (double)(t2 - t1)) / 1000;
        vf[n] = (double)(v1 - v0) * cn * 1000 / (double)(t0 - tl);
        vo[n] = (double)(v3 - v2) * cn * 1000 / (double)(t2 - t1);
        n++;
    }
    r->n = n;
    r->off50 = pct(a_off, n, .5);
    r->on50 = pct(a_on, n, .5);
    r->ran = pct(a_ran, n, .5);
    r->leak = pct(a_leak, n, .5);
    r->resume = pct(a_res, n, .5);
    r->extra = pct(a_ex, n, .5);
    r->vr_on = pct(vf, n, .5);
    r->vr_off = pct(vo, n, .5);
    if (!r->dead) {
        wait_idle(3000 * MS);
        r->bad = check();
    }
}
static struct {
    int m;
    u64 ns;
} onlater;
static void *on_thr(void *x) {
    (void)x;
    sleep_ns(onlater.ns);
    on(onlater.m);
    return NULL;
}
static void r_api(struct params *p) { // which calls wait while the process is off
    static const char *nm[] = {"alloc64M",  "free",   "strcreate", "launch",    "htod4k_str2", "memset_str0",
                               "hostalloc", "module", "htod_sync", "launch200", "ctxsync"};
    devptr d = 0;
    void *s2, *hp = NULL, *m2 = NULL;
    cuStreamCreate(&s2, 1);
    devptr d2;
    cuMemAlloc(&d2, 1 << 20);
    static char buf[4096];
    for (int k = 0; k < 11; k++) {
        launch((u32)(30e6 / sh->chunk_ns));
        sleep_ns(5 * MS);
        off(p->mech);
        onlater.m = p->mech;
        onlater.ns = 150 * MS;
        pthread_t t;
        pthread_create(&t, NULL, on_thr, NULL);
        u64 a = now_ns();
        int e = 0;
        void *s3;
        switch (k) {
        case 0:
            e = cuMemAlloc(&d, 64 << 20);
            break;
        case 1:
            e = cuMemFree(d);
            break;
        case 2:
            e = cuStreamCreate(&s3, 1);
            break;
        case 3:
            e = launch(10);
            break;
        case 4:
            e = cuMemcpyHtoDAsync(d2, buf, 4096, s2);
            break;
        case 5:
            e = cuMemsetD8(d2, 1, 1 << 20);
            break;
        case 6:
            e = cuMemHostAlloc(&hp, 1 << 20, 0);
            break;
        case 7:
            e = cuModuleLoadData(&m2, PTX);
            break;
        case 8:
            e = cuMemcpyHtoD(d2, buf, 4096);
            break;
        case 9:
            for (int i = 0; i < 200 && !e; i++)
                e = launch(1);
            break;
        case 10:
            e = cuCtxSynchronize();
            break;
        }
        u64 b = now_ns();
        say("%s=%.1f%s ", nm[k], (double)(b - a) / 1e6, e ? "ERR" : "");
        if (e)
            say("(%d) ", e);
        pthread_join(t, NULL);
        if (wait_prog(me->queued, 3000 * MS)) {
            me->r.dead = 1;
            return;
        }
        wait_idle(2000 * MS);
    }
    me->r.bad = check();
}
static void r_longoff(struct params *p) {
    u64 b = me->queued;
    launch(p->kchunks);
    wait_prog(b + p->kchunks / 5, 2000 * MS);
    int s = off(p->mech);
    u64 p0 = mypr(), t = now_ns();
    until(t + p->hold);
    u64 p1 = mypr();
    int s2 = on(p->mech);
    u64 t2 = now_ns();
    int w = wait_prog(me->queued, 5000 * MS);
    int e = w ? -1 : wait_idle(1000 * MS);
    say("off %.1fs st=%d/%d ran_while_off=%.0fus finished %.1fms after on err=%d bad=%d", p->hold / 1e9, s, s2,
        (double)(p1 - p0) * sh->chunk_ns / 1000, (double)(now_ns() - t2) / 1e6, e, w ? 1 : check());
    if (w)
        me->r.dead = 1;
}
static void r_probe(void) {
    struct group *g;
    u64 us;
    u32 cs[6];
    for (int i = 0; i < me->ng; i++) {
        g = &me->g[i];
        if (!g->live)
            continue;
        u32 tsg = 0;
        int a = g_getslice(g, &us), b = control(g->fd, g->client, g->handle, 0xa06c0106, &tsg, 4);
        say("\n  group %x client %x parent %x engine %u tsg %u(%d) slice %lld(%d) channels %d class %x", g->handle, g->client, g->parent,
            g->engine, tsg, b, (long long)us, a, g->nch, g->nch ? g->chclass[0] : 0);
    }
    say("\n  libcuda's own:");
    for (int i = 0; i < me->nl; i++)
        say(" %x@%x=%llx(%d)", me->l[i].cmd, me->l[i].obj, (unsigned long long)me->l[i].val, (int)me->l[i].status);
    g = compute(me, 0);
    if (!g)
        return;
    struct subdev *s = subof(me, g);
    say("\n  subdevs %d used %x; ctxsw stats st=%d", me->ns, s ? s->handle : 0, g_ctxstats(me, g, cs));
    say(" saves %u restores %u wfi %u cta %u cilp %u", cs[0], cs[1], cs[2], cs[3], cs[4]);
    say("\n  slice accepted:");
    u64 tr[] = {0, 1, 2, 10, 50, 100, 1000, 30000, 1000000, 10000000, 100000000};
    for (unsigned i = 0; i < sizeof tr / 8; i++) {
        u64 t = now_ns();
        int r = g_slice(g, tr[i]);
        double d = (double)(now_ns() - t) / 1000;
        u64 q;
        g_getslice(g, &q);
        say(" %llu:%d/get%lld/%.0fus", (unsigned long long)tr[i], r, (long long)q, d);
    }
    say(" restore:%d", g_slice(g, dflt_slice));
    say("\n  idle calls (status,us off/on):");
    for (int m = 0; m < NMECH; m++) {
        u64 t = now_ns();
        int a = off(m);
        u64 t1 = now_ns();
        int b = on(m);
        u64 t2 = now_ns();
        say(" %s:%d/%d,%.0f/%.0f", MECH[m], a, b, (t1 - t) / 1e3, (t2 - t1) / 1e3);
    }
    rescue();
    u32 l = 0;
    int a = control(g->fd, g->client, g->handle, 0xa06c0107, &l, 4), b = control(g->fd, g->client, g->handle, 0xa06c0108, &l, 4);
    uint8_t z = 0;
    int c = control(g->fd, g->client, g->handle, 0xa06c0110, &z, 1);
    uint8_t q[2] = {0, 1};
    u64 t = now_ns();
    int d = g->nch ? control(g->fd, g->client, g->ch[0], 0xa06f0111, q, 2) : -1;
    double dt = (now_ns() - t) / 1e3;
    say("\n  interleave set0 %d get %d(%u) make_realtime(0) %d restart_runlist(noforce) %d %.0fus cilp-mode(2) %d(%d)", a, b, l, c, d, dt,
        g_cilp(me, g, 2), 0);
    launch(100);
    wait_idle(2000 * MS);
    me->r.bad = check();
}
struct ct {
    int n;
    double v[400];
    int st;
};
static void *calltime(void *x) {
    struct ct *c = x;
    for (int i = 0; i < c->n; i++) {
        u64 t = now_ns();
        int r = set_slice(i & 1 ? 2000 : 1900);
        c->v[i] = (now_ns() - t) / 1e3;
        if (r)
            c->st = r;
        sleep_ns(500 * US);
    }
    return NULL;
}
static void r_calltime(struct params *p) {
    struct ct c = {.n = p->reps};
    calltime(&c);
    say("SET_TIMESLICE own-thread p50 %.0f p99 %.0f st %d;", pct(c.v, c.n, .5), pct(c.v, c.n, .99), c.st);
    pthread_t t;
    pthread_create(&t, NULL, calltime, &c);
    pthread_join(t, NULL);
    say(" other-thread p50 %.0f p99 %.0f st %d;", pct(c.v, c.n, .5), pct(c.v, c.n, .99), c.st);
    struct group *g = compute(me, 0);
    u64 q;
    int n = 0;
    for (int i = 0; i < p->reps && g; i++) {
        u64 s = now_ns();
        g_getslice(g, &q);
        c.v[n++] = (now_ns() - s) / 1e3;
    }
    say(" GET p50 %.1f p99 %.1f (=%llu)", pct(c.v, n, .5), pct(c.v, n, .99), (unsigned long long)q);
    if (p->kchunks) { // while its own long kernel runs: does each SET stall it?
        u64 b = me->queued, t0 = now_ns();
        u32 K = (u32)(200e6 / sh->chunk_ns);
        launch(K);
        int k = 0;
        while (mypr() < b + K && now_ns() - t0 < 3000 * MS) {
            set_slice(k++ & 1 ? 2000 : 1900);
            sleep_ns(300 * US);
        }
        double tot = (now_ns() - t0) / 1e6;
        say("; %d sets during a 200ms kernel: it took %.1f ms (%.0f us each)", k, tot, k ? (tot - 200) * 1000 / k : 0);
        wait_idle(2000 * MS);
        me->r.bad = check();
    }
}
static void groups_line(const char *what) {
    say("\n  %s: ", what);
    int nc = 0;
    for (int i = 0; i < me->ng; i++)
        if (me->g[i].live) {
            u64 q;
            int r = g_getslice(&me->g[i], &q);
            say("e%u/%dch/%lld%s ", me->g[i].engine, me->g[i].nch, (long long)q, r ? "!" : "");
            nc++;
        }
    say("(%d) libcuda-sets:%d", nc, me->nl);
}
static void r_groups(void) {
    void *s[40], *c2 = NULL, *ds, *gc = NULL;
    devptr d;
    cuMemAlloc(&d, 16 << 20);
    static char *h;
    if (!h)
        cuMemHostAlloc((void **)&h, 16 << 20, 0);
    set_slice(777);
    me->nl = 0;
    groups_line("start, slice set to 777");
    for (int i = 0; i < 40; i++) {
        int e = i < 32 ? cuStreamCreate(&s[i], 1) : cuStreamCreatePrio(&s[i], 1, i & 1 ? -5 : 0);
        if (!e)
            e = launch_to(f_work, s[i], 16, 0, 20, sh->iters);
        if (e)
            say("err %d ", e);
        launched_kernels++;
    }
    cuCtxSynchronize();
    groups_line("40 streams launched");
    for (int i = 0; i < 4; i++)
        cuMemcpyHtoDAsync(d, h, 16 << 20, s[i]);
    cuMemcpyDtoH(h, d, 16 << 20);
    cuCtxSynchronize();
    groups_line("copies");
    if (cuCtxCreate) {
        u64 t = now_ns();
        int e = cuCtxCreate(&c2, 0, dev);
        double ms = (now_ns() - t) / 1e6;
        groups_line("second context");
        say(" e=%d %.0fms", e, ms);
        if (!e) {
            cuCtxDestroy(c2);
            groups_line("destroyed");
        }
        cuCtxSetCurrent(ctx);
    }
    if (cuDeviceGetDevResource && cuGreenCtxCreate) {
        static char in[256], out[256], rem[256];
        unsigned nb = 1;
        int e = cuDeviceGetDevResource(dev, in, 1);
        if (!e)
            e = cuDevSmResourceSplitByCount(out, &nb, in, rem, 0, 32);
        if (!e)
            e = cuDevResourceGenerateDesc(&ds, out, 1);
        if (!e)
            e = cuGreenCtxCreate(&gc, ds, dev, 1);
        void *gs;
        if (!e)
            e = cuGreenCtxStreamCreate(&gs, gc, 1, 0);
        if (!e) {
            e = launch_to(f_work, gs, 16, 0, 20, sh->iters);
            launched_kernels++;
        }
        cuCtxSynchronize();
        groups_line("green context");
        say(" e=%d", e);
    }
    say("\n  sets by libcuda since:");
    for (int i = 0; i < me->nl; i++)
        say(" %x@%x=%llx(%d)", me->l[i].cmd, me->l[i].obj, (unsigned long long)me->l[i].val, (int)me->l[i].status);
}
static void r_xdis(struct params *p) { // names another process's channels in its own call
    struct wrk *o = &sh->w[p->target];
    struct group *g = compute(o, 0), *mine = compute(me, 0);
    struct subdev *s = mine ? subof(me, mine) : NULL;
    if (!g || !s) {
        say("no group");
        return;
    }
    until(p->t0 + 100 * MS);
    u64 a = prog(p->target);
    sleep_ns(40 * MS);
    u64 b = prog(p->target);
    int r = dis_list(mine->fd, s->client, s->handle, g, 1, 0);
    u64 c = prog(p->target);
    sleep_ns(40 * MS);
    u64 d = prog(p->target);
    int r2 = dis_list(mine->fd, s->client, s->handle, g, 0, 0);
    double k = sh->chunk_ns / 40e6;
    u64 us = 5000;
    int r3 = control(mine->fd, g->client, g->handle, 0xa06c0103, &us, 8);
    say("DISABLE_CHANNELS naming another process's: st=%d its rate before %.2f after %.2f enable st=%d; its SET_TIMESLICE by my fd st=%d",
        r, (b - a) * k, (d - c) * k, r2, r3);
}
static void r_channels(void) { // how long it takes to switch off the first 1, 2, 4 and 8 channels, while a kernel of 400 ms runs and idle
    for (int idle = 0; idle < 2; idle++)
        for (int n = 1; n <= 8; n *= 2) {
            struct group *g = compute(me, 0);
            int all = g->nch;
            if (n > all)
                break;
            if (!idle)
                launch((u32)(400e6 / sh->chunk_ns));
            sleep_ns(10 * MS);
            double a[20], b[20];
            int stopped = 0;
            for (int k = 0; k < 20; k++) {
                g->nch = n;
                u64 t = now_ns();
                g_disable(me, g, 1, 0);
                a[k] = (double)(now_ns() - t) / 1000;
                u64 x = mypr();
                sleep_ns(2 * MS);
                stopped += x == mypr();
                t = now_ns();
                g_disable(me, g, 0, 0);
                b[k] = (double)(now_ns() - t) / 1000;
                g->nch = all;
                sleep_ns(2 * MS);
            }
            if (!idle)
                wait_prog(me->queued, 3000 * MS);
            say("%d %s off %.0f on %.0f us stopped %d of 20; ", n, idle ? "idle" : "busy", pct(a, 20, .5), pct(b, 20, .5), stopped);
        }
}
static void worker(int i) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1000ul);
    mi = i;
    me = &sh->w[i];
    signal(SIGALRM, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    int e = cuda_init();
    atomic_store(&me->ready, e ? -1 : 1);
    if (e)
        _exit(1);
    u64 seen = atomic_load(&me->done);
    for (;;) {
        while (atomic_load(&me->go) == seen)
            sleep_ns(100 * US);
        seen = atomic_load(&me->go);
        struct params p = me->p;
        memset(&me->r, 0, sizeof me->r);
        if (p.slice != 0 && compute(me, 0)) {
            int s = set_slice(p.slice < 0 ? dflt_slice : (u64)p.slice);
            if (s)
                me->r.st_on = s;
        }
        switch (p.role) {
        case R_CAL:
            r_cal();
            break;
        case R_BUSY:
            r_busy(&p);
            break;
        case R_LAT:
            r_lat(&p);
            break;
        case R_PROBE:
            r_probe();
            break;
        case R_TOG:
            r_tog(&p);
            break;
        case R_API:
            r_api(&p);
            break;
        case R_LONGOFF:
            r_longoff(&p);
            break;
        case R_CALLTIME:
            until(p.t0);
            r_calltime(&p);
            break;
        case R_GROUPS:
            r_groups();
            break;
        case R_CHANNELS:
            r_channels();
            break;
        case R_XDIS:
            r_xdis(&p);
            break;
        case R_RELEASE: {
            launch((u32)(300e6 / sh->chunk_ns));
            sleep_ns(20 * MS);
            int a = off(p.mech);
            u64 t = now_ns();
            int b = cuPrimaryRelease(dev);
            say("off=%d then cuDevicePrimaryCtxRelease=%d in %.0f ms", a, b, (now_ns() - t) / 1e6);
            atomic_store(&me->done, seen);
            _exit(0);
        }
        case R_EXITOFF: {
            launch((u32)(300e6 / sh->chunk_ns));
            sleep_ns(20 * MS);
            int a = off(p.mech);
            say("off=%d", a);
            atomic_store(&me->done, seen);
            for (;;)
                pause();
        }
        }
        if (me->r.dead)
            rescue();
        atomic_store(&me->done, seen);
    }
}

// ------------------------------------------------------------------ parent
static FILE *fo;
static u64 T0, deadline;
static double scale = 1;
static int best = -1, forced = -1;
static char keys[16384];
static int kl;
static int has_gpu_groups = 1;
static void out(const char *f, ...) {
    va_list a;
    char b[9000];
    va_start(a, f);
    vsnprintf(b, sizeof b, f, a);
    va_end(a);
    fputs(b, stdout);
    fflush(stdout);
    if (fo) {
        fputs(b, fo);
        fflush(fo);
    }
}
static void key(const char *f, ...) {
    va_list a;
    char b[600];
    va_start(a, f);
    vsnprintf(b, sizeof b, f, a);
    va_end(a);
    out("KEY %s\n", b);
    if (kl < (int)sizeof keys - 700)
        kl += sprintf(keys + kl, "%s\n", b);
}
static void reap(int i) {
    int pid = atomic_load(&sh->w[i].pid);
    if (pid <= 0)
        return;
    u64 t = now_ns();
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, WNOHANG) == 0) {
        if (now_ns() - t > 8000 * MS) {
            out("  worker %d (pid %d) does not die\n", i, pid);
            break;
        }
        sleep_ns(1 * MS);
    }
    atomic_store(&sh->w[i].pid, 0);
    out("  (worker %d gone after %.0f ms)\n", i, (now_ns() - t) / 1e6);
}
static int spawn(int i) {
    struct wrk *w = &sh->w[i];
    memset(w, 0, sizeof *w);
    memset(page[i], 0, 4096);
    fflush(stdout);
    if (fo)
        fflush(fo);
    int pid = fork();
    if (pid == 0) {
        worker(i);
        _exit(0);
    }
    atomic_store(&w->pid, pid);
    return pid;
}
static int wait_ready(int i, u64 ms) {
    u64 t = now_ns() + ms * MS;
    while (!atomic_load(&sh->w[i].ready)) {
        if (now_ns() > t || waitpid(sh->w[i].pid, NULL, WNOHANG) != 0)
            break;
        sleep_ns(1 * MS);
    }
    if (sh->w[i].ready != 1) {
        out("worker %d did not start\n", i);
        return -1;
    }
    return 0;
}
static int need(int n) { // workers 0..n-1 alive
    int bad = 0;
    for (int i = 0; i < n; i++)
        if (sh->w[i].pid <= 0) {
            spawn(i);
        }
    for (int i = 0; i < n; i++)
        if (sh->w[i].ready != 1)
            bad |= wait_ready(i, 25000);
    return bad;
}
static void give(int i, struct params p) {
    sh->w[i].p = p;
    atomic_fetch_add(&sh->w[i].go, 1);
}
static int finish(int i, u64 until_t) {
    struct wrk *w = &sh->w[i];
    int gone = 0;
    while (atomic_load(&w->done) != atomic_load(&w->go)) {
        if (waitpid(w->pid, NULL, WNOHANG) > 0) {
            gone = 1;
            break;
        }
        if (now_ns() > until_t)
            break;
        sleep_ns(200 * US);
    }
    if (atomic_load(&w->done) != atomic_load(&w->go)) {
        out("  TIMEOUT worker %d role %d%s\n", i, w->p.role, gone ? " (died)" : "");
        if (gone)
            atomic_store(&w->pid, 0);
        else
            reap(i);
        spawn(i);
        wait_ready(i, 25000);
        w->r.dead = 1;
        w->r.err = -99;
        return -1;
    }
    if (w->r.err || w->r.dead || w->r.bad) {
        out("  worker %d: err=%d dead=%d wrong-result=%d; replaced\n", i, w->r.err, w->r.dead, w->r.bad);
        struct result k = w->r;
        reap(i);
        spawn(i);
        wait_ready(i, 25000);
        w->r = k;
        return -1;
    }
    return 0;
}
struct run {
    int n, id[MAXW];
    struct params p[MAXW];
    double share[MAXW], sd[MAXW];
    u64 dur, warm;
    int bad;
};
static void add(struct run *r, int id, struct params p) {
    r->id[r->n] = id;
    r->p[r->n++] = p;
}
static double cnt(int i) {
    return (double)(prog(i) + atomic_load(&sh->w[i].soft));
}
static void go(struct run *r) {
    u64 t0 = now_ns() + 15 * MS, dur = (u64)((double)r->dur * scale), warm = (u64)((double)r->warm * scale);
    double a[MAXW], b[MAXW], s1[MAXW] = {0}, s2[MAXW] = {0};
    int m = 0;
    int mx = 0;
    for (int i = 0; i < r->n; i++)
        if (r->id[i] > mx)
            mx = r->id[i];
    r->bad = need(mx + 1);
    if (r->bad)
        return;
    t0 = now_ns() + 15 * MS;
    atomic_store(&sh->turn, 0);
    atomic_store(&sh->turn_end, t0 + sh->turn_ns);
    for (int i = 0; i < r->n; i++) {
        r->p[i].t0 = t0;
        r->p[i].t1 = t0 + dur;
        give(r->id[i], r->p[i]);
    }
    until(t0 + warm);
    u64 ta = now_ns(), tp;
    for (int i = 0; i < r->n; i++)
        a[i] = b[i] = cnt(r->id[i]);
    tp = ta;
    for (u64 k = 1; t0 + warm + k * 100 * MS < t0 + dur - 5 * MS; k++) {
        until(t0 + warm + k * 100 * MS);
        u64 t = now_ns();
        for (int i = 0; i < r->n; i++) {
            double c = cnt(r->id[i]), s = (c - b[i]) * sh->chunk_ns / (double)(t - tp);
            b[i] = c;
            s1[i] += s;
            s2[i] += s * s;
        }
        m++;
        tp = t;
    }
    for (int i = 0; i < r->n; i++) {
        r->share[i] = tp > ta ? (b[i] - a[i]) * sh->chunk_ns / (double)(tp - ta) : 0;
        double mean = s1[i] / (m ? m : 1), v = s2[i] / (m ? m : 1) - mean * mean;
        r->sd[i] = v > 0 ? sqrt(v) : 0;
    }
    u64 lim = t0 + dur + (u64)(12000 * MS * (scale < 1 ? 1 : scale));
    for (int i = 0; i < r->n; i++)
        if (finish(r->id[i], lim))
            r->bad = 1;
}
static u32 ch(double us) {
    double c = us * 1000 / sh->chunk_ns;
    return c < 1 ? 1 : (u32)(c + .5);
}
static struct params P0(int role) {
    struct params p;
    memset(&p, 0, sizeof p);
    p.role = role;
    p.turn_i = -1;
    p.target = -1;
    p.slice = -1;
    return p;
} static struct params busy(double us, long slice) {
    struct params p = P0(R_BUSY);
    p.kchunks = ch(us);
    p.slice = slice;
    return p;
}
static struct params lat(int nk, double us, double rate, long slice, int mode, u64 linger) {
    struct params p = P0(R_LAT);
    p.kchunks = ch(us);
    p.lkernels = nk;
    p.rate = rate;
    p.slice = slice;
    p.lmode = mode;
    p.linger = linger;
    p.seed = 7;
    return p;
}
static int mech(void) {
    return forced >= 0 ? forced : best;
}
#define RES(i) (sh->w[i].r)
static char **sel;
static int nsel;
static int want(const char *id) {
    int w = 0;
    for (int i = 0; i < nsel; i++)
        if (!strncmp(id, sel[i], strlen(sel[i])) || !strncmp(sel[i], id, strlen(id)))
            w = 1;
    if (!nsel)
        w = id[0] != 'P';
    return w;
}
static int begin(const char *id, double secs) {
    if (!want(id))
        return 0;
    if (now_ns() + (u64)(secs * scale * 1e9) > deadline) {
        out("%s SKIPPED (deadline)\n", id);
        return 0;
    }
    return 1;
}
static double alone[2][3]; // p50 p90 p99 of the two kinds of request
static const char *req_name[] = {"1ms@50", ".5ms@200"};
static struct params reqp(int k, long slice, int mode, u64 linger) {
    return k ? lat(10, 50, 200, slice, mode, linger) : lat(20, 50, 50, slice, mode, linger);
}
static u64 reqdur(int k) {
    return k ? 2000 * MS : 3600 * MS;
}
static void latline(const char *id, const char *what, struct run *r, int k) {
    struct result *q = &RES(0);
    double sum = 0;
    out("%s %s %s | p50/90/99/max %.2f %.2f %.2f %.1f n%d | x%.2f x%.2f x%.2f | svc %.2f %.2f %.2f | got", id, req_name[k], what, q->p50,
        q->p90, q->p99, q->max, q->n, alone[k][0] > 0 ? q->p50 / alone[k][0] : 0, alone[k][1] > 0 ? q->p90 / alone[k][1] : 0,
        alone[k][2] > 0 ? q->p99 / alone[k][2] : 0, q->s50, q->s90, q->s99);
    for (int i = 0; i < r->n; i++) {
        out(" %.4f", r->share[i]);
        sum += r->share[i];
    }
    out(" sum %.4f%s\n", sum, r->bad ? " BAD" : "");
}
static void do_alone(void) {
    for (int k = 0; k < 2; k++) {
        if (alone[k][0] > 0)
            continue;
        struct run r = {.dur = reqdur(k)};
        add(&r, 0, reqp(k, -1, 0, 0));
        go(&r);
        alone[k][0] = RES(0).p50;
        alone[k][1] = RES(0).p90;
        alone[k][2] = RES(0).p99;
        latline("B0", "alone", &r, k);
    }
}
static void togline(const char *id, int m) {
    struct result *q = &RES(0);
    out("%s %-20s st %d/%d off %.0fus (ran %.0f in it) leak_while_off %.0fus on %.0fus resume %.0fus extra %.0fus | V rate %.2f -> %.2f | "
        "wrong=%d dead=%d n%d %s\n",
        id, MECH[m], q->st_off, q->st_on, q->off50, q->ran, q->leak, q->on50, q->resume, q->extra, q->vr_on, q->vr_off, q->bad, q->dead,
        q->n, q->txt);
}
static void sA(void) {
    struct run r;
    int works2[NMECH] = {0};
    double cost[NMECH];
    if (begin("A1", 2)) {
        need(1);
        struct params p = P0(R_PROBE);
        p.t0 = now_ns();
        give(0, p);
        finish(0, now_ns() + 8000 * MS);
        out("A1 probe%s\n", RES(0).txt);
    }
    if (begin("A2", 8) || (nsel && begin("A", 8))) {
        for (int m = 0; m < NMECH; m++) {
            struct params p = P0(R_TOG);
            p.mech = m;
            p.reps = 3;
            p.kchunks = ch(100000);
            p.hold = 50 * MS;
            r = (struct run){.dur = 100 * MS};
            add(&r, 0, p);
            go(&r);
            togline("A2 alone ", m);
            struct result *q = &RES(0);
            works2[m] = !r.bad && q->n && q->leak < 1500 && !q->st_on;
            cost[m] = q->off50 + q->on50;
        }
        for (int m = 1; m < NMECH; m++)
            if (works2[m] && (best < 0 || cost[m] < cost[best]))
                best = m;
        key("A2 own process off mid-kernel, alone: %s", best >= 0 ? MECH[best] : "NOTHING stops it");
        for (int m = 1; m < NMECH; m++)
            if (works2[m])
                key("A2   %s: off+on %.0f us", MECH[m], cost[m]);
    }
    if (begin("A3", 12)) {
        int b3 = -1;
        double c3 = 1e18;
        for (int m = 0; m < NMECH; m++) {
            struct params p = P0(R_TOG);
            p.mech = m;
            p.reps = 3;
            p.kchunks = ch(60000);
            p.hold = 50 * MS;
            p.target = 1;
            r = (struct run){.dur = 760 * MS};
            add(&r, 0, p);
            add(&r, 1, busy(2000, -1));
            go(&r);
            togline("A3 beside", m);
            struct result *q = &RES(0);
            if (m && !r.bad && q->n && q->leak < 3000 && q->vr_off > .9 && !q->st_on && q->off50 + q->on50 < c3) {
                b3 = m;
                c3 = q->off50 + q->on50;
            }
        }
        key("A3 beside a busy one: %s, off+on %.0f us", b3 >= 0 ? MECH[b3] : "nothing", c3 < 1e17 ? c3 : 0);
        if (best < 0)
            best = b3;
    }
    int m = mech();
    if (want("A4") || want("A5") || want("A6"))
        out("A  mechanism for the rest: %s\n", m >= 0 ? MECH[m] : "none; A4..A9, C3 and half of C4 skipped");
    if (m < 0)
        return;
    if (begin("A5", 26)) {
        static const double per[] = {10, 30, 100};
        for (int v = 0; v < 4; v++)
            for (int k = 0; k < 3; k++) {
                double P = per[k];
                if (v == 3 && k == 1)
                    continue;
                struct params p = busy(v == 2 ? 200 : 100000, -1);
                p.mech = m;
                p.period = (u64)(P * 1e6);
                p.on_a = 0;
                p.on_b = (u64)(P * 3e5);
                if (v == 2)
                    p.depth = 2 * MS;
                struct params q = busy(v == 2 ? 200 : 100000, -1);
                q.mech = m;
                q.period = p.period;
                q.on_a = p.on_b;
                q.on_b = p.period;
                if (v == 3)
                    q.period = 0; // v3: the other is always on
                r = (struct run){.dur = 2000 * MS, .warm = 300 * MS};
                add(&r, 0, p);
                if (v)
                    add(&r, 1, q);
                go(&r);
                struct result *x = &RES(0);
                out("A5 %s P=%.0fms want .300%s got %.4f sd100ms %.4f",
                    v == 0   ? "alone 100ms"
                    : v == 1 ? "beside .7 100ms"
                    : v == 2 ? "beside .7 200us"
                             : "V always on",
                    P, v && v < 3 ? "+.700" : "", r.share[0], r.sd[0]);
                if (v)
                    out(" + %.4f sum %.4f", r.share[1], r.share[0] + r.share[1]);
                out(" | off p50 %.0f p99 %.0f max %.0f on %.0f %.0f %.0f us cycles %d errs %d(%d)%s\n", x->off50, x->off99, x->offmax,
                    x->on50, x->on99, x->onmax, x->cycles, x->n, x->st_off, r.bad ? " BAD" : "");
                if (v < 2)
                    key("A5 %s P=%.0f: %.4f%s sum %.4f sd %.4f", v ? "both" : "alone", P, r.share[0], v ? " + rest" : "",
                        r.share[0] + (v ? r.share[1] : 0), r.sd[0]);
            }
    }
    if (begin("A4", 11)) {
        struct params p = busy(100000, -1);
        p.mech = m;
        p.period = 10 * MS;
        p.on_b = 5 * MS;
        r = (struct run){.dur = 10000 * MS, .warm = 200 * MS};
        add(&r, 0, p);
        go(&r);
        struct result *x = &RES(0);
        key("A4 1000 cycles of 10ms, 50%%: share %.4f cycles %d errs %d wrong %d err %d off p50 %.0f p99 %.0f max %.0f on %.0f %.0f %.0f",
            r.share[0], x->cycles, x->n, x->bad, x->err, x->off50, x->off99, x->offmax, x->on50, x->on99, x->onmax);
    }
    if (begin("A6", 4)) {
        need(1);
        struct params p = P0(R_API);
        p.mech = m;
        give(0, p);
        finish(0, now_ns() + 15000 * MS);
        key("A6 calls while off for 150 ms (ms): %s", RES(0).txt);
    }
    if (begin("A7", 6)) {
        need(1);
        struct params p = P0(R_LONGOFF);
        p.mech = m;
        p.kchunks = ch(100000);
        p.hold = (u64)(4000 * MS * scale);
        give(0, p);
        finish(0, now_ns() + 14000 * MS);
        key("A7 %s", RES(0).txt);
    }
    if (begin("A8", 5)) { // dies while off; the neighbour meanwhile
        need(2);
        struct params p = P0(R_EXITOFF);
        p.mech = m;
        struct params v = busy(2000, -1);
        v.t0 = now_ns();
        v.t1 = v.t0 + (u64)(2000 * MS);
        give(1, v);
        sleep_ns(100 * MS);
        give(0, p);
        u64 lim = now_ns() + 5000 * MS;
        while (atomic_load(&sh->w[0].done) != atomic_load(&sh->w[0].go) && now_ns() < lim)
            sleep_ns(1 * MS);
        double a = cnt(1);
        u64 t = now_ns();
        sleep_ns(200 * MS);
        double b = cnt(1);
        u64 t1 = now_ns();
        out("A8 %s, then SIGKILL:\n", RES(0).txt);
        reap(0);
        u64 t2 = now_ns();
        double c = cnt(1);
        finish(1, now_ns() + 8000 * MS);
        u64 t3 = now_ns();
        spawn(0);
        wait_ready(0, 20000);
        struct params q = busy(2000, -1);
        r = (struct run){.dur = 300 * MS, .warm = 50 * MS};
        add(&r, 0, q);
        go(&r);
        key("A8 killed while off: V rate %.2f before, %.2f during the kill (%.0f ms); new process in %.0f ms gets %.2f",
            (b - a) * sh->chunk_ns / (double)(t1 - t), (c - b) * sh->chunk_ns / (double)(t2 - t1), (t2 - t1) / 1e6, (now_ns() - t3) / 1e6,
            r.share[0]);
    }
    if (begin("A9", 5)) {
        need(1);
        struct params p = P0(R_RELEASE);
        p.mech = m;
        give(0, p);
        u64 t = now_ns();
        while (atomic_load(&sh->w[0].done) != atomic_load(&sh->w[0].go) && now_ns() - t < 6000 * MS)
            sleep_ns(1 * MS);
        key("A9 release while off: %s", sh->w[0].r.tl ? sh->w[0].r.txt : "HANGS > 6 s");
        reap(0);
        spawn(0);
        wait_ready(0, 20000);
    }
}
static void sH(void) { // the host's side: another process's groups, by a duplicate of its file
    if (!begin("H", 8))
        return;
    if (need(2))
        return;
    struct wrk *w = &sh->w[0];
    struct group *g = compute(w, 0);
    if (!g) {
        out("H no group\n");
        return;
    }
    struct params p = busy(100000, -1);
    p.t0 = now_ns();
    p.t1 = p.t0 + (u64)(4000 * MS);
    give(0, p);
    sleep_ns(300 * MS);
    int pf = (int)syscall(434, w->pid, 0), fd = pf < 0 ? -1 : (int)syscall(438, pf, g->fd, 0);
    out("H pidfd_open %d getfd %d%s\n", pf, fd, fd < 0 ? strerror(errno) : "");
    int own = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    u64 us = 1500, q = 0;
    int r1 = own < 0 ? -errno : control(own, g->client, g->handle, 0xa06c0103, &us, 8);
    int r2 = -1, r3 = -1;
    double ct = 0;
    if (fd >= 0) {
        u64 t = now_ns();
        r2 = control(fd, g->client, g->handle, 0xa06c0103, &us, 8);
        ct = (now_ns() - t) / 1e3;
        r3 = control(fd, g->client, g->handle, 0xa06c0104, &q, 8);
    }
    key("H1 another process's slice: by my own /dev/nvidiactl st=%d; by pidfd_getfd of its file st=%d (%.0fus), GET st=%d =%llu", r1, r2,
        ct, r3, (unsigned long long)q);
    if (fd >= 0) {
        u64 t = now_ns();
        int nc = 0, ngr = 0;
        u32 cl[64]; // without the tenant's help: which clients has this file, which groups have they
        for (u32 h = 0xc1d00000; h < 0xc1d00000 + 4096 && nc < 64; h++) {
            u32 a[3] = {h, 0x80, 0};
            int s = control(fd, h, h, 0xd05, a, 12);
            if (s == 0)
                cl[nc++] = h;
        }
        double tc = (now_ns() - t) / 1e6;
        t = now_ns();
        u32 lo = g->handle & 0xffff0000u;
        for (int i = 0; i < nc; i++)
            for (u32 h = lo; h < lo + 2048; h++) {
                u64 v;
                if (control(fd, cl[i], h, 0xa06c0104, &v, 8) == 0) {
                    ngr++;
                    if (ngr < 12)
                        out("  found client %x group %x slice %llu\n", cl[i], h, (unsigned long long)v);
                }
            }
        key("H2 discovery by scan: %d clients in 4096 handles %.1f ms, %d groups %.1f ms (truth: client %x, %d groups, first %x)", nc, tc,
            ngr, (now_ns() - t) / 1e6, g->client, w->ng, w->g[0].handle);
        struct group hg = *g;
        hg.fd = fd;
        double k = sh->chunk_ns;
        for (int m = 1; m < NMECH; m++) {
            if (m != mech() && m != 1 && m != 3 && m != 4)
                continue;
            for (int stop = 0; stop < 2; stop++) {
                if (stop)
                    kill(w->pid, SIGSTOP);
                u64 a = prog(0), t0 = now_ns();
                sleep_ns(30 * MS);
                u64 b = prog(0), t1 = now_ns();
                int s = m_off(w, &hg, m);
                u64 t2 = now_ns(), c = prog(0);
                sleep_ns(40 * MS);
                u64 d = prog(0), t3 = now_ns();
                int s2 = m_on(w, &hg, m);
                u64 t4 = now_ns(), e = prog(0);
                sleep_ns(30 * MS);
                u64 f = prog(0), t5 = now_ns();
                if (stop)
                    kill(w->pid, SIGCONT);
                key("H3 from outside, %s%s: st %d/%d rate before %.2f off %.3f after %.2f; calls %.0f/%.0f us", MECH[m],
                    stop ? ", tenant SIGSTOPped" : "", s, s2, (b - a) * k / (double)(t1 - t0), (d - c) * k / (double)(t3 - t2),
                    (f - e) * k / (double)(t5 - t4), (t2 - t1) / 1e3, (t4 - t3) / 1e3);
                if (stop)
                    sleep_ns(100 * MS);
            }
        }
        uint8_t rt = 0;
        u32 l = 0;
        key("H4 as root on its group: interleave st=%d make_realtime(0) st=%d", control(fd, g->client, g->handle, 0xa06c0107, &l, 4),
            control(fd, g->client, g->handle, 0xa06c0110, &rt, 1));
    }
    finish(0, now_ns() + 15000 * MS);
    if (fd >= 0)
        close(fd);
    if (pf >= 0)
        close(pf);
    if (own >= 0)
        close(own);
    struct params v = busy(2000, -1);
    v.t0 = now_ns();
    v.t1 = v.t0 + 800 * MS;
    struct params x = P0(R_XDIS);
    x.target = 0;
    x.t0 = now_ns();
    give(0, v);
    give(1, x);
    finish(1, now_ns() + 6000 * MS);
    finish(0, now_ns() + 12000 * MS);
    key("H5 %s", RES(1).txt);
}
static void sB(void) {
    if (!begin("B", 5))
        return;
    do_alone();
    static const double kus[] = {200, 10000, 2000, 100000};
    static const long sl[] = {-1, 1000, 300, 200, 100, 50};
    char b[80], id[8];
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 4; i++)
            for (int s = 0; s < 6; s++) {
                if (i >= 2 && (k == 1 ? s != 4 : (s != 0 && s != 2 && s != 4)))
                    continue;
                if (k == 1 && i < 2 && s == 1)
                    continue;
                sprintf(id, "B%d", k + 1);
                if (!begin(id, 4))
                    continue;
                struct run r = {.dur = reqdur(k), .warm = 50 * MS};
                add(&r, 0, reqp(k, -1, 0, 0));
                add(&r, 1, busy(kus[i], sl[s]));
                go(&r);
                sprintf(b, "k=%.0fus slice=%ld", kus[i], sl[s]);
                latline(id, b, &r, k);
                if (sl[s] == 100)
                    key("B%d %s beside %s: x%.2f x%.2f, neighbour %.4f, lost beyond use %.4f", k + 1, req_name[k], b,
                        RES(0).p50 / alone[k][0], RES(0).p99 / alone[k][2], r.share[1], 1 - r.share[0] - r.share[1]);
            }
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 2; i++) {
            if (!begin("B3", 4))
                return;
            struct run r = {.dur = reqdur(k), .warm = 50 * MS};
            add(&r, 0, reqp(k, 10000, 0, 0));
            add(&r, 1, busy(kus[i], 100));
            go(&r);
            sprintf(b, "k=%.0fus slice=100 own=10000", kus[i]);
            latline("B3", b, &r, k);
        }
}
static void sC(void) {
    if (!begin("C", 5))
        return;
    do_alone();
    char b[80];
    static const double kus[] = {200, 2000, 10000};
    static const long sl[] = {-1, 100, 300, 1000};
    for (int i = 0; i < 2; i++)
        for (int s = 0; s < 4; s++) {
            if (!begin("C1", 4))
                continue;
            struct run r = {.dur = 2500 * MS, .warm = 50 * MS};
            add(&r, 0, reqp(0, -1, 0, 0));
            for (int k = 1; k < 4; k++)
                add(&r, k, busy(kus[i], sl[s]));
            go(&r);
            sprintf(b, "3 busy k=%.0fus slice=%ld", kus[i], sl[s]);
            latline("C1", b, &r, 0);
        }
    static const double tn[] = {5, 10, 30};
    for (int i = 0; i < 2; i++)
        for (int t = 0; t < 3; t++) {
            if (!begin("C2", 4))
                continue;
            struct run r = {.dur = 2500 * MS, .warm = 50 * MS};
            add(&r, 0, reqp(0, -1, 0, 0));
            for (int k = 1; k < 4; k++) {
                struct params p = busy(kus[i], 100);
                p.turn_i = k - 1;
                p.depth = 2 * MS;
                add(&r, k, p);
            }
            sh->turn_k = 3;
            sh->turn_ns = (u64)(tn[t] * 1e6);
            go(&r);
            sh->turn_k = 0;
            sprintf(b, "turns %.0fms k=%.0fus slice=100", tn[t], kus[i]);
            latline("C2", b, &r, 0);
            key("C2 %s: x%.2f x%.2f sum %.4f", b, RES(0).p50 / alone[0][0], RES(0).p99 / alone[0][2],
                r.share[0] + r.share[1] + r.share[2] + r.share[3]);
        }
    int m = mech();
    for (int v = 0; v < 2; v++)
        for (int n = 1; n < 4; n += 2)
            for (int i = 0; i < 2; i++) { // long slices, and the busy ones go off (or are preempted once) when a request comes
                int mm = v ? m : 0;
                if (mm < 0)
                    continue;
                if (!begin("C4", 4))
                    continue;
                struct run r = {.dur = 2500 * MS, .warm = 50 * MS};
                struct params l = reqp(0, 10000, 0, 0);
                l.demand = 1;
                add(&r, 0, l);
                for (int k = 1; k <= n; k++) {
                    struct params p = busy(i ? 10000 : 200, 10000);
                    p.mech = mm;
                    p.demand = 1;
                    add(&r, k, p);
                }
                atomic_store(&sh->want, 0);
                go(&r);
                atomic_store(&sh->want, 0);
                sprintf(b, "on demand %s %d busy k=%.0fus slices=10000", MECH[mm], n, i ? 10000. : 200.);
                latline("C4", b, &r, 0);
                struct result *x = &RES(1);
                double s = 0;
                for (int k = 0; k < r.n; k++)
                    s += r.share[k];
                out("   off p50 %.0f p99 %.0f on %.0f %.0f us, %d times, errs %d(%d)\n", x->off50, x->off99, x->on50, x->on99, x->cycles,
                    x->n, x->st_off);
                key("C4 %s: x%.2f x%.2f sum %.4f", b, RES(0).p50 / alone[0][0], RES(0).p99 / alone[0][2], s);
            }
    if (m < 0)
        return;
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < 3; t++) {
            if (i == 0 && t == 1)
                continue;
            if (!begin("C3", 4))
                continue;
            double P = 3 * tn[t];
            struct run r = {.dur = 2500 * MS, .warm = 50 * MS};
            add(&r, 0, reqp(0, -1, 0, 0));
            for (int k = 1; k < 4; k++) {
                struct params p = busy(i == 2 ? 100000 : kus[i], 100);
                p.mech = m;
                p.period = (u64)(P * 1e6);
                p.on_a = (u64)((k - 1) * tn[t] * 1e6);
                p.on_b = p.on_a + (u64)(tn[t] * 1e6);
                add(&r, k, p);
            }
            go(&r);
            sprintf(b, "turns by %s %.0fms k=%.0fus slice=100", MECH[m], tn[t], i == 2 ? 100000 : kus[i]);
            latline("C3", b, &r, 0);
            key("C3 %s: x%.2f x%.2f sum %.4f", b, RES(0).p50 / alone[0][0], RES(0).p99 / alone[0][2],
                r.share[0] + r.share[1] + r.share[2] + r.share[3]);
        }
}
struct swres {
    int n;
    double gap50, run50[2], per_s;
};
static struct swres sample(int a, int b, u64 dur, char *txt, int tsz) { // who runs when, seen by progress
    struct swres s;
    memset(&s, 0, sizeof s);
    static double gap[20000], rl[2][20000];
    int ng = 0, nr[2] = {0, 0}, cur = -1, tl = 0;
    u64 t0 = now_ns(), st = t0, last = t0, pa = prog(a), pb = prog(b);
    if (txt)
        txt[0] = 0;
    for (;;) {
        u64 t = now_ns();
        if (t - t0 > dur)
            break;
        u64 x = prog(a), y = prog(b);
        int w = x != pa ? 0 : y != pb ? 1 : -1;
        pa = x;
        pb = y;
        if (w < 0) {
            relax();
            continue;
        }
        if (w != cur) {
            if (cur >= 0) {
                double l = (double)(last - st) / 1e6;
                if (nr[cur] < 20000)
                    rl[cur][nr[cur]++] = l;
                if (ng < 20000)
                    gap[ng++] = (double)(t - last) / 1000;
                if (txt && tl < tsz - 24)
                    tl += snprintf(txt + tl, tsz - tl, "%c%.1f@%.0f ", 'a' + cur, l, (double)(last - t0) / 1e6);
            }
            cur = w;
            st = t;
        }
        last = t;
    }
    s.n = ng;
    s.gap50 = pct(gap, ng, .5);
    s.run50[0] = pct(rl[0], nr[0], .5);
    s.run50[1] = pct(rl[1], nr[1], .5);
    s.per_s = ng / ((double)dur / 1e9);
    return s;
}
static void sD(void) {
    if (!begin("D", 5))
        return;
    do_alone();
    char b[80];
    static const struct {
        int m;
        u64 l;
        const char *n;
    } md[] = {{0, 0, "burst"},
              {1, 0, "graph"},
              {2, 0, "sync-each"},
              {3, 50 * US, "sync-each+linger50"},
              {3, 100 * US, "sync-each+linger100"},
              {4, 100 * US, "burst+linger100"},
              {4, 1000 * US, "burst+linger1000"}};
    for (unsigned i = 0; i < 7; i++) {
        if (!begin("D1", 3))
            continue;
        struct run r = {.dur = 1500 * MS};
        add(&r, 0, reqp(0, -1, md[i].m, md[i].l));
        if (i && i < 5) {
            go(&r);
            sprintf(b, "%s alone", md[i].n);
            latline("D1", b, &r, 0);
        }
    }
    for (int q = 0; q < 2; q++)
        for (unsigned i = 0; i < 7; i++) {
            if (q && i == 6)
                continue;
            if (!begin("D1", 4))
                continue;
            struct run r = {.dur = 2500 * MS, .warm = 50 * MS};
            add(&r, 0, reqp(0, -1, md[i].m, md[i].l));
            add(&r, 1, busy(q ? 10000 : 200, 100));
            go(&r);
            sprintf(b, "%s k=%dus slice=100", md[i].n, q ? 10000 : 200);
            latline("D1", b, &r, 0);
        }
    static const long sl[] = {100, 200, 500, 1000, 2000, 5000, 10000, 30000};
    for (int c = 0; c < 2; c++)
        for (int k = 0; k < 2; k++)
            for (int s = 0; s < 8; s++) {
                if (c && (k || (s != 2 && s != 4)))
                    continue;
                if (!begin("D2", 2))
                    continue;
                struct run r = {.dur = 1300 * MS, .warm = 100 * MS};
                struct params p = busy(k ? 2000 : 200, sl[s]);
                p.cilp = c ? 2 : 0;
                add(&r, 0, p);
                add(&r, 1, p);
                go(&r);
                struct result *x = &RES(0);
                double sum = r.share[0] + r.share[1];
                double sw = (x->save[0] + RES(1).save[0]) / (1.3 * scale);
                out("D2%s k=%dus slice=%ld: %.4f + %.4f sum %.4f saves/s %.0f (cilp %u cta %u wfi %u) -> %.0f us a switch st %d%s\n",
                    c ? " CTA-preemption" : "", k ? 2000 : 200, sl[s], r.share[0], r.share[1], sum, sw, x->save[4], x->save[3], x->save[2],
                    sw > 1 ? (1 - sum) * 1e6 / sw : 0, x->st_off, r.bad ? " BAD" : "");
            }
    if (begin("D3", 2)) {
        need(2);
        struct params p = busy(2000, 5000);
        p.t0 = now_ns();
        p.t1 = p.t0 + 1000 * MS;
        give(0, p);
        give(1, p);
        sleep_ns(200 * MS);
        char t[400];
        struct swres s = sample(0, 1, 600 * MS, t, sizeof t);
        finish(0, now_ns() + 8000 * MS);
        finish(1, now_ns() + 8000 * MS);
        key("D3 slices 5000: seen runs %.2f / %.2f ms, %.0f switches/s, gap %.0f us (a chunk is %.0f us)", s.run50[0], s.run50[1], s.per_s,
            s.gap50, sh->chunk_ns / 1000);
        out("   %s\n", t);
    }
}
static void sE(void) {
    static const long pr[][2] = {{30000, 70000}, {10000, 23000}, {3000, 7000}, {20000, 20000}};
    static const double kus[] = {20, 200, 2000, 10000, 100000};
    static double al[5];
    if (!begin("E", 5))
        return;
    for (int k = 0; k < 5; k++) {
        if (!begin("E0", 1))
            continue;
        struct run r = {.dur = 500 * MS, .warm = 100 * MS};
        add(&r, 0, busy(kus[k], -1));
        go(&r);
        al[k] = r.share[0];
        out("E0 alone k=%.0fus %.4f%s\n", kus[k], al[k], r.bad ? " BAD" : "");
    }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 5; k++) {
            if (!begin("E1", 3))
                continue;
            struct run r = {.dur = i ? 2600 * MS : 4300 * MS, .warm = 300 * MS};
            add(&r, 0, busy(kus[k], pr[i][0]));
            add(&r, 1, busy(kus[k], pr[i][1]));
            go(&r);
            double s = r.share[0] + r.share[1];
            out("E1 slices %ld/%ld k=%.0fus: %.4f + %.4f sum %.4f (of alone %.4f) part %.4f sd100ms %.3f%s\n", pr[i][0], pr[i][1], kus[k],
                r.share[0], r.share[1], s, al[k] > 0 ? s / al[k] : 0, r.share[0] / s, r.sd[0], r.bad ? " BAD" : "");
        }
}
static void sF(void) {
    if (!begin("F", 3))
        return;
    need(3);
    struct params p;
    if (begin("F1", 3)) {
        p = P0(R_CALLTIME);
        p.reps = 100;
        p.t0 = now_ns();
        p.kchunks = 1;
        give(0, p);
        finish(0, now_ns() + 8000 * MS);
        key("F1 nobody busy: %s", RES(0).txt);
        struct params v = busy(2000, -1);
        v.t0 = now_ns();
        v.t1 = v.t0 + 1200 * MS;
        give(1, v);
        give(2, v);
        sleep_ns(100 * MS);
        p.kchunks = 0;
        p.t0 = now_ns();
        give(0, p);
        finish(0, now_ns() + 8000 * MS);
        finish(1, now_ns() + 8000 * MS);
        finish(2, now_ns() + 8000 * MS);
        key("F1 two others busy: %s", RES(0).txt);
    }
    if (begin("F2", 3)) {
        for (int v = 0; v < 2; v++) { // how soon does a change take effect: 20 ms slices, at 100 ms one of them to 4 ms
            need(2);
            u64 t = now_ns();
            struct params a = busy(2000, 20000);
            a.t0 = t;
            a.t1 = t + 900 * MS;
            give(0, a);
            give(1, a);
            sleep_ns(300 * MS);
            char txt[700];
            struct group *g = compute(&sh->w[0], 0);
            int pf = -1, fd = -1;
            if (g) {
                pf = (int)syscall(434, sh->w[0].pid, 0);
                fd = pf < 0 ? -1 : (int)syscall(438, pf, g->fd, 0);
            }
            char t1[400];
            sample(0, 1, 100 * MS, t1, sizeof t1);
            u64 us = v ? 20000 : 4000;
            u64 c0 = now_ns();
            int r = -1;
            if (fd >= 0) {
                r = control(fd, g->client, g->handle, 0xa06c0103, &us, 8);
            }
            u64 c1 = now_ns();
            sample(0, 1, 150 * MS, txt, sizeof txt);
            finish(0, now_ns() + 8000 * MS);
            finish(1, now_ns() + 8000 * MS);
            if (fd >= 0)
                close(fd);
            if (pf >= 0)
                close(pf);
            out("F2 %s (from outside st=%d, %.0fus)\n   before: %s\n   after:  %s\n", v ? "a set to the same 20 ms" : "a 20 -> 4 ms", r,
                (c1 - c0) / 1e3, t1, txt);
        }
        need(2);
        struct params z = P0(R_BUSY);
        z.slice = 4000;
        z.kchunks = ch(2000);
        z.t0 = now_ns();
        z.t1 = z.t0 + 20 * MS;
        give(0, z);
        finish(0, now_ns() + 5000 * MS); // set, then idle, then busy without another set
        sleep_ns(300 * MS);
        struct params y = busy(2000, 20000);
        y.t0 = now_ns();
        y.t1 = y.t0 + 500 * MS;
        z.slice = 0;
        z.t0 = y.t0;
        z.t1 = y.t1;
        give(0, z);
        give(1, y);
        sleep_ns(100 * MS);
        char tx[400];
        struct swres s = sample(0, 1, 300 * MS, tx, sizeof tx);
        finish(0, now_ns() + 8000 * MS);
        finish(1, now_ns() + 8000 * MS);
        key("F2 set to 4 ms, idle .3 s, then beside one of 20 ms: runs %.2f and %.2f ms", s.run50[0], s.run50[1]);
    }
    if (begin("F3", 3)) {
        need(1);
        p = P0(R_GROUPS);
        give(0, p);
        finish(0, now_ns() + 12000 * MS);
        out("F3 groups%s\n", RES(0).txt);
        reap(0);
        spawn(0);
        wait_ready(0, 20000);
    }
}
static void sG(void) {
    if (!begin("G", 22))
        return;
    if (need(16)) {
        out("G not enough workers\n");
        return;
    }
    static const long sl[] = {-1, 10000};
    static const double kus[] = {2000, 200};
    for (int k = 0; k < 2; k++)
        for (int s = 0; s < 2; s++) {
            if (!begin("G", 5))
                return;
            struct run r = {.dur = (s ? 4300 : 2300) * MS, .warm = 300 * MS};
            for (int i = 0; i < 16; i++) {
                struct params p = busy(kus[k], sl[s]);
                add(&r, i, p);
            }
            go(&r);
            double a = 0, b = 0, mn = 9, mx = 0;
            for (int i = 0; i < 16; i++) {
                a += r.share[i];
                b += r.share[i] * r.share[i];
                if (r.share[i] < mn)
                    mn = r.share[i];
                if (r.share[i] > mx)
                    mx = r.share[i];
            }
            key("G 16 busy k=%.0fus slice=%ld: sum %.4f min %.4f max %.4f Jain %.5f%s", kus[k], sl[s], a, mn, mx, a * a / (16 * b),
                r.bad ? " BAD" : "");
        }
}
static void sX(void) { // what a tenant may do to the others by its own channel's properties
    if (!begin("X", 8))
        return;
    do_alone();
    char b[80];
    for (int v = 0; v < 4; v++) {
        if (!begin("X", 4))
            return;
        struct run r = {.dur = 2000 * MS, .warm = 200 * MS};
        struct params p = busy(v == 1 ? 100000 : 2000, v == 0 ? 500000 : 2000);
        if (v == 1)
            p.cilp = 1;
        if (v == 2)
            p.prop = 1;
        if (v == 3)
            p.prop = 2;
        add(&r, 0, reqp(0, -1, 0, 0));
        add(&r, 1, p);
        go(&r);
        sprintf(b, "beside %s (st %d)",
                v == 0   ? "a slice of 500 ms"
                : v == 1 ? "wait-for-idle preemption, 100 ms kernels"
                : v == 2 ? "engine timeslice disabled"
                         : "PBDMA timeslice disabled",
                RES(1).st_off);
        latline("X ", b, &r, 0);
        key("X %s: p50 %.2f p99 %.2f ms", b, RES(0).p50, RES(0).p99);
        if (v) {
            reap(1);
            spawn(1);
            wait_ready(1, 20000);
        }
    }
}
static void sP(void) { // needs CAP_SYS_NICE; not part of the default run
    if (!begin("P", 8))
        return;
    do_alone();
    char b[100];
    for (int v = 0; v < 4; v++) {
        struct run r = {.dur = 2500 * MS, .warm = 50 * MS};
        struct params l = reqp(0, -1, 0, 0);
        if (v == 1)
            l.iset = 1;
        if (v >= 2)
            l.realtime = 1;
        if (v == 3)
            l.prio_restart = 1;
        add(&r, 0, l);
        for (int k = 1; k < 4; k++)
            add(&r, k, busy(2000, 1000));
        go(&r);
        sprintf(b, "3 busy of 2ms slice 1000, latency one: %s (st %d/%d)",
                v == 0   ? "nothing"
                : v == 1 ? "interleave high"
                : v == 2 ? "realtime"
                         : "realtime + restart runlist",
                RES(0).st_off, RES(0).st_on);
        latline("P ", b, &r, 0);
        reap(0);
        spawn(0);
        wait_ready(0, 20000);
    }
}
static void handover(double us, int m, double early, long slice, double period) {
    if (!begin("T1", 2))
        return;
    struct params p = busy(us, slice), q;
    p.mech = m;
    p.period = (u64)(period * 1e6);
    q = p;
    p.on_a = 0;
    p.on_b = (u64)(period * 3e5 + early * 1e3);
    q.on_a = (u64)(period * 3e5);
    q.on_b = p.period + (u64)(early * 1e3);
    struct run r = {.dur = 1500 * MS, .warm = 200 * MS};
    add(&r, 0, p);
    add(&r, 1, q);
    go(&r);
    struct result *x = &RES(0);
    key("T1 %s early=%.0fus slice=%ld P=%.0fms k=%.0fus: %.4f + %.4f sum %.4f | off %.0f/%.0f on %.0f/%.0f errs %d%s", MECH[m], early, slice,
        period, us, r.share[0], r.share[1], r.share[0] + r.share[1], x->off50, x->off99, x->on50, x->on99, x->n, r.bad ? " BAD" : "");
}
static void sT(void) { // turns by switching channels off: what a handover costs when the next one comes on before the last goes off
    if (!begin("T", 5))
        return;
    static const double kus[] = {200, 100000};
    for (int k = 0; k < 2; k++) {
        struct run r = {.dur = 500 * MS, .warm = 100 * MS};
        add(&r, 0, busy(kus[k], -1));
        go(&r);
        key("T0 alone k=%.0fus %.4f", kus[k], r.share[0]);
        for (int m = 3; m <= 5; m += 2)
            for (int e = 0; e <= 1200; e += 400)
                for (int s = 0; s < 2; s++)
                    handover(kus[k], m, e, s ? 500 : 2000, 100);
        handover(kus[k], 3, 800, 2000, 33);
        handover(kus[k], 3, 800, 10000, 100);
        handover(kus[k], 5, 800, 100, 100);
        handover(kus[k], 3, 800, 100, 100);
    }
    static const double sus[] = {200, 2000};
    for (int k = 0; k < 2; k++)
        for (int t = 0; t < 2; t++) {
            if (!begin("T2", 2))
                return;
            sh->turn_k = 2;
            sh->turn_ns = (t ? 50 : 15) * MS;
            struct run r = {.dur = 1500 * MS, .warm = 200 * MS};
            for (int i = 0; i < 2; i++) {
                struct params p = busy(sus[k], 2000);
                p.turn_i = i;
                add(&r, i, p);
            }
            go(&r);
            sh->turn_k = 0;
            key("T2 turns of %d ms in software k=%.0fus: %.4f + %.4f sum %.4f", t ? 50 : 15, sus[k], r.share[0], r.share[1],
                r.share[0] + r.share[1]);
        }
    struct group *g = compute(&sh->w[0], 0);
    struct params c = P0(R_CHANNELS);
    c.t0 = now_ns();
    give(0, c);
    finish(0, now_ns() + 8000 * MS);
    key("T3 channels %d: %s", g ? g->nch : 0, RES(0).txt);
}
static void die(int s) {
    (void)s;
    const char m[] = "\nDEADLINE or signal: stopped\n";
    if (write(1, m, sizeof m - 1)) {
    }
    for (int i = 0; i < MAXW; i++)
        if (sh->w[i].pid > 0)
            kill(sh->w[i].pid, SIGKILL);
    if (write(1, keys, kl)) {
    }
    _exit(3);
}
int main(int ac, char **av) {
    int c;
    double lim = 530;
    while ((c = getopt(ac, av, "t:m:s:l")) != -1) {
        if (c == 't')
            lim = atof(optarg);
        else if (c == 'm')
            forced = atoi(optarg);
        else if (c == 's')
            scale = atof(optarg);
        else if (c == 'l') {
            for (int i = 0; i < NMECH; i++)
                printf("mechanism %d %s\n", i, MECH[i]);
            return 0;
        } else
            return 2;
    }
    sel = av + optind;
    nsel = ac - optind;
    T0 = now_ns();
    deadline = T0 + (u64)(lim * 1e9);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *o = getenv("OUT");
    if (o) {
        char f[512];
        snprintf(f, sizeof f, "%s/probe.txt", o);
        fo = fopen(f, "w");
    }
    sh = mmap(NULL, (sizeof *sh + 4095) & ~4095ul, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    page = mmap(NULL, MAXW * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sh == MAP_FAILED || (void *)page == MAP_FAILED)
        return 1;
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    prctl(PR_SET_TIMERSLACK, 1000ul);
    signal(SIGALRM, die);
    signal(SIGTERM, die);
    signal(SIGINT, die);
    alarm((unsigned)lim + 25); // finishing what runs; then the hard end
    if (getenv("PROBE_STUB")) {
        void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        stub_ioctl = h ? (int (*)(int, unsigned long, void *))dlsym(h, "stub_ioctl") : NULL;
    }
    if (need(1)) {
        out("no GPU worker\n");
        return 1;
    }
    u64 ti = now_ns();
    if (need(4))
        out("not all workers came up\n");
    struct params p = P0(R_CAL);
    p.slice = 0;
    give(0, p);
    if (finish(0, now_ns() + 20000 * MS))
        return 1;
    out("probe: %s, %d SMs, CUDA %d, grid %u x 1024, %u iters = chunk %.3f us, start %.1f s (3 more workers %.1f s), registered shared "
        "memory %s, uid %d\n",
        sh->name, sh->sms, sh->drv, sh->grid, sh->iters, sh->chunk_ns / 1000, (now_ns() - T0) / 1e9, (now_ns() - ti) / 1e9,
        sh->host_reg ? "NO" : "yes", getuid());
    out("  groups seen in worker 0: %d, compute %s, default slice %s\n", sh->w[0].ng,
        compute(&sh->w[0], 0) ? "yes" : "NONE: interception failed", "");
    has_gpu_groups = compute(&sh->w[0], 0) != NULL;
    struct {
        const char *n;
        void (*f)(void);
    } S[] = {{"A", sA}, {"H", sH}, {"B", sB}, {"C", sC}, {"E", sE}, {"D", sD}, {"F", sF}, {"G", sG}, {"X", sX}, {"T", sT}, {"P", sP}};
    for (unsigned i = 0; i < sizeof S / sizeof *S; i++) {
        u64 t = now_ns();
        S[i].f();
        if (want(S[i].n))
            out("-- %s took %.1f s, at %.1f s\n", S[i].n, (now_ns() - t) / 1e9, (now_ns() - T0) / 1e9);
    }
    double old = sh->chunk_ns;
    if (sh->w[0].pid > 0) {
        u32 it = sh->iters;
        p.t0 = 0;
        (void)it;
        struct params z = P0(R_CAL);
        z.slice = 0;
        give(0, z);
        if (!finish(0, now_ns() + 20000 * MS))
            out("calibration at the end: chunk %.3f us with %u iters (start %.3f with %u)\n", sh->chunk_ns / 1000, sh->iters, old / 1000,
                it);
    }
    out("==== KEYS\n%s==== end %.1f s\n", keys, (now_ns() - T0) / 1e9);
    if (fo)
        fclose(fo);
    for (int i = 0; i < MAXW; i++)
        if (sh->w[i].pid > 0)
            kill(sh->w[i].pid, SIGKILL);
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    return 0;
}
