/* A libnvidia-ml.so.1 that answers from a key=value file, for tests.
 *
 * FAKE_NVML_CONFIG names the file; it is read again at every call, so a test may replace it while a child runs.
 * Every call, hand-written or generated, can be told to hang (hang=NAME), to crash (crash=NAME) or to fail
 * (fail.NAME=CODE, card.I.fail.NAME=CODE). __init__.py lists the keys and generates the rest of the calls, which
 * answer NOT_SUPPORTED. CALL(name), or TEXT(name) where it returns a text, marks what is written here. A handle is 1 + the card's index.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG "FAKE_NVML_CONFIG"
#include "key_value.h"

#define CALL(name) int name
#define TEXT(name) const char *name

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, FUNCTION_NOT_FOUND = 13 };

typedef unsigned int uint;
typedef unsigned long long ull;
typedef uintptr_t card;

typedef struct {
    char legacy[16];
    uint domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_info;
typedef struct { ull total, free, used; } memory_v1;
typedef struct { uint version; ull total, reserved, free, used; } memory_v2;
typedef struct { ull total, free, used; } bar1_memory;
typedef struct { uint pid; ull used; uint gpu_instance, compute_instance; } process_info;
typedef struct { uint environment, feature, devtools; } confidential_state;
typedef struct { uint gpu, memory; } utilization;

static int initialized;

static int is(const char *key, const char *wanted) {
    char found[SIZE];
    return value(key, found) && strcmp(found, wanted) == 0;
}

static ull number(const char *key, ull otherwise) {
    char found[SIZE];
    return value(key, found) ? strtoull(found, NULL, 0) : otherwise;
}

static const char *of(card handle, const char *key) {
    static _Thread_local char full[SIZE];
    snprintf(full, sizeof full, "card.%d.%s", (int)handle - 1, key);
    return full;
}

static const char *between(const char *kind, card a, card b) {
    static _Thread_local char full[SIZE];
    int low = (int)(a < b ? a : b) - 1, high = (int)(a < b ? b : a) - 1;
    snprintf(full, sizeof full, "%s.%d.%d", kind, low, high);
    return full;
}

int fake_enter(const char *name, int otherwise) {
    char key[SIZE];
    while (is("hang", name))
        pause();
    if (is("crash", name)) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    snprintf(key, sizeof key, "fail.%s", name);
    return (int)number(key, otherwise);
}

static int enter(const char *name, card handle) {
    char key[SIZE];
    int code = fake_enter(name, OK);
    if (!initialized)
        return UNINITIALIZED;
    if (code != OK || handle == 0)
        return code;
    snprintf(key, sizeof key, "fail.%s", name);
    return (int)number(of(handle, key), OK);
}

#define ENTER(handle)                                                                                                  \
    do {                                                                                                               \
        int code = enter(__func__, handle);                                                                            \
        if (code != OK)                                                                                                \
            return code;                                                                                               \
    } while (0)

#define NUMBER(handle, key, out)                                                                                       \
    do {                                                                                                               \
        char text[SIZE];                                                                                               \
        ENTER(handle);                                                                                                 \
        if (!value(of(handle, key), text))                                                                             \
            return NOT_SUPPORTED;                                                                                      \
        *(out) = strtoull(text, NULL, 0);                                                                              \
        return OK;                                                                                                     \
    } while (0)

static int text_of(const char *key, char *out, uint size) {
    char found[SIZE];
    if (!value(key, found))
        return NOT_SUPPORTED;
    if (strlen(found) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(out, found);
    return OK;
}

static void fill_pci(pci_info *out, const char *bus_id) {
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", bus_id);
    sscanf(bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff,
             out->device & 0xff);
}

/* Each look adds a byte to LOAD.seen: fake_cuda.c waits for some. */
static int under_load(void) {
    char path[SIZE], seen[SIZE + 8];
    FILE *file;
    if (!value("load", path) || access(path, F_OK) != 0)
        return 0;
    snprintf(seen, sizeof seen, "%s.seen", path);
    file = fopen(seen, "a");
    if (file) {
        fputc('.', file);
        fclose(file);
    }
    return 1;
}

