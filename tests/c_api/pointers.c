// Pointers that somebody else allocated, by a driver that knows all kinds: which GPU they lead to, and which
// routes each is said to take. Linked to tests/fake/driver.c.
#include <stdio.h>
#include <string.h>

#include "sidecore.h"

void *fake_allocate(int kind, size_t bytes, size_t shown);
int fake_copied_in(void);
void fake_reset(void);

enum { PINNED = 1, DEVICE, MANAGED, VIRTUAL, OTHER_GPU, OWN_CONTEXT };

static int wrong;
#define HOLDS(condition) \
    do \
        if (!(condition)) printf("line %d: %s; %s\n", __LINE__, #condition, sidecore_last_error()), ++wrong; \
    while (0)

static uint64_t of(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

static void adopts(sidecore_gpu *gpu, int memory_kind, uint32_t kind, int cpu_reaches, const char *routes)
{
    sidecore_memory *memory = NULL;
    sidecore_memory_view view;
    char bytes[6] = "";
    char *const own = fake_allocate(memory_kind, 8192, 8192);
    HOLDS(sidecore_memory_adopt(gpu, of(own) + 100, 5000, &memory) == SIDECORE_OK);
    HOLDS(sidecore_memory_where(memory, &view) == SIDECORE_OK);
    HOLDS(view.kind == kind && view.bytes == 5000 && view.device_address == of(own) + 100);
    HOLDS((view.host != NULL) == cpu_reaches);
    HOLDS(strstr(sidecore_memory_routes(memory), routes) != NULL);
    HOLDS(sidecore_memory_store(memory, 7, "bytes", 6) == SIDECORE_OK && strcmp(own + 107, "bytes") == 0);
    HOLDS(sidecore_memory_load(memory, 7, bytes, 6) == SIDECORE_OK && strcmp(bytes, "bytes") == 0);
    sidecore_bus *bus = NULL;
    HOLDS(sidecore_bus_create(&bus) == SIDECORE_OK);
    const int mapped = sidecore_bus_map(bus, memory, 0, 4096, 1 << 20, NULL);
    HOLDS(mapped == (cpu_reaches ? SIDECORE_OK : SIDECORE_UNSUPPORTED));
    if (!cpu_reaches) HOLDS(strstr(sidecore_last_error(), "a drive cannot reach") != NULL);
    sidecore_bus_destroy(bus);
    sidecore_memory_free(memory);
}

int main(void)
{
    sidecore_gpu *gpu = NULL, *other = NULL, *mine = NULL;
    sidecore_memory *memory = NULL;
    HOLDS(sidecore_gpu_open("0", &gpu) == SIDECORE_OK && strcmp(sidecore_gpu_name(gpu), "Fake 0") == 0);
    HOLDS(!sidecore_gpu_is_simulated(gpu) && sidecore_gpu_no_window(gpu)[0] != 0);
    adopts(gpu, DEVICE, SIDECORE_MEMORY_DEVICE, 0, "not window");
    adopts(gpu, VIRTUAL, SIDECORE_MEMORY_VIRTUAL, 0, "not window");
    adopts(gpu, MANAGED, SIDECORE_MEMORY_MANAGED, 0, "not window");
    adopts(gpu, PINNED, SIDECORE_MEMORY_HOST, 1, "drives reach it");

    // What is not there, or not all of it, or elsewhere.
    static char plain[64];
    HOLDS(sidecore_memory_adopt(gpu, of(plain), 64, &memory) == SIDECORE_MISUSE);
    HOLDS(strstr(sidecore_last_error(), "cudaHostRegister") != NULL);
    HOLDS(sidecore_memory_adopt(gpu, of(fake_allocate(DEVICE, 8192, 4096)), 8192, &memory) == SIDECORE_MISUSE);
    HOLDS(strstr(sidecore_last_error(), "ends after 4096") != NULL);
    HOLDS(sidecore_memory_adopt(gpu, of(fake_allocate(OTHER_GPU, 4096, 4096)), 64, &memory) == SIDECORE_MISUSE);
    HOLDS(strstr(sidecore_last_error(), "of GPU 1, this is GPU 0") != NULL);
    HOLDS(sidecore_memory_allocate(gpu, SIDECORE_MEMORY_WINDOW, 64, &memory) == SIDECORE_UNSUPPORTED);

    // GPU and context by pointer.
    HOLDS(sidecore_gpu_open_of(of(plain), &other) == SIDECORE_MISUSE);
    HOLDS(sidecore_gpu_open_of(of(fake_allocate(OTHER_GPU, 4096, 4096)), &other) == SIDECORE_OK);
    HOLDS(strcmp(sidecore_gpu_name(other), "Fake 1") == 0);
    char *const own = fake_allocate(OWN_CONTEXT, 4096, 4096);
    HOLDS(sidecore_gpu_open_of(of(own), &mine) == SIDECORE_OK);
    HOLDS(sidecore_memory_adopt(mine, of(own), 64, &memory) == SIDECORE_OK);
    HOLDS(sidecore_memory_store(memory, 0, "abc", 4) == SIDECORE_OK && fake_copied_in() == 2);
    sidecore_memory_free(memory);
    HOLDS(sidecore_memory_adopt(gpu, of(fake_allocate(DEVICE, 4096, 4096)), 64, &memory) == SIDECORE_OK);
    HOLDS(sidecore_memory_store(memory, 0, "abc", 4) == SIDECORE_OK && fake_copied_in() == 1);
    sidecore_memory_free(memory);
    sidecore_gpu_close(gpu);
    sidecore_gpu_close(other);

    // The program resets its context under an engine: nothing of it is touched any more.
    sidecore_memory *device = NULL;
    sidecore_engine *engine = NULL;
    sidecore_ring *ring = NULL;
    HOLDS(sidecore_memory_adopt(mine, of(own), 64, &memory) == SIDECORE_OK);
    HOLDS(sidecore_memory_allocate(mine, SIDECORE_MEMORY_DEVICE, 64, &device) == SIDECORE_OK);
    HOLDS(sidecore_engine_start(mine, NULL, &engine) == SIDECORE_OK);
    HOLDS(sidecore_ring_create(engine, NULL, &ring) == SIDECORE_OK);
    fake_reset();
    HOLDS(sidecore_memory_load(memory, 0, plain, 4) != SIDECORE_OK);
    HOLDS(strstr(sidecore_last_error(), "has reset it") != NULL);
    sidecore_ring_close(ring);
    sidecore_engine_stop(engine);
    sidecore_memory_free(memory);
    sidecore_memory_free(device);
    sidecore_gpu_close(mine);
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
