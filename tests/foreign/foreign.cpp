// A program that knows NVMe and brings its own device code, on sidecore's controller through sidecore's C
// interface: it builds commands itself in its own queues, rings doorbells, polls phases, and looks at every
// byte. No device header of sidecore is included.
//
//   foreign own|lent IO_BYTES DEPTH host|window host|window [FAULTS]
//
// `own`: it starts the drive itself, from the specification. `lent`: sidecore's driver starts the drive and
// makes the queue pair at memory of this program's choice. Then the memory of the submission and of the
// completion queue. With FAULTS it counts how commands ended, and expects no bytes.
//
// Compiled by a C++ compiler, host threads stand for lanes; by `nvcc -x cu`, lanes are a kernel's.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "drive.h"
#include "lanes.h"
#include "sidecore.h"

#ifdef __CUDACC__
enum { LANES = 2048, ROUNDS = 24, BLOCK = 128 };
static const char *const KIND = "lanes of a CUDA kernel";
static const u64 BYTES = 64ull << 20;
#else
enum { LANES = 6, ROUNDS = 1500 };
static const char *const KIND = "host threads in the place of lanes";
static const u64 BYTES = 8ull << 20;
#endif

// Bus addresses of our own choice: nothing of them is an address of this process.
static const u64 BUS_ADMIN = 0x100000000ull, BUS_SQ = 0x200000000ull, BUS_CQ = 0x300000000ull;
static const u64 BUS_BUFFER = 0x400000000ull, BUS_LISTS = 0x500000000ull;

static void check(int code, const char *call)
{
    if (code != SIDECORE_OK) fail(call, sidecore_last_error());
}
#define CHECK(call) check(call, #call)

struct Memory {
    sidecore_memory *handle;
    sidecore_memory_view view;
};

static Memory allocate(sidecore_gpu *gpu, sidecore_bus *bus, uint32_t kind, u64 bytes, u64 at)
{
    Memory m;
    CHECK(sidecore_memory_allocate(gpu, kind, bytes, &m.handle));
    CHECK(sidecore_memory_where(m.handle, &m.view));
    uint64_t address = 0;
    if (at != 0) CHECK(sidecore_bus_map(bus, m.handle, 0, bytes, at, &address));
    if (address != at) fail("sidecore_bus_map", "another address than asked for");
    return m;
}

#ifdef __CUDACC__

static void cuda(cudaError_t error, const char *call)
{
    if (error != cudaSuccess) fail(call, cudaGetErrorString(error));
}
#define CUDA(call) cuda(call, #call)

__global__ void kernel(const Job job)
{
    const u32 lane = blockIdx.x * blockDim.x + threadIdx.x;
    if (lane < job.lanes) work(job, lane);
}

// Words of the program's own, zeroed: by CUDA itself.
static u32 *words(u32 count)
{
    u32 *p;
    CUDA(cudaMalloc(&p, count * sizeof(u32)));
    CUDA(cudaMemset(p, 0, count * sizeof(u32)));
    return p;
}

static void run(const Job &job, u32 counts[COUNTS])
{
    CUDA(cudaMemset(job.counts, 0, COUNTS * sizeof(u32)));
    kernel<<<(job.lanes + BLOCK - 1) / BLOCK, BLOCK>>>(job);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(counts, job.counts, COUNTS * sizeof(u32), cudaMemcpyDeviceToHost));
}

#else

static u32 *words(u32 count) { return (u32 *)calloc(count, sizeof(u32)); }

static void run(const Job &job, u32 counts[COUNTS])
{
    memset(job.counts, 0, COUNTS * sizeof(u32));
    std::vector<std::thread> threads;
    for (u32 lane = 0; lane < job.lanes; ++lane) threads.emplace_back([&job, lane] { work(job, lane); });
    for (std::thread &thread : threads) thread.join();
    memcpy(counts, job.counts, COUNTS * sizeof(u32));
}

#endif

static uint32_t kind_of(const char *word)
{
    return strcmp(word, "window") == 0 ? SIDECORE_MEMORY_WINDOW : SIDECORE_MEMORY_HOST;
}

// Every byte of the storage, by the CPU: the program's writes are where they belong.
static void check_storage(const void *base, u64 generation)
{
    const u64 *const data = (const u64 *)base;
    for (u64 at = 0; at < BYTES; at += 8)
        if (data[at / 8] != word_at(at, generation)) fail("the storage", "a word is not what was written");
}

