/* A libcuda.so.1 that answers from a key=value file, for tests.
 *
 * FAKE_CUDA_CONFIG names the file. Time is each card's own: a copy takes bytes / bandwidth of it, none of ours.
 * A copy is `together` when another card has copies between the same two waits. A card's second host buffer lies on
 * the far node. __init__.py lists the keys. A handle is 1 + the card's index; an event is the place it points to.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG "FAKE_CUDA_CONFIG"
#include "key_value.h"

#define CARDS 16
#define LOOKS 8
#define LOOK_MS 2000
#define ENTER(card)                                                                                                    \
    do {                                                                                                               \
        int code = enter(__func__, card);                                                                              \
        if (code)                                                                                                      \
            return code;                                                                                               \
    } while (0)

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_HANDLE = 400 };
enum { HOST_TO_DEVICE, DEVICE_TO_HOST };

typedef struct {
    int card;
    double at_ms;
} event;

static int current = -1, initialized;
static double clock_ms[CARDS];
static double queued_bytes[CARDS][2];
static int queued_any[CARDS];
static void *host_buffers[CARDS][2];
static int far_queued[CARDS];
static event *marks[4 * CARDS];
static int marked;
static double mark_bytes[4 * CARDS][2];

static double of(const char *kind, int card, double otherwise) {
    char key[SIZE], found[SIZE];
    snprintf(key, sizeof key, "%s.%d", kind, card);
    return value(key, found) ? strtod(found, NULL) : otherwise;
}

static int is(const char *key, const char *name, int card) {
    char found[SIZE], exact[SIZE];
    snprintf(exact, sizeof exact, "%s.%d", name, card);
    return value(key, found) && (strcmp(found, name) == 0 || strcmp(found, exact) == 0);
}

static int enter(const char *name, int card) {
    char key[SIZE];
    while (is("hang", name, card))
        pause();
    if (is("crash", name, card))
        raise(SIGSEGV);
    if (is("garbage", name, card)) {
        printf("\x1b[31m{\"event\": 5}\nnot JSON \xff\n[1, 2]\n");
        fflush(stdout);
        _exit(0);
    }
    snprintf(key, sizeof key, "fail.%s", name);
    return (int)of(key, card, 0);
}

int cuGetErrorName(int code, const char **name) {
    *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
          : code == 214 ? "CUDA_ERROR_ECC_UNCORRECTABLE" : NULL;
    return *name ? OK : INVALID_VALUE;
}

int cuInit(unsigned flags) {
    ENTER(0);
    if (getenv("CUDA_VISIBLE_DEVICES"))
        return NO_DEVICE;
    initialized = flags == 0;
    return initialized ? OK : INVALID_VALUE;
}

int cuDeviceGetByPCIBusId(int *device, const char *bus_id) {
    char key[SIZE], found[SIZE];
    ENTER(0);
    if (!initialized)
        return INVALID_VALUE;
    for (int card = 0; card < CARDS; card++) {
        snprintf(key, sizeof key, "bus.%d", card);
        if (value(key, found) && strcmp(found, bus_id) == 0) {
            *device = card;
            return OK;
        }
    }
    return INVALID_DEVICE;
}

int cuDevicePrimaryCtxRetain(uintptr_t *context, int device) {
    ENTER(device);
    *context = 1 + (uintptr_t)device;
    return OK;
}

int cuCtxSetCurrent(uintptr_t context) {
    if (context < 1 || context > CARDS)
        return INVALID_HANDLE;
    current = (int)context - 1;
    ENTER(current);
    return OK;
}

int cuStreamCreate(uintptr_t *stream, unsigned flags) {
    ENTER(current);
    *stream = 1 + (uintptr_t)current;
    return flags == 1 ? OK : INVALID_VALUE;
}

int cuEventCreate(event **made, unsigned flags) {
    ENTER(current);
    *made = calloc(1, sizeof **made);
    (*made)->card = current;
    return flags == 1 ? OK : INVALID_VALUE;
}

int cuMemAlloc_v2(uint64_t *device, size_t bytes) {
    ENTER(current);
    *device = 0x700000000000 + bytes;
    return OK;
}

int cuMemHostAlloc(void **host, size_t bytes, unsigned flags) {
    ENTER(current);
    if (flags != 1)
        return INVALID_VALUE;
    *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    host_buffers[current][host_buffers[current][0] != NULL] = *host;
    return OK;
}

int cuMemFreeHost(void *host) {
    ENTER(current);
    for (int place = 0; place < 2; place++)
        if (host_buffers[current][place] == host) {
            host_buffers[current][place] = NULL;
            return OK;
        }
    return INVALID_VALUE;
}

/* Real copies take seconds, these none: so the first waits until fake_nvml.c was asked LOOKS times about a link under
 * load, for LOOK_MS at most. */
