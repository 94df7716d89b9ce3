// What a C program may do wrong: each call says so by its code and a text, and nothing crashes.
#include <stdio.h>
#include <string.h>

#include "sidecore.h"

static int wrong;

static void expect(int line, int code, int wanted, const char *words)
{
    const char *text = sidecore_last_error();
    if (code == wanted && strstr(text, words) != NULL) return;
    printf("line %d: code %d, not %d; \"%s\" says nothing of \"%s\"\n", line, code, wanted, text, words);
    ++wrong;
}
#define EXPECT(call, code, words) expect(__LINE__, (call), (code), (words))
#define WELL(call) expect(__LINE__, (call), SIDECORE_OK, "")

int main(void)
{
    sidecore_gpu *gpu = NULL;
    EXPECT(sidecore_gpu_open("simulated", NULL), SIDECORE_MISUSE, "gpu is null");
    EXPECT(sidecore_gpu_open("the best", &gpu), SIDECORE_MISUSE, "'the best'");
    if (gpu != NULL) ++wrong;
    WELL(sidecore_gpu_open("simulated", &gpu));
    if (!sidecore_gpu_is_simulated(gpu) || strncmp(sidecore_gpu_name(gpu), "simulated", 9) != 0) ++wrong;
    if (sidecore_gpu_name(NULL)[0] != 0) ++wrong;

    sidecore_memory *memory = NULL, *own = NULL, *absent_memory;
    EXPECT(sidecore_memory_allocate(NULL, SIDECORE_MEMORY_HOST, 1, &memory), SIDECORE_MISUSE, "gpu is null");
    EXPECT(sidecore_memory_allocate(gpu, 9, 1, &memory), SIDECORE_MISUSE, "memory kind 9");
    EXPECT(sidecore_memory_allocate(gpu, SIDECORE_MEMORY_HOST, 0, &memory), SIDECORE_MISUSE, "0 bytes");
    WELL(sidecore_memory_allocate(gpu, SIDECORE_MEMORY_HOST, 16384, &memory));
    static char mine[8192];
    EXPECT(sidecore_memory_adopt(gpu, 0, 1, &own), SIDECORE_MISUSE, "null pointer");
    WELL(sidecore_memory_adopt(gpu, (uint64_t)(uintptr_t)mine, sizeof mine, &own));
    sidecore_memory_view view;
    WELL(sidecore_memory_where(own, &view));
    if (view.host != mine || view.bytes != sizeof mine || strstr(sidecore_memory_routes(own), "pull") == NULL) ++wrong;
    char text[8] = "";
    EXPECT(sidecore_memory_store(own, 8190, "abcdefg", 8), SIDECORE_MISUSE, "do not lie inside");
    WELL(sidecore_memory_store(own, 100, "abcdefg", 8));
    WELL(sidecore_memory_load(own, 100, text, 8));
    EXPECT(sidecore_memory_store(own, 0, text, SIZE_MAX), SIDECORE_MISUSE, "bytes long");
    EXPECT(sidecore_memory_load(own, 0, text, SIZE_MAX), SIDECORE_MISUSE, "bytes long");
    WELL(sidecore_memory_store(own, 0, NULL, 0));
    EXPECT(sidecore_memory_adopt(gpu, UINT64_MAX - 4095, 8192, &absent_memory), SIDECORE_MISUSE, "end before");
    EXPECT(sidecore_memory_adopt(gpu, 4096, UINT64_MAX - 8192, &absent_memory), SIDECORE_MISUSE, "end before");
    if (strcmp(text, "abcdefg") != 0 || strcmp(mine + 100, "abcdefg") != 0) ++wrong;

    sidecore_bus *bus;
    uint64_t address = 0;
    WELL(sidecore_bus_create(&bus));
    EXPECT(sidecore_bus_map(bus, memory, 4096, 16384, 1 << 20, NULL), SIDECORE_MISUSE, "do not lie inside");
    WELL(sidecore_bus_map(bus, memory, 0, 8192, 1 << 20, NULL));
    EXPECT(sidecore_bus_map(bus, own, 0, 4096, (1 << 20) + 4096, NULL), SIDECORE_MISUSE, "overlap");
    WELL(sidecore_bus_map(bus, own, 0, 4096, SIDECORE_BUS_SAME, &address));
    if (address != view.device_address) ++wrong;
    WELL(sidecore_bus_unmap(bus, address));
    EXPECT(sidecore_bus_unmap(bus, address), SIDECORE_MISUSE, "nothing is mapped");
    EXPECT(sidecore_bus_map(bus, own, 0, 0, 1 << 24, NULL), SIDECORE_MISUSE, "none");
    EXPECT(sidecore_bus_map(bus, own, 0, 4096, UINT64_MAX - 8, NULL), SIDECORE_MISUSE, "addresses");

    sidecore_storage *storage, *absent;
    EXPECT(sidecore_storage_file("/nonexistent/file", &absent), SIDECORE_STORAGE, "/nonexistent/file");
    // Names of files are bytes.
    EXPECT(sidecore_storage_file("\xff", &absent), SIDECORE_STORAGE, "No such file");
    FILE *named = fopen("\xfe", "w");
    if (named == NULL || fwrite(mine, 512, 1, named) != 1 || fclose(named) != 0) ++wrong;
    WELL(sidecore_storage_file("\xfe", &absent));
    sidecore_storage_close(absent);
    WELL(sidecore_storage_memory(1 << 20, NULL, &storage));
    EXPECT(sidecore_storage_faults(storage, "gremlins", &absent), SIDECORE_MISUSE, "gremlins");

    sidecore_controller *controller;
    sidecore_controller_options options = {0};
    EXPECT(sidecore_controller_create(gpu, bus, storage, &options, &controller), SIDECORE_MISUSE, "struct_bytes is 0");
    options.struct_bytes = sizeof options;
    options.block_bytes = 100;
    EXPECT(sidecore_controller_create(gpu, bus, storage, &options, &controller), SIDECORE_MISUSE, "block_bytes");
    options.block_bytes = 0;
    options.timing = "iops=many";
    EXPECT(sidecore_controller_create(gpu, bus, storage, &options, &controller), SIDECORE_MISUSE, "many");
    WELL(sidecore_controller_create(gpu, bus, storage, NULL, &controller));
    sidecore_driver *driver, *second;
    EXPECT(sidecore_driver_open(controller, 0, 1000, &driver), SIDECORE_MISUSE, "does not run");
    EXPECT(sidecore_controller_stop(controller), SIDECORE_MISUSE, "not running");
    WELL(sidecore_controller_start(controller));
    EXPECT(sidecore_controller_start(controller), SIDECORE_MISUSE, "running already");
    WELL(sidecore_controller_stop(controller));
    WELL(sidecore_controller_start(controller));
    EXPECT(sidecore_driver_open(controller, 65536, 10000, &driver), SIDECORE_MISUSE, "65536 queue pairs");
    WELL(sidecore_driver_open(controller, 0, 10000, &driver));
    EXPECT(sidecore_driver_open(controller, 0, 10000, &second), SIDECORE_MISUSE, "a driver already");
    sidecore_queue_pair *pair;
    sidecore_queue_pair_view where;
    EXPECT(sidecore_queue_pair_create(driver, memory, 0, memory, 8192, 512, 1000, &pair, &where), SIDECORE_MISUSE, "inside");
    EXPECT(sidecore_queue_pair_create(driver, memory, 64, memory, 8192, 16, 1000, &pair, &where), SIDECORE_MISUSE, "page aligned");
    WELL(sidecore_queue_pair_create(driver, memory, 0, memory, 8192, 16, 10000, &pair, &where));
    WELL(sidecore_queue_pair_delete(pair, 10000));
    EXPECT(sidecore_queue_pair_delete(NULL, 1), SIDECORE_MISUSE, "pair is null");

    sidecore_lanes_options polled = {0};
    sidecore_lanes *lanes;
    polled.struct_bytes = sizeof polled;
    polled.polling = 7;
    EXPECT(sidecore_lanes_start(gpu, driver, &polled, 1000, &lanes), SIDECORE_MISUSE, "polling 7");
    polled.polling = SIDECORE_POLLING_CPU;
    polled.depth = 131072;
    EXPECT(sidecore_lanes_start(gpu, driver, &polled, 1000, &lanes), SIDECORE_MISUSE, "65536");
    polled.depth = 0;
    polled.completion = SIDECORE_QUEUE_HOST;
    WELL(sidecore_lanes_start(gpu, driver, &polled, 10000, &lanes));
    uint64_t count = 99;
    EXPECT(sidecore_lanes_count(lanes, "apples", &count), SIDECORE_MISUSE, "completions_polled");
    WELL(sidecore_lanes_count(lanes, "completions_polled", &count));
    if (count != 0) ++wrong;
    sidecore_lanes_stop(lanes);

    sidecore_engine *engine;
    sidecore_ring *ring;
    sidecore_ring_options shape = {0};
    char bytes[256];
    uint32_t id;
    sidecore_engine_options many = {0};
    many.struct_bytes = sizeof many;
    many.side_cores = UINT32_MAX;
    EXPECT(sidecore_engine_start(gpu, &many, &engine), SIDECORE_MISUSE, "side cores");
    WELL(sidecore_engine_start(gpu, NULL, &engine));
    shape.struct_bytes = sizeof shape;
    shape.depth = 3;
    EXPECT(sidecore_ring_create(engine, &shape, &ring), SIDECORE_MISUSE, "depth 3");
    shape.depth = 1u << 31;
    EXPECT(sidecore_ring_create(engine, &shape, &ring), SIDECORE_MISUSE, "depth 2147483648");
    shape.depth = 0;
    shape.read_route = 9;
    EXPECT(sidecore_ring_create(engine, &shape, &ring), SIDECORE_MISUSE, "route 9");
    WELL(sidecore_ring_create(engine, NULL, &ring));
    EXPECT(sidecore_ring_view(ring, bytes, 7), SIDECORE_MISUSE, "not 7");
    const size_t length = sidecore_view_bytes("source");
    if (length == 0 || length > sizeof bytes || sidecore_view_bytes("pear") != 0) ++wrong;
    EXPECT(sidecore_source_register(engine, storage, 8, bytes, length, &id), SIDECORE_MISUSE, "rights 8");
    EXPECT(sidecore_source_register(engine, storage, 1, bytes, 8, &id), SIDECORE_MISUSE, "not 8");
    WELL(sidecore_source_register(engine, storage, SIDECORE_READ, bytes, length, &id));
    WELL(sidecore_source_deregister(engine, id, 5000));
    EXPECT(sidecore_source_deregister(engine, id, 5000), SIDECORE_MISUSE, "not registered");
    // Whoever did not wait long enough waits again.
    WELL(sidecore_source_register(engine, storage, SIDECORE_READ, bytes, length, &id));
    if (sidecore_source_deregister(engine, id, 0) != SIDECORE_OK) WELL(sidecore_source_deregister(engine, id, 5000));
    EXPECT(sidecore_source_deregister(engine, id, 5000), SIDECORE_MISUSE, "not registered");
    EXPECT(sidecore_simulated_launch(gpu, NULL, 1, 1, bytes, 1, 1), SIDECORE_MISUSE, "kernel is null");
    WELL(sidecore_ring_quiesce(ring, 5000));

    // A handle of another kind, in the place of one.
    uint64_t number = 0;
    EXPECT(sidecore_ring_count((sidecore_ring *)engine, "requests", &number), SIDECORE_MISUSE, "not a handle of this kind");
    EXPECT(sidecore_controller_stop((sidecore_controller *)gpu), SIDECORE_MISUSE, "controller at 0x");
    sidecore_bus_destroy((sidecore_bus *)memory);
    if (strstr(sidecore_last_error(), "bus at 0x") == NULL) ++wrong;
    sidecore_memory_view still;
    WELL(sidecore_memory_where(memory, &still));

    // Any order will do: each keeps what it was made of.
    sidecore_gpu_close(gpu);
    sidecore_bus_destroy(bus);
    sidecore_storage_close(storage);
    sidecore_memory_free(memory);
    sidecore_memory_free(own);
    sidecore_engine_stop(engine);
    EXPECT(sidecore_ring_restart(ring), SIDECORE_MISUSE, "has ended");
    sidecore_ring_close(ring);
    WELL(sidecore_controller_stop(controller));
    sidecore_controller_destroy(controller);
    sidecore_driver_close(driver);
    sidecore_ring_close(NULL);
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
