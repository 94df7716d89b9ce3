// Starting a drive from the specification: registers, admin commands, an I/O queue pair.
//
// Sources: NVMe Base 2.0c, 3.1.3 (registers), 3.5.1 (initialisation), 5.4 and 5.5 (queue creation), 5.17
// (Identify); NVMe over PCIe Transport 1.0c, 3.1.2 (doorbells).
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "platform.h"

enum { REG_CC = 0x14, REG_CSTS = 0x1c, REG_AQA = 0x24, REG_ASQ = 0x28, REG_ACQ = 0x30 };
enum { ADMIN_CREATE_SQ = 1, ADMIN_CREATE_CQ = 5, ADMIN_IDENTIFY = 6, ADMIN_ENTRIES = 8 };

struct Drive {
    volatile uint8_t *registers;
    // A page each of submission entries, completion entries and data, in one piece.
    uint8_t *pages;
    u64 pages_bus;
    u32 tail, head;
};

[[noreturn]] static inline void fail(const char *what, const char *why)
{
    printf("failed: %s: %s\n", what, why);
    fflush(stdout);
    exit(1);
}

static inline double seconds()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline volatile u32 *reg32(Drive &d, u32 at) { return (volatile u32 *)(d.registers + at); }
static inline volatile u64 *reg64(Drive &d, u32 at) { return (volatile u64 *)(d.registers + at); }

// Carries an admin command out; its dwords are those of the specification.
static inline void admin(Drive &d, const char *what, u32 opcode, u32 nsid, u64 prp1, u32 dword10, u32 dword11)
{
    u32 *const entry = (u32 *)d.pages + d.tail * 16;
    memset(entry, 0, 64);
    entry[0] = opcode | d.tail << 16;
    entry[1] = nsid;
    memcpy(entry + 6, &prp1, 8);
    entry[10] = dword10;
    entry[11] = dword11;
    __sync_synchronize();
    d.tail = (d.tail + 1) % ADMIN_ENTRIES;
    *reg32(d, 0x1000) = d.tail;
    volatile u32 *const completion = (volatile u32 *)(d.pages + 4096) + d.head % ADMIN_ENTRIES * 4;
    const u32 phase = (d.head / ADMIN_ENTRIES & 1) ^ 1;
    const double limit = seconds() + 10;
    while ((completion[3] >> 16 & 1) != phase)
        if (seconds() > limit) fail(what, "no completion within 10 s");
    __sync_synchronize();
    const u32 status = completion[3] >> 17;
    ++d.head;
    *reg32(d, 0x1004) = d.head % ADMIN_ENTRIES;
    if (status != 0) {
        char why[32];
        snprintf(why, sizeof why, "status %#x", status);
        fail(what, why);
    }
}

static inline void enable(Drive &d)
{
    *reg32(d, REG_AQA) = (ADMIN_ENTRIES - 1) << 16 | (ADMIN_ENTRIES - 1);
    *reg64(d, REG_ASQ) = d.pages_bus;
    *reg64(d, REG_ACQ) = d.pages_bus + 4096;
    __sync_synchronize();
    *reg32(d, REG_CC) = 1 | 6 << 16 | 4 << 20;  // entries of 64 and 16 bytes
    const double limit = seconds() + 10;
    while ((*reg32(d, REG_CSTS) & 1) == 0)
        if (seconds() > limit) fail("enabling", "CSTS.RDY does not come within 10 s");
}

// Blocks of namespace 1, and their length.
static inline u64 identify(Drive &d, u32 *block_bytes)
{
    admin(d, "Identify Namespace", ADMIN_IDENTIFY, 1, d.pages_bus + 8192, 0, 0);
    const uint8_t *const page = d.pages + 8192;
    u64 blocks;
    memcpy(&blocks, page, 8);
    u32 format;
    memcpy(&format, page + 128 + (page[26] & 15) * 4, 4);
    *block_bytes = 1u << (format >> 16 & 0xff);
    return blocks;
}

// Makes I/O queue pair 1 at bus addresses of our choice.
static inline void make_pair(Drive &d, u64 sq_bus, u64 cq_bus, u32 depth)
{
    const u32 id_and_size = 1 | (depth - 1) << 16;
    admin(d, "Create I/O Completion Queue", ADMIN_CREATE_CQ, 0, cq_bus, id_and_size, 1);
    admin(d, "Create I/O Submission Queue", ADMIN_CREATE_SQ, 0, sq_bus, id_and_size, 1 | 1 << 16);
}