CALL(nvmlInitWithFlags)(uint flags) {
    char noise[SIZE];
    int code = fake_enter(__func__, (int)number("init", OK));
    (void)flags;
    if (value("noise", noise) && *noise) {
        puts(noise);
        fflush(stdout);
    }
    initialized = code == OK;
    return code;
}
TEXT(nvmlErrorString)(int code) {
    (void)code;
    return "An error that pynvml has no words for";
}
CALL(nvmlShutdown)(void) {
    ENTER(0);
    initialized = 0;
    return OK;
}
CALL(nvmlSystemGetNVMLVersion)(char *out, uint size) {
    int code = fake_enter(__func__, OK);
    return code == OK ? text_of("nvml_version", out, size) : code;
}
CALL(nvmlSystemGetDriverVersion)(char *out, uint size) {
    ENTER(0);
    return text_of("driver", out, size);
}
CALL(nvmlSystemGetCudaDriverVersion_v2)(int *out) {
    ENTER(0);
    *out = (int)number("cuda", 0);
    return OK;
}
CALL(nvmlSystemGetConfComputeState)(confidential_state *out) {
    ENTER(0);
    memset(out, 0, sizeof *out);
    out->feature = (uint)number("confidential", 0);
    return OK;
}
CALL(nvmlDeviceGetCount_v2)(uint *out) {
    ENTER(0);
    *out = (uint)number("count", 0);
    return OK;
}
CALL(nvmlDeviceGetHandleByIndex_v2)(uint index, card *out) {
    ENTER(0);
    if (index >= number("count", 0))
        return INVALID;
    *out = index + 1;
    return (int)number(of(*out, "lost"), OK);
}
CALL(nvmlDeviceGetName)(card handle, char *out, uint size) {
    ENTER(handle);
    return text_of(of(handle, "name"), out, size);
}
CALL(nvmlDeviceGetUUID)(card handle, char *out, uint size) {
    ENTER(handle);
    return text_of(of(handle, "uuid"), out, size);
}
CALL(nvmlDeviceGetPciInfo_v3)(card handle, pci_info *out) {
    char bus_id[SIZE];
    ENTER(handle);
    if (!value(of(handle, "bus_id"), bus_id))
        return NOT_SUPPORTED;
    fill_pci(out, bus_id);
    return OK;
}
CALL(nvmlDeviceGetMemoryInfo)(card handle, memory_v1 *out) {
    ENTER(handle);
    out->total = number(of(handle, "total"), 0);
    out->used = number(of(handle, "used"), 0) + number(of(handle, "reserved"), 0);
    out->free = out->total - out->used;
    return OK;
}
CALL(nvmlDeviceGetMemoryInfo_v2)(card handle, memory_v2 *out) {
    ENTER(handle);
    if (number("memory_v2", 1) == 0)
        return FUNCTION_NOT_FOUND;
    if (out->version != (sizeof *out | 2u << 24))
        return 25;
    out->total = number(of(handle, "total"), 0);
    out->used = number(of(handle, "used"), 0);
    out->reserved = number(of(handle, "reserved"), 0);
    out->free = out->total - out->used - out->reserved;
    return OK;
}
CALL(nvmlDeviceGetBAR1MemoryInfo)(card handle, bar1_memory *out) {
    ENTER(handle);
    out->total = out->free = number(of(handle, "bar1"), 0);
    out->used = 0;
    return OK;
}
CALL(nvmlDeviceGetCudaComputeCapability)(card handle, int *major, int *minor) {
    char text[SIZE];
    ENTER(handle);
    if (!value(of(handle, "capability"), text) || sscanf(text, "%d.%d", major, minor) != 2)
        return NOT_SUPPORTED;
    return OK;
}
CALL(nvmlDeviceGetCurrPcieLinkGeneration)(card handle, uint *out) {
    NUMBER(handle, under_load() ? "gen_load" : "gen_idle", out);
}
CALL(nvmlDeviceGetMaxPcieLinkGeneration)(card handle, uint *out) { NUMBER(handle, "gen_max", out); }
CALL(nvmlDeviceGetCurrPcieLinkWidth)(card handle, uint *out) { NUMBER(handle, "width", out); }
CALL(nvmlDeviceGetMaxPcieLinkWidth)(card handle, uint *out) { NUMBER(handle, "width_max", out); }
CALL(nvmlDeviceGetPcieReplayCounter)(card handle, uint *out) { NUMBER(handle, "replays", out); }
CALL(nvmlDeviceGetPersistenceMode)(card handle, uint *out) { NUMBER(handle, "persistence", out); }
CALL(nvmlDeviceGetEnforcedPowerLimit)(card handle, uint *out) { NUMBER(handle, "power_mw", out); }
CALL(nvmlDeviceGetPowerManagementDefaultLimit)(card handle, uint *out) { NUMBER(handle, "power_default_mw", out); }
CALL(nvmlDeviceGetPowerUsage)(card handle, uint *out) { NUMBER(handle, "power_now_mw", out); }
CALL(nvmlDeviceGetTemperature)(card handle, uint sensor, uint *out) {
    (void)sensor;
    NUMBER(handle, "temperature", out);
}
CALL(nvmlDeviceGetUtilizationRates)(card handle, utilization *out) {
    out->memory = 0;
    NUMBER(handle, "busy", &out->gpu);
}
CALL(nvmlDeviceGetPcieThroughput)(card handle, uint counter, uint *out) {
    NUMBER(handle, counter == 0 ? "pcie_tx_kb" : "pcie_rx_kb", out);
}
CALL(nvmlDeviceGetCurrentClocksEventReasons)(card handle, ull *out) { NUMBER(handle, "throttle", out); }

