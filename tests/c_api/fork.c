// A child that was forked has its parent's handles, and none of its threads: what it calls with them is refused at
// once, and what it destroys stays its parent's.
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sidecore.h"

static sidecore_controller *controller;
static sidecore_driver *driver;
static sidecore_engine *engine;
static sidecore_lanes *lanes;
static sidecore_memory *memory;
static sidecore_ring *ring;

static int refused(int code) { return code == SIDECORE_MISUSE && strstr(sidecore_last_error(), "forked") != NULL; }

static int child(void)
{
    sidecore_queue_pair *pair;
    sidecore_queue_pair_view view;
    uint64_t count;
    int right = refused(sidecore_controller_stop(controller));
    right += refused(sidecore_queue_pair_create(driver, memory, 0, memory, 4096, 16, 1000, &pair, &view));
    right += refused(sidecore_ring_quiesce(ring, 1000));
    right += refused(sidecore_lanes_count(lanes, "strays", &count));
    sidecore_lanes_stop(lanes);
    sidecore_ring_close(ring);
    sidecore_engine_stop(engine);
    sidecore_driver_close(driver);
    sidecore_controller_destroy(controller);
    right += strstr(sidecore_last_error(), "controller belongs to process") != NULL;
    // Its own are its own.
    sidecore_gpu *gpu;
    right += sidecore_gpu_open("simulated", &gpu) == SIDECORE_OK;
    right += sidecore_memory_allocate(gpu, SIDECORE_MEMORY_HOST, 4096, &memory) == SIDECORE_OK;
    sidecore_memory_free(memory);
    return right == 7 ? 0 : 1;
}

int main(void)
{
    sidecore_gpu *gpu;
    sidecore_bus *bus;
    sidecore_storage *storage;
    int code = sidecore_gpu_open("simulated", &gpu);
    code |= sidecore_bus_create(&bus);
    code |= sidecore_storage_memory(1 << 20, NULL, &storage);
    code |= sidecore_controller_create(gpu, bus, storage, NULL, &controller);
    code |= sidecore_controller_start(controller);
    code |= sidecore_driver_open(controller, 0, 5000, &driver);
    code |= sidecore_engine_start(gpu, NULL, &engine);
    code |= sidecore_ring_create(engine, NULL, &ring);
    code |= sidecore_lanes_start(gpu, driver, NULL, 5000, &lanes);
    code |= sidecore_memory_allocate(gpu, SIDECORE_MEMORY_HOST, 65536, &memory);
    if (code != SIDECORE_OK) return 2;
    fflush(stdout);
    const pid_t process = fork();
    if (process == 0) {
        alarm(20);
        _exit(child());
    }
    int status = 1;
    waitpid(process, &status, 0);
    // What the child did, the parent does not notice.
    sidecore_queue_pair *pair;
    sidecore_queue_pair_view view;
    code |= sidecore_queue_pair_create(driver, memory, 0, memory, 4096, 16, 5000, &pair, &view);
    code |= sidecore_queue_pair_delete(pair, 5000);
    code |= sidecore_ring_quiesce(ring, 5000);
    printf("child %d, parent %d\n", status, code);
    return 0;
}