static void load(const char *path) {
    char seen[SIZE + 8];
    struct stat found;
    FILE *file = fopen(path, "wx");
    if (!file)
        return;
    fclose(file);
    snprintf(seen, sizeof seen, "%s.seen", path);
    for (int waited = 0; waited < LOOK_MS && (stat(seen, &found) != 0 || found.st_size < LOOKS); waited++)
        usleep(1000);
}

static int copy(void *host, size_t bytes, uintptr_t stream, int direction) {
    char path[SIZE];
    if (stream != 1 + (uintptr_t)current || !host)
        return INVALID_HANDLE;
    if (value("load", path))
        load(path);
    queued_bytes[current][direction] += (double)bytes;
    queued_any[current] = 1;
    far_queued[current] = host == host_buffers[current][1];
    return OK;
}

int cuMemcpyHtoDAsync_v2(uint64_t device, void *host, size_t bytes, uintptr_t stream) {
    ENTER(current);
    return device ? copy(host, bytes, stream, HOST_TO_DEVICE) : INVALID_VALUE;
}

int cuMemcpyDtoHAsync_v2(void *host, uint64_t device, size_t bytes, uintptr_t stream) {
    ENTER(current);
    return device ? copy(host, bytes, stream, DEVICE_TO_HOST) : INVALID_VALUE;
}

/* What was queued before an event is known here; whether other cards were busy too, only at the wait. */
int cuEventRecord(event *here, uintptr_t stream) {
    ENTER(current);
    if (here->card != current || stream != 1 + (uintptr_t)current || marked == 4 * CARDS)
        return INVALID_HANDLE;
    marks[marked] = here;
    memcpy(mark_bytes[marked++], queued_bytes[current], sizeof queued_bytes[current]);
    return OK;
}

static double took_ms(int card, const double *bytes, int together) {
    double alone = of("h2d", card, 50.0);
    double gb_s = together ? of("together", card, alone) : far_queued[card] ? of("far", card, alone) : alone;
    return bytes[HOST_TO_DEVICE] / gb_s / 1e6 + bytes[DEVICE_TO_HOST] / of("d2h", card, 50.0) / 1e6;
}

int cuEventSynchronize(event *last) {
    int busy = 0;
    ENTER(last->card);
    for (int card = 0; card < CARDS; card++)
        busy += queued_any[card];
    for (int mark = 0; mark < marked; mark++)
        marks[mark]->at_ms = clock_ms[marks[mark]->card] + took_ms(marks[mark]->card, mark_bytes[mark], busy > 1);
    if (!busy)
        return OK;
    for (int card = 0; card < CARDS; card++) {
        clock_ms[card] += took_ms(card, queued_bytes[card], busy > 1);
        queued_bytes[card][0] = queued_bytes[card][1] = queued_any[card] = 0;
    }
    marked = 0;
    return OK;
}

int cuEventElapsedTime(float *milliseconds, event *first, event *last) {
    ENTER(first->card);
    *milliseconds = (float)(last->at_ms - first->at_ms);
    return OK;
}
