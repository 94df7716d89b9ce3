// A CUDA program that destroys its context while sidecore still uses it: nothing crashes or hangs; calls
// that need the GPU fail with a reason, and everything can be closed. Compiled by `nvcc -x cu`.
#include <sidecore.h>
#include <stdio.h>
#include <string.h>

#include <cuda_runtime_api.h>

static int wrong;

static void expect(int line, int code, int good)
{
    if ((code == SIDECORE_OK) == (good != 0)) return;
    printf("line %d: code %d, %s\n", line, code, sidecore_last_error());
    ++wrong;
}
#define WELL(call) expect(__LINE__, (call), 1)
#define FAILS(call) expect(__LINE__, (call), 0)

int main()
{
    void *own = nullptr;
    if (cudaMalloc(&own, 1 << 20) != cudaSuccess) return printf("no device memory\n"), 1;
    sidecore_gpu *gpu = nullptr;
    sidecore_engine *engine = nullptr;
    sidecore_memory *memory = nullptr, *device = nullptr, *more = nullptr;
    sidecore_storage *storage = nullptr;
    sidecore_ring *ring = nullptr;
    WELL(sidecore_gpu_open_of((uint64_t)(uintptr_t)own, &gpu));
    WELL(sidecore_memory_adopt(gpu, (uint64_t)(uintptr_t)own, 1 << 20, &memory));
    WELL(sidecore_memory_allocate(gpu, SIDECORE_MEMORY_DEVICE, 1 << 20, &device));
    WELL(sidecore_engine_start(gpu, nullptr, &engine));
    WELL(sidecore_storage_memory(1 << 20, nullptr, &storage));
    WELL(sidecore_ring_create(engine, nullptr, &ring));
    char view[256], bytes[64];
    const size_t buffer = sidecore_view_bytes("buffer"), source = sidecore_view_bytes("source");
    WELL(sidecore_buffer_register(engine, memory, SIDECORE_READ, view, buffer, nullptr));
    WELL(sidecore_source_register(engine, storage, SIDECORE_READ, view, source, nullptr));
    WELL(sidecore_memory_load(memory, 0, bytes, sizeof bytes));

    if (cudaDeviceReset() != cudaSuccess) return printf("no reset\n"), 1;

    FAILS(sidecore_memory_load(memory, 0, bytes, sizeof bytes));
    FAILS(sidecore_memory_allocate(gpu, SIDECORE_MEMORY_HOST, 4096, &more));
    sidecore_ring_close(ring);
    sidecore_engine_stop(engine);
    sidecore_memory_free(memory);
    sidecore_memory_free(device);
    sidecore_storage_close(storage);
    sidecore_gpu_close(gpu);

    // A new start works.
    if (cudaMalloc(&own, 1 << 20) != cudaSuccess) return printf("no device memory after the reset\n"), 1;
    WELL(sidecore_gpu_open_of((uint64_t)(uintptr_t)own, &gpu));
    WELL(sidecore_memory_allocate(gpu, SIDECORE_MEMORY_DEVICE, 4096, &device));
    WELL(sidecore_memory_store(device, 0, "after the reset", 16));
    WELL(sidecore_memory_load(device, 0, bytes, 16));
    if (strcmp(bytes, "after the reset") != 0) ++wrong;
    sidecore_memory_free(device);
    sidecore_gpu_close(gpu);
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
