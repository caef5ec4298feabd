/* A CUDA device without hardware, for the real CUDA provider of ONNX Runtime: it places nodes, chooses
 * kernels, and captures graphs, but computes nothing. Device memory is memory of the process, copies
 * are memcpy, kernels do nothing. Each kernel, matrix product, copy and synchronisation appends a line
 * to the file that PAPER_GPU_LOG names, with tabs between its fields.
 *
 * The device: compute capability 9.0, 132 multiprocessors, 80 GiB. `device.py` compiles this file once
 * for each library, with all other functions that the provider imports; those return 0 (success).
 *
 * CUDA's functions: https://docs.nvidia.com/cuda/cuda-runtime-api/
 */
#define __CUDA_RUNTIME_API_H__ 1 /* types without declarations: the functions below are simplified */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "driver_types.h"

enum { MAJOR = 9, MINOR = 0, MULTIPROCESSORS = 132, WARP = 32, CAPTURE_FORBIDS = 900 };
static const size_t MEMORY = 80ull << 30;
static char handles[4096]; /* addresses in it stand for objects */
static int capturing;

static void record(const char *kind, const char *what, size_t bytes) {
    static FILE *log;
    const char *path = getenv("PAPER_GPU_LOG");
    if (!log && path) log = fopen(path, "a");
    if (log) fprintf(log, "%s\t%s\t%zu\n", kind, what, bytes), fflush(log);
}

/* The device */

int cudaGetDeviceCount(int *count) { return *count = 1, 0; }
int cudaGetDevice(int *device) { return *device = 0, 0; }
int cudaDriverGetVersion(int *version) { return *version = 13000, 0; }
int cudaRuntimeGetVersion(int *version) { return *version = 13000, 0; }
const char *cudaGetErrorName(int error) { return error == CAPTURE_FORBIDS ? "cudaErrorStreamCaptureUnsupported" : "cudaErrorPaper"; }
const char *cudaGetErrorString(int error) { return cudaGetErrorName(error); }
int cuInit(unsigned flags) { return 0; }

int cudaGetDeviceProperties(struct cudaDeviceProp *device, int number) {
    memset(device, 0, sizeof *device);
    strcpy(device->name, "Paper GPU");
    device->major = MAJOR, device->minor = MINOR, device->warpSize = WARP;
    device->totalGlobalMem = MEMORY, device->multiProcessorCount = MULTIPROCESSORS;
    device->sharedMemPerBlock = 49152, device->sharedMemPerBlockOptin = 232448, device->sharedMemPerMultiprocessor = 233472;
    device->regsPerBlock = device->regsPerMultiprocessor = 65536;
    device->maxThreadsPerBlock = 1024, device->maxThreadsPerMultiProcessor = 2048;
    device->maxGridSize[0] = 2147483647, device->maxGridSize[1] = device->maxGridSize[2] = 65535;
    device->maxThreadsDim[0] = device->maxThreadsDim[1] = 1024, device->maxThreadsDim[2] = 64;
    device->memoryPoolsSupported = device->unifiedAddressing = device->cooperativeLaunch = 1;
    return 0;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: return *value = MAJOR, 0;
    case cudaDevAttrComputeCapabilityMinor: return *value = MINOR, 0;
    case cudaDevAttrMultiProcessorCount: return *value = MULTIPROCESSORS, 0;
    case cudaDevAttrWarpSize: return *value = WARP, 0;
    default: return *value = 1, 0;
    }
}

/* Memory. A copy to or from memory that was not page-locked is pageable, and not asynchronous. */

static struct { char *start, *end; } locked[65536];

static int allocate(void **address, size_t bytes) { return !(*address = calloc(1, bytes ? bytes : 1)); }
static int allocate_locked(void **address, size_t bytes) {
    if (allocate(address, bytes)) return cudaErrorMemoryAllocation;
    for (size_t i = 0; i < sizeof locked / sizeof *locked; i++)
        if (!locked[i].start) return locked[i].start = *address, locked[i].end = (char *)*address + bytes, 0;
    return cudaErrorMemoryAllocation;
}
static int is_locked(const void *address) {
    for (size_t i = 0; i < sizeof locked / sizeof *locked; i++)
        if (locked[i].start && (char *)address >= locked[i].start && (char *)address < locked[i].end) return 1;
    return 0;
}
int cudaMalloc(void **address, size_t bytes) { return capturing ? CAPTURE_FORBIDS : (record("malloc", "device", bytes), allocate(address, bytes)); }
int cudaMallocFromPoolAsync(void **address, size_t bytes, void *pool, void *stream) { return allocate(address, bytes); }
int cudaMallocHost(void **address, size_t bytes) { return allocate_locked(address, bytes); }
int cudaHostAlloc(void **address, size_t bytes, unsigned flags) { return allocate_locked(address, bytes); }
int cudaFree(void *address) { return free(address), 0; }
int cudaFreeAsync(void *address, void *stream) { return free(address), 0; }
int cudaFreeHost(void *address) {
    for (size_t i = 0; address && i < sizeof locked / sizeof *locked; i++)
        if (locked[i].start == address) locked[i].start = locked[i].end = NULL;
    return free(address), 0;
}
int cudaMemGetInfo(size_t *left, size_t *total) { return *left = MEMORY - (1ull << 30), *total = MEMORY, 0; }
int cudaMemset(void *to, int value, size_t bytes) { return memset(to, value, bytes), 0; }
int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) { return record("kernel", "memset", bytes), memset(to, value, bytes), 0; }
static int copy(void *to, const void *from, size_t bytes, int kind) {
    const void *host = kind == cudaMemcpyHostToDevice ? from : kind == cudaMemcpyDeviceToHost ? to : NULL;
    const char *way = kind == cudaMemcpyHostToDevice ? "upload" : kind == cudaMemcpyDeviceToHost ? "download" : "device";
    record(!host ? "copy" : is_locked(host) ? "pinned" : "pageable", way, bytes);
    return memmove(to, from, bytes), 0;
}
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { return capturing ? CAPTURE_FORBIDS : (record("sync", "memcpy", 0), copy(to, from, bytes, kind)); }
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) { return copy(to, from, bytes, kind); }
int cudaMemPoolCreate(void **pool, const void *properties) { return *pool = handles + 128, 0; }
int cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) { return memset(attributes, 0, sizeof *attributes), 0; }