int main(int argc, char **argv)
{
    if (argc < 6) fail("usage", "foreign own|lent IO_BYTES DEPTH host|window host|window [FAULTS]");
    const bool own = strcmp(argv[1], "own") == 0;
    const u32 io_bytes = (u32)atoi(argv[2]), depth = (u32)atoi(argv[3]);
    const char *const faults = argc > 6 ? argv[6] : nullptr;

    sidecore_gpu *gpu;
    sidecore_bus *bus;
    sidecore_storage *storage;
    sidecore_controller *controller;
    void *base;
#ifdef __CUDACC__
    // The context is the runtime's; sidecore finds GPU and context by a pointer of it.
    u32 *const found = words(1);
    CHECK(sidecore_gpu_open_of((uint64_t)(uintptr_t)found, &gpu));
#else
    CHECK(sidecore_gpu_open("simulated", &gpu));
#endif
    CHECK(sidecore_bus_create(&bus));
    CHECK(sidecore_storage_memory(BYTES, &base, &storage));
    sidecore_controller_options options = {};
    options.struct_bytes = sizeof options;
    options.faults = faults;
    CHECK(sidecore_controller_create(gpu, bus, storage, &options, &controller));
    CHECK(sidecore_controller_start(controller));
    sidecore_registers registers;
    CHECK(sidecore_controller_registers(controller, &registers));

    Memory sq = allocate(gpu, bus, kind_of(argv[4]), depth * 64, own ? BUS_SQ : 0);
    Memory cq = allocate(gpu, bus, kind_of(argv[5]), depth * 16, own ? BUS_CQ : 0);
    Memory buffer = allocate(gpu, bus, SIDECORE_MEMORY_WINDOW, (u64)LANES * io_bytes, BUS_BUFFER);
    Memory lists = allocate(gpu, bus, SIDECORE_MEMORY_HOST, (u64)LANES * 4096, BUS_LISTS);
    for (u64 lane = 0; lane < LANES; ++lane)
        for (u64 page = 1; page < io_bytes / 4096; ++page)
            ((u64 *)lists.view.host)[lane * 512 + page - 1] = BUS_BUFFER + lane * io_bytes + page * 4096;

    Job job = {};
    u64 blocks;
    sidecore_driver *driver = nullptr;
    sidecore_queue_pair *pair = nullptr;
    u64 doorbells[2] = {registers.device_address + 0x1008, registers.device_address + 0x100c};
    Memory pages = {};
    if (own) {
        pages = allocate(gpu, bus, SIDECORE_MEMORY_HOST, 3 * 4096, BUS_ADMIN);
        Drive drive = {(volatile uint8_t *)registers.host, (uint8_t *)pages.view.host, BUS_ADMIN, 0, 0};
        enable(drive);
        blocks = identify(drive, &job.queue.block_bytes);
        make_pair(drive, BUS_SQ, BUS_CQ, depth);
        job.queue.nsid = 1;
    } else {
        sidecore_drive about;
        sidecore_queue_pair_view view;
        CHECK(sidecore_driver_open(controller, 4, 10000, &driver));
        CHECK(sidecore_driver_drive(driver, &about));
        CHECK(sidecore_queue_pair_create(driver, sq.handle, 0, cq.handle, 0, depth, 10000, &pair, &view));
        blocks = about.blocks;
        job.queue.nsid = about.nsid;
        job.queue.block_bytes = about.block_bytes;
        doorbells[0] = view.submission_doorbell;
        doorbells[1] = view.completion_doorbell;
    }
    if (blocks * job.queue.block_bytes != BYTES) fail("the drive", "another length than its storage's");

    job.queue.sq = (u32 *)(uintptr_t)sq.view.device_address;
    job.queue.cq = (const u32 *)(uintptr_t)cq.view.device_address;
    job.queue.sq_doorbell = (u32 *)(uintptr_t)doorbells[0];
    job.queue.cq_doorbell = (u32 *)(uintptr_t)doorbells[1];
    job.queue.state = words(STATE_WORDS + 3 * depth);
    job.queue.depth = depth;
    job.buffer = (u64 *)(uintptr_t)buffer.view.device_address;
    job.buffer_bus = BUS_BUFFER;
    job.lists_bus = BUS_LISTS;
    job.counts = words(COUNTS);
    job.ios = BYTES / io_bytes;
    job.generation = 3;
    job.limit_ns = faults ? 1000000000ull : 20000000000ull;
    job.io_bytes = io_bytes;
    job.lanes = LANES;
    job.rounds = ROUNDS;

    u32 wrote[COUNTS], read[COUNTS];
    job.opcode = OPCODE_WRITE;
    run(job, wrote);
    if (!faults) check_storage(base, job.generation);
    job.opcode = OPCODE_READ;
    run(job, read);

    sidecore_controller_counts counts;
    CHECK(sidecore_controller_count(controller, &counts));
    printf("%s; GPU %s; queue pair made by %s, SQ in %s memory, CQ in %s memory, depth %u, %u bytes an I/O\n",
           KIND, sidecore_gpu_name(gpu), own ? "this program" : "sidecore's driver", argv[4], argv[5], depth,
           io_bytes);
    printf("writes: %u done, %u failed, %u late\n", wrote[DONE], wrote[FAILED], wrote[LATE]);
    printf("reads: %u done, %u failed, %u late; %llu bytes looked at, %u words wrong\n", read[DONE],
           read[FAILED], read[LATE], (u64)read[DONE] * io_bytes, read[WRONG_WORDS]);
    printf("controller: %llu commands, %llu failed, %llu faults\n", (u64)counts.io_commands,
           (u64)counts.io_failed, (u64)counts.faults);

    if (pair) CHECK(sidecore_queue_pair_delete(pair, 10000));
    sidecore_driver_close(driver);
    CHECK(sidecore_controller_stop(controller));
    sidecore_controller_destroy(controller);
    Memory all[] = {sq, cq, buffer, lists, pages};
    for (Memory &m : all) sidecore_memory_free(m.handle);
    sidecore_storage_close(storage);
    sidecore_bus_destroy(bus);
    sidecore_gpu_close(gpu);
    const bool clean = wrote[DONE] == job.ios && read[DONE] == (u32)LANES * ROUNDS && counts.io_failed == 0 &&
                       counts.io_commands == job.ios + (u64)LANES * ROUNDS;
    if (!faults && !clean) fail("the count", "not every I/O was done once");
    if (!faults && read[WRONG_WORDS] != 0) fail("the data", "words are wrong");
    printf("ok\n");
    return 0;
}
