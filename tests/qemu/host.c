// Queues, doorbells and completions, byte by byte; see host.h.
#include "host.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Registers. Source: NVMe Base 2.0c, 3.1.3. */
enum { CC = 0x14, CSTS = 0x1c, AQA = 0x24, ASQ = 0x28, ACQ = 0x30, DOORBELLS = 0x1000 };

/* How long a command may take. */
enum { LIMIT_MS = 5000 };

void fail(const char *what)
{
    printf("failed: %s\n", what);
    fflush(stdout);
    exit(1);
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void nap(void)
{
    struct timespec nap = {0, 100000};
    nanosleep(&nap, NULL);
}

void put(uint8_t *at, size_t offset, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[offset + i] = (uint8_t)(value >> (8 * i));
}

uint64_t take(const uint8_t *at, size_t offset, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)at[offset + i] << (8 * i);
    return value;
}

uint32_t read_register(struct host *host, size_t offset)
{
    return *(volatile uint32_t *)(host->registers + offset);
}

static void write_register(struct host *host, size_t offset, uint32_t value)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    *(volatile uint32_t *)(host->registers + offset) = value;
}

void ring(struct host *host, unsigned queue, int of_completion, uint32_t value)
{
    unsigned stride = 4u << (read_register(host, 4) & 0xf);
    write_register(host, DOORBELLS + (2 * queue + (of_completion ? 1 : 0)) * stride, value);
}

static void wait_ready(struct host *host, uint32_t wanted)
{
    uint64_t end = now_ms() + LIMIT_MS;
    while ((read_register(host, CSTS) & 1) != wanted) {
        if (now_ms() > end)
            fail("CSTS.RDY did not follow CC.EN");
        nap();
    }
}

static struct pair fresh(unsigned id, unsigned sq_page, unsigned cq_page)
{
    struct pair pair = {id, sq_page, cq_page, 0, 0, 1};
    return pair;
}

void enable(struct host *host)
{
    write_register(host, CC, 0);
    wait_ready(host, 0);
    memset(host->memory, 0, (size_t)PAGES * PAGE);
    host->admin = fresh(0, ADMIN_SQ, ADMIN_CQ);
    write_register(host, AQA, (DEPTH - 1) << 16 | (DEPTH - 1));
    write_register(host, ASQ, (uint32_t)host->bus[ADMIN_SQ]);
    write_register(host, ASQ + 4, (uint32_t)(host->bus[ADMIN_SQ] >> 32));
    write_register(host, ACQ, (uint32_t)host->bus[ADMIN_CQ]);
    write_register(host, ACQ + 4, (uint32_t)(host->bus[ADMIN_CQ] >> 32));
    /* Entries of 64 and 16 bytes, pages of 4 KiB, NVM command set. */
    write_register(host, CC, 6u << 16 | 4u << 20 | 1);
    wait_ready(host, 1);
}

void make_pair(struct host *host)
{
    host->io = fresh(1, IO_SQ, IO_CQ);
    struct entry cq = entry(0x05, 0, host->bus[IO_CQ], 0);
    struct ending made =
        carry_out(host, &host->admin, with(with(cq, 10, (DEPTH - 1) << 16 | 1), 11, 1));
    if (!made.came || made.type || made.code)
        fail("no I/O completion queue");
    struct entry sq = entry(0x01, 0, host->bus[IO_SQ], 0);
    made = carry_out(host, &host->admin, with(with(sq, 10, (DEPTH - 1) << 16 | 1), 11, 1u << 16 | 1));
    if (!made.came || made.type || made.code)
        fail("no I/O submission queue");
}

struct entry entry(uint8_t opcode, uint32_t nsid, uint64_t prp1, uint64_t prp2)
{
    struct entry entry;
    memset(&entry, 0, sizeof entry);
    put(entry.bytes, 0, opcode, 1);
    put(entry.bytes, 4, nsid, 4);
    put(entry.bytes, 24, prp1, 8);
    put(entry.bytes, 32, prp2, 8);
    return entry;
}

struct entry with(struct entry entry, unsigned dword, uint32_t value)
{
    put(entry.bytes, dword * 4, value, 4);
    return entry;
}

uint16_t send(struct host *host, struct pair *pair, struct entry entry)
{
    uint16_t command = ++host->next_command;
    put(entry.bytes, 2, command, 2);
    uint8_t *at = page(host, pair->sq_page) + (size_t)pair->tail * ENTRY_BYTES;
    memcpy(at, entry.bytes, ENTRY_BYTES);
    pair->tail = (pair->tail + 1) % DEPTH;
    ring(host, pair->id, 0, pair->tail);
    return command;
}

struct ending next(struct host *host, struct pair *pair, unsigned limit_ms)
{
    struct ending ending = {0};
    uint8_t *at = page(host, pair->cq_page) + (size_t)pair->head * 16;
    volatile uint32_t *last = (volatile uint32_t *)(at + 12);
    uint64_t end = now_ms() + limit_ms;
    while ((*last >> 16 & 1) != pair->phase) {
        if (now_ms() > end)
            return ending;
        nap();
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    unsigned status = (unsigned)take(at, 14, 2) >> 1;
    ending.came = 1;
    ending.code = status & 0xff;
    ending.type = status >> 8 & 7;
    ending.no_retry = status >> 14 & 1;
    ending.result = (uint32_t)take(at, 0, 4);
    ending.command = (uint16_t)take(at, 12, 2);
    if (take(at, 10, 2) != pair->id)
        fail("a completion names another queue");
    pair->head = (pair->head + 1) % DEPTH;
    if (pair->head == 0)
        pair->phase ^= 1;
    ring(host, pair->id, 1, pair->head);
    return ending;
}

struct ending carry_out(struct host *host, struct pair *pair, struct entry entry)
{
    uint16_t command = send(host, pair, entry);
    struct ending ending = next(host, pair, LIMIT_MS);
    if (ending.came && ending.command != command)
        fail("a completion of another command");
    return ending;
}