static int two_numbers(const char *key, uint *first, uint *second) {
    char text[SIZE];
    return value(key, text) && sscanf(text, "%u,%u", first, second) == 2 ? OK : NOT_SUPPORTED;
}
CALL(nvmlDeviceGetMigMode)(card handle, uint *now, uint *pending) {
    ENTER(handle);
    return two_numbers(of(handle, "mig"), now, pending);
}
CALL(nvmlDeviceGetEccMode)(card handle, uint *now, uint *pending) {
    ENTER(handle);
    return two_numbers(of(handle, "ecc"), now, pending);
}
CALL(nvmlDeviceGetRemappedRows)(card handle, uint *corrected, uint *uncorrected, uint *pending, uint *failed) {
    ENTER(handle);
    *corrected = *uncorrected = 0;
    return two_numbers(of(handle, "remapped"), pending, failed);
}
CALL(nvmlDeviceGetCpuAffinity)(card handle, uint words, unsigned long *out) {
    char text[SIZE], *at = text;
    ENTER(handle);
    memset(out, 0, words * sizeof *out);
    if (!value(of(handle, "cpus"), text))
        return NOT_SUPPORTED;
    while (*at) {
        unsigned long first = strtoul(at, &at, 10), last = first;
        if (*at == '-')
            last = strtoul(at + 1, &at, 10);
        for (; first <= last && first < words * 64ul; first++)
            out[first / 64] |= 1ul << first % 64;
        if (*at)
            at++;
    }
    return OK;
}
CALL(nvmlDeviceGetTopologyCommonAncestor)(card a, card b, uint *out) {
    char text[SIZE];
    ENTER(a);
    if (!value(between("ancestor", a, b), text))
        return NOT_SUPPORTED;
    *out = (uint)strtoul(text, NULL, 0);
    return OK;
}
CALL(nvmlDeviceGetP2PStatus)(card a, card b, uint index, uint *out) {
    ENTER(a);
    (void)index;
    *out = (uint)number(between("p2p", a, b), 5);
    return OK;
}

/* nvlink: how many links a card has. Their far end is nvlink_to (a bus id), a switch when that is not there. */
static int has_link(card handle, uint link) { return link < number(of(handle, "nvlink"), 0); }

CALL(nvmlDeviceGetNvLinkState)(card handle, uint link, uint *active) {
    ENTER(handle);
    if (!has_link(handle, link))
        return NOT_SUPPORTED;
    *active = 1;
    return OK;
}
CALL(nvmlDeviceGetNvLinkRemotePciInfo_v2)(card handle, uint link, pci_info *out) {
    char bus_id[SIZE];
    ENTER(handle);
    if (!has_link(handle, link))
        return NOT_SUPPORTED;
    fill_pci(out, value(of(handle, "nvlink_to"), bus_id) ? bus_id : "00000000:07:00.0");
    return OK;
}
CALL(nvmlDeviceGetNvLinkRemoteDeviceType)(card handle, uint link, uint *out) {
    char bus_id[SIZE];
    ENTER(handle);
    if (!has_link(handle, link))
        return NOT_SUPPORTED;
    *out = value(of(handle, "nvlink_to"), bus_id) ? 0 : 2;
    return OK;
}

/* compute, graphics: "pid:bytes pid:bytes ...". */
static int processes(const char *key, uint *count, process_info *out) {
    char text[SIZE], *at = text;
    uint room = *count;
    *count = 0;
    if (!value(key, text))
        return OK;
    while (*at) {
        process_info one = {0, 0, ~0u, ~0u};
        one.pid = (uint)strtoul(at, &at, 10);
        one.used = strtoull(at + 1, &at, 10);
        if (*count < room)
            out[*count] = one;
        ++*count;
        while (*at == ' ')
            at++;
    }
    return *count <= room ? OK : INSUFFICIENT_SIZE;
}
CALL(nvmlDeviceGetComputeRunningProcesses_v3)(card handle, uint *count, process_info *out) {
    ENTER(handle);
    return processes(of(handle, "compute"), count, out);
}
CALL(nvmlDeviceGetGraphicsRunningProcesses_v3)(card handle, uint *count, process_info *out) {
    ENTER(handle);
    return processes(of(handle, "graphics"), count, out);
}