/* Streams and graphs. While a graph is captured, nothing may wait for the device. */

int cudaStreamCreate(void **stream) { return *stream = handles, 0; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return *stream = handles, 0; }
int cudaEventCreate(void **event) { return *event = handles + 64, 0; }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return *event = handles + 64, 0; }
static int wait_for(const char *what) { return capturing ? CAPTURE_FORBIDS : (record("sync", what, 0), 0); }
int cudaStreamSynchronize(void *stream) { return wait_for("stream"); }
int cudaEventSynchronize(void *event) { return wait_for("event"); }
int cudaDeviceSynchronize(void) { return wait_for("device"); }
int cudaStreamBeginCapture(void *stream, int mode) { return capturing = 1, record("capture", "begin", 0), 0; }
int cudaStreamEndCapture(void *stream, void **graph) { return capturing = 0, *graph = handles + 192, record("capture", "end", 0), 0; }
int cudaStreamIsCapturing(void *stream, int *status) { return *status = capturing, 0; }
int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) { return *executable = handles + 256, 0; }
int cudaGraphLaunch(void *executable, void *stream) { return record("graph", "launch", 0), 0; }

/* Kernels, by the name that the compiler registered for their host functions */

struct Shape { unsigned x, y, z; };
static struct { const void *host; const char *name; } *kernels;
static size_t count, capacity;

static const char *name_of(const void *host) {
    for (size_t i = 0; i < count; i++)
        if (kernels[i].host == host) return kernels[i].name;
    return "unknown";
}
void **__cudaRegisterFatBinary(void *binary) { return (void **)handles; }
void __cudaRegisterFunction(void **binary, const char *host, char *device, const char *name, int threads, void *a, void *b, void *c, void *d, int *e) {
    if (count == capacity) kernels = realloc(kernels, (capacity = capacity ? 2 * capacity : 4096) * sizeof *kernels);
    kernels[count].host = host, kernels[count++].name = name;
}
int __cudaPopCallConfiguration(void *grid, void *block, size_t *shared, void *stream) { return *shared = 0, 0; }
int __cudaGetKernel(void **kernel, const void *host) { return *kernel = (void *)host, 0; }
int __cudaLaunchKernel(void *kernel) { return record("kernel", name_of(kernel), 0), 0; }
int cudaLaunchKernel(const void *host, struct Shape grid, struct Shape block, void **arguments, size_t shared, void *stream) { return record("kernel", name_of(host), 0), 0; }
int cudaLaunchKernelExC(const void *config, const void *host, void **arguments) { return record("kernel", name_of(host), 0), 0; }
int cudaLaunchCooperativeKernel(const void *host) { return record("kernel", name_of(host), 0), 0; }
int cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host) {
    memset(attributes, 0, sizeof *attributes);
    return attributes->maxThreadsPerBlock = 1024, attributes->binaryVersion = attributes->ptxVersion = 10 * MAJOR + MINOR, 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads, size_t shared, unsigned flags) { return *blocks = 2, 0; }

/* cuBLAS, cuDNN and cuRAND */

size_t cudnnGetVersion(void) { return 91900; }
size_t cudnnGetCudartVersion(void) { return 13000; }
int cudnnCreate(void **handle) { return *handle = handles + 896, 0; }
const char *cudnnGetErrorString(int status) { return "cudnn"; }

int cublasCreate_v2(void **handle) { return *handle = handles + 512, 0; }
int cublasLtCreate(void **handle) { return *handle = handles + 576, 0; }
int cublasLtMatmulDescCreate(void **handle, int compute, int scale) { return *handle = handles + 640, 0; }
int cublasLtMatrixLayoutCreate(void **handle, int type, unsigned long rows, unsigned long columns, long stride) { return *handle = handles + 704, 0; }
int cublasLtMatmulPreferenceCreate(void **handle) { return *handle = handles + 768, 0; }
int curandCreateGenerator(void **generator, int kind) { return *generator = handles + 832, 0; }
int cublasGetMathMode(void *handle, int *mode) { return *mode = 0, 0; }
const char *cublasGetStatusName(int status) { return "cublas"; }
const char *cublasGetStatusString(int status) { return "cublas"; }
int cublasGemmEx(void) { return record("product", "GemmEx", 0), 0; }
int cublasGemmBatchedEx(void) { return record("product", "GemmBatchedEx", 0), 0; }
int cublasGemmStridedBatchedEx(void) { return record("product", "GemmStridedBatchedEx", 0), 0; }
int cublasSgemm_v2(void) { return record("product", "Sgemm", 0), 0; }
int cublasSgemmBatched(void) { return record("product", "SgemmBatched", 0), 0; }
int cublasSgemmStridedBatched(void) { return record("product", "SgemmStridedBatched", 0), 0; }
int cublasLtMatmul(void) { return record("product", "LtMatmul", 0), 0; }
