// What lanes do: write every block, or read blocks in some order and look at every byte.
#pragma once

#include "queue.h"

// What lanes see, added up.
enum { DONE, FAILED, LATE, WRONG_WORDS, COUNTS };

struct Job {
    Queue queue;
    u64 *buffer;       // io_bytes a lane
    u64 buffer_bus;    // the same for the drive
    u64 lists_bus;     // a page of PRPs a lane
    u32 *counts;       // COUNTS
    u64 ios;           // of io_bytes each, from offset 0 on
    u64 generation;    // of the data
    u64 limit_ns;
    u32 io_bytes;
    u32 lanes;
    u32 opcode;
    u32 rounds;        // reads a lane
};

// Data that tells its own place: a word at a byte offset, of a generation.
#ifdef __CUDACC__
__host__ __device__
#endif
inline u64 word_at(u64 offset, u64 generation)
{
    u64 x = offset + generation * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

LANE void one_io(const Job &job, u32 lane, u64 io)
{
    const u64 offset = io * job.io_bytes;
    const u32 words = job.io_bytes / 8;
    u64 *const buffer = job.buffer + (u64)lane * words;
    const bool write = job.opcode == OPCODE_WRITE;
    for (u32 word = 0; word < words; ++word)
        buffer[word] = write ? word_at(offset + 8 * word, job.generation) : 0xdeadbeefdeadbeefull;
    fence();
    const u64 bus = job.buffer_bus + (u64)lane * job.io_bytes;
    const u64 list = job.lists_bus + (u64)lane * 4096;
    const u64 prp2 = job.io_bytes <= 4096 ? 0 : job.io_bytes <= 8192 ? bus + 4096 : list;
    const u32 status = carry_out(job.queue, job.opcode, offset, job.io_bytes, bus, prp2, job.limit_ns);
    add(job.counts + (status == 0 ? DONE : status == TIMED_OUT ? LATE : FAILED), 1);
    if (write || status != 0) return;
    u32 wrong = 0;
    for (u32 word = 0; word < words; ++word)
        wrong += buffer[word] != word_at(offset + 8 * word, job.generation);
    if (wrong != 0) add(job.counts + WRONG_WORDS, wrong);
}

LANE void work(const Job &job, u32 lane)
{
    if (job.opcode == OPCODE_WRITE) {
        for (u64 io = lane; io < job.ios; io += job.lanes) one_io(job, lane, io);
        return;
    }
    for (u32 round = 0; round < job.rounds; ++round)
        one_io(job, lane, word_at((u64)lane << 32 | round, 77) % job.ios);
}
