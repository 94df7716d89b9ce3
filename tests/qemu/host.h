// A host of an NVMe controller that trusts nothing but the specification.
//
// It knows registers and structures by their offsets, builds each command byte by byte in memory
// that the controller can reach, and decodes what comes back itself. Nothing of sidecore is included.
// Where registers and memory come from is the business of `reach_files` (a controller served by
// another process, in shared files) and of `reach_pci` (a drive in a guest, by its BAR).
//
// Sources: NVMe Base Specification 2.0c, NVM Command Set 1.0c, NVMe over PCIe Transport 1.0c.
#ifndef TESTS_QEMU_HOST_H
#define TESTS_QEMU_HOST_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    PAGE = 4096,
    PAGES = 256,
    ENTRY_BYTES = 64,
    DEPTH = 32,
    /* Pages with a fixed use; all from DATA on are the cases' own. */
    ADMIN_SQ = 0,
    ADMIN_CQ = 1,
    IO_SQ = 2,
    IO_CQ = 3,
    SPARE = 4,
    LIST = 6,
    DATA = 8
};

/* A submission entry as it lies in memory. */
struct entry {
    uint8_t bytes[ENTRY_BYTES];
};

/* How a command ended. */
struct ending {
    int came;          /* a completion came within the limit */
    unsigned type;     /* status code type */
    unsigned code;     /* status code */
    unsigned no_retry; /* do not retry */
    uint32_t result;   /* dword 0 */
    uint16_t command;  /* command identifier */
};

/* A queue pair as a host keeps it. */
struct pair {
    unsigned id;
    unsigned sq_page, cq_page;
    unsigned tail, head, phase;
};

/* Where the controller is. */
struct host {
    volatile uint8_t *registers;
    uint8_t *memory;
    /* The address at which the controller finds each page of `memory`. */
    uint64_t bus[PAGES];
    struct pair admin, io;
    uint16_t next_command;
};

void reach_files(struct host *host, const char *bar, const char *memory, uint64_t bus);
void reach_pci(struct host *host);
void fail(const char *what) __attribute__((noreturn));

/* Resets and enables the controller; sets the admin queues up. */
void enable(struct host *host);
/* Makes the I/O queue pair 1. */
void make_pair(struct host *host);

uint32_t read_register(struct host *host, size_t offset);
void ring(struct host *host, unsigned queue, int of_completion, uint32_t value);

/* Little-endian fields at byte offsets. */
void put(uint8_t *at, size_t offset, uint64_t value, size_t bytes);
uint64_t take(const uint8_t *at, size_t offset, size_t bytes);

/* An entry with opcode, namespace and PRP entries. */
struct entry entry(uint8_t opcode, uint32_t nsid, uint64_t prp1, uint64_t prp2);
/* The same with one of the dwords 10-15 set. */
struct entry with(struct entry entry, unsigned dword, uint32_t value);

/* Sends a command; its identifier. */
uint16_t send(struct host *host, struct pair *pair, struct entry entry);
/* Waits for the next completion. */
struct ending next(struct host *host, struct pair *pair, unsigned limit_ms);
/* Sends a command and waits for its completion. */
struct ending carry_out(struct host *host, struct pair *pair, struct entry entry);

static inline uint8_t *page(struct host *host, unsigned index)
{
    return host->memory + (size_t)index * PAGE;
}

#endif
