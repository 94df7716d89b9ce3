// The table of bad commands, and how a controller answers each; see host.h.
//
//     table files BAR MEMORY BUS   a controller that another process serves in shared files
//     table                        as the init process of a guest: the drive on its PCI bus
//
// One line a command: name, code type/code (or `none`: no answer), `dnr` or `-`, and dword 0 where
// that means something. Lines that begin with `identify` say what the structures hold. The last line
// is `done`, and nothing else is.
#include "host.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <unistd.h>

/* I/O opcodes. Source: NVM Command Set 1.0c, 3.2. */
enum { FLUSH = 0, WRITE = 1, READ = 2, COMPARE = 5, ZEROES = 8, DEALLOCATE = 9 };
/* Flags in byte 1 of an entry. Source: NVMe Base 2.0c, 3.3.3.1. */
enum { FUSED_FIRST = 1, SGL = 0x40 };
/* No memory is there, on either side. */
static const uint64_t NOWHERE = 0x7ff000000000;

static uint64_t blocks;
static unsigned transfer_pages_max;

static void show(const char *name, struct ending ending, int with_result)
{
    if (!ending.came) {
        printf("%s none - -\n", name);
        return;
    }
    printf("%s %x/%02x %s ", name, ending.type, ending.code, ending.no_retry ? "dnr" : "-");
    if (with_result)
        printf("%08x\n", ending.result);
    else
        printf("-\n");
}

static void admin(struct host *host, const char *name, struct entry entry)
{
    show(name, carry_out(host, &host->admin, entry), 0);
}

static void io(struct host *host, const char *name, struct entry entry)
{
    show(name, carry_out(host, &host->io, entry), 0);
}

static struct entry flagged(struct entry entry, uint8_t flags)
{
    entry.bytes[1] = flags;
    return entry;
}

static struct entry for_namespace(struct entry entry, uint32_t nsid)
{
    put(entry.bytes, 4, nsid, 4);
    return entry;
}

/* A command over a range of blocks. */
static struct entry range(uint8_t opcode, uint64_t lba, unsigned count, uint64_t p1, uint64_t p2)
{
    struct entry command = entry(opcode, 1, p1, p2);
    put(command.bytes, 40, lba, 8);
    put(command.bytes, 48, count - 1, 2);
    return command;
}

static void must(struct ending ending, const char *what)
{
    if (!ending.came || ending.type || ending.code)
        fail(what);
}

/* Decodes what Identify says. Sources: NVMe Base 2.0c, 5.17.2.1; NVM Command Set 1.0c, 4.1.5.1. */
static void look(struct host *host)
{
    uint8_t *at = page(host, DATA);
    must(carry_out(host, &host->admin, with(entry(6, 0, host->bus[DATA], 0), 10, 1)), "identify");
    printf("identify sqes %02x\nidentify cqes %02x\n", at[512], at[513]);
    printf("identify nn-at-least-1 %d\n", take(at, 516, 4) >= 1);
    printf("identify mdts %u\n", at[77]);
    printf("identify cntrltype %u\n", at[111]);
    printf("identify serial-is-text %d\n", at[4] >= 0x20 && at[4] < 0x7f);
    printf("identify version %llx\n", (unsigned long long)take(at, 80, 4));
    printf("identify sgls-announced %d\n", take(at, 536, 4) != 0);
    printf("identify compare-dsm-zeroes %x\n", at[520] & 0x0d);
    transfer_pages_max = 1u << at[77];
    must(carry_out(host, &host->admin, entry(6, 1, host->bus[DATA], 0)), "identify namespace");
    blocks = take(at, 0, 8);
    unsigned format = at[26] & 0xf;
    printf("identify blocks %llu\n", (unsigned long long)blocks);
    printf("identify block-shift %u\n", at[128 + 4 * format + 2]);
    printf("identify metadata %u\n", (unsigned)take(at, 128 + 4 * format, 2));
    must(carry_out(host, &host->admin, with(entry(6, 0, host->bus[DATA], 0), 10, 2)), "list");
    printf("identify first-namespace %u\n", (unsigned)take(at, 0, 4));
}

static struct entry queue(uint8_t opcode, uint64_t at, uint32_t size_and_id, uint32_t rest)
{
    return with(with(entry(opcode, 0, at, 0), 10, size_and_id), 11, rest);
}

static void bad_queues(struct host *host)
{
    enum { SQ = 1, CQ = 5, DELETE_SQ = 0, DELETE_CQ = 4 };
    uint64_t at = host->bus[SPARE];
    uint32_t size = 15u << 16;
    uint32_t mqes = (read_register(host, 0) & 0xffff);
    admin(host, "create-cq:id-0", queue(CQ, at, size, 1));
    admin(host, "create-cq:id-beyond", queue(CQ, at, size | 0xfff0, 1));
    admin(host, "create-cq:id-in-use", queue(CQ, at, size | 1, 1));
    admin(host, "create-cq:one-entry", queue(CQ, at, 3, 1));
    admin(host, "create-cq:above-mqes", queue(CQ, at, (mqes + 1) << 16 | 3, 1));
    admin(host, "create-cq:scattered", queue(CQ, at, size | 3, 0));
    admin(host, "create-cq:offset", queue(CQ, at + 64, size | 3, 1));
    admin(host, "create-cq:vector-beyond", queue(CQ, at, size | 3, 0xffffu << 16 | 3));
    admin(host, "create-sq:id-0", queue(SQ, at, size, 1u << 16 | 1));
    admin(host, "create-sq:id-beyond", queue(SQ, at, size | 0xfff0, 1u << 16 | 1));
    admin(host, "create-sq:id-in-use", queue(SQ, at, size | 1, 1u << 16 | 1));
    admin(host, "create-sq:one-entry", queue(SQ, at, 3, 1u << 16 | 1));
    admin(host, "create-sq:above-mqes", queue(SQ, at, (mqes + 1) << 16 | 3, 1u << 16 | 1));
    admin(host, "create-sq:scattered", queue(SQ, at, size | 3, 1u << 16));
    admin(host, "create-sq:offset", queue(SQ, at + 64, size | 3, 1u << 16 | 1));
    admin(host, "create-sq:cq-0", queue(SQ, at, size | 3, 1));
    admin(host, "create-sq:cq-missing", queue(SQ, at, size | 3, 9u << 16 | 1));
    admin(host, "create-sq:cq-beyond", queue(SQ, at, size | 3, 0xfff0u << 16 | 1));
    admin(host, "delete-sq:id-0", queue(DELETE_SQ, 0, 0, 0));
    admin(host, "delete-sq:missing", queue(DELETE_SQ, 0, 9, 0));
    admin(host, "delete-cq:id-0", queue(DELETE_CQ, 0, 0, 0));
    admin(host, "delete-cq:missing", queue(DELETE_CQ, 0, 9, 0));
    admin(host, "delete-cq:in-use", queue(DELETE_CQ, 0, 1, 0));
}

static void bad_admin(struct host *host)
{
    enum { LOG = 2, IDENTIFY = 6, ABORT = 8, SET = 9, GET = 10 };
    uint64_t at = host->bus[DATA];
    struct entry page = with(entry(IDENTIFY, 0, at, 0), 10, 1);
    admin(host, "admin:opcode", entry(0x7f, 0, 0, 0));
    admin(host, "admin:fused", flagged(page, FUSED_FIRST));
    admin(host, "admin:sgl", flagged(page, SGL));
    admin(host, "identify:cns", with(entry(IDENTIFY, 0, at, 0), 10, 0xff));
    admin(host, "identify:namespace-0", entry(IDENTIFY, 0, at, 0));
    admin(host, "identify:namespace-beyond", entry(IDENTIFY, 0xfffffff0, at, 0));
    admin(host, "identify:all-namespaces", entry(IDENTIFY, 0xffffffff, at, 0));
    admin(host, "identify:list-above-all", with(entry(IDENTIFY, 0xffffffff, at, 0), 10, 2));
    admin(host, "identify:descriptors-of-0", with(entry(IDENTIFY, 0, at, 0), 10, 3));
    admin(host, "identify:prp1-odd", with(entry(IDENTIFY, 0, at + 2, 0), 10, 1));
    admin(host, "identify:prp2-offset", with(entry(IDENTIFY, 0, at + 4, at + 4100), 10, 1));
    admin(host, "identify:nowhere", with(entry(IDENTIFY, 0, NOWHERE, 0), 10, 1));
    admin(host, "log:unknown", with(entry(LOG, 0xffffffff, at, 0), 10, 15u << 16 | 0xee));
    admin(host, "log:beyond-its-end",
          with(with(entry(LOG, 0xffffffff, at, 0), 10, 15u << 16 | 2), 12, 4096));
    admin(host, "set-features:unknown", with(entry(SET, 0, 0, 0), 10, 0x7f));
    admin(host, "set-features:save", with(entry(SET, 0, 0, 0), 10, 1u << 31 | 1));
    admin(host, "set-features:queues-late", with(with(entry(SET, 0, 0, 0), 10, 7), 11, 0x30003));
    admin(host, "get-features:unknown", with(entry(GET, 0, 0, 0), 10, 0x7f));
    admin(host, "get-features:select", with(entry(GET, 0, 0, 0), 10, 7 << 8 | 1));
    show("abort:nothing", carry_out(host, &host->admin, with(entry(ABORT, 0, 0, 0), 10, 0x77770001)),
         1);
    admin(host, "abort:queue-missing", with(entry(ABORT, 0, 0, 0), 10, 0x77770009));
}

static void bad_ranges(struct host *host)
{
    uint64_t at = host->bus[DATA];
    struct entry one = range(READ, 0, 8, at, 0);
    io(host, "io:opcode", entry(0x7f, 1, at, 0));
    io(host, "io:fused", flagged(one, FUSED_FIRST));
    io(host, "io:sgl", flagged(one, SGL));
    io(host, "read:namespace-0", for_namespace(one, 0));
    io(host, "read:namespace-beyond", for_namespace(one, 0xfffffff0));
    io(host, "read:all-namespaces", for_namespace(one, 0xffffffff));
    io(host, "flush:namespace-0", entry(FLUSH, 0, 0, 0));
    io(host, "flush:namespace-beyond", entry(FLUSH, 0xfffffff0, 0, 0));
    io(host, "read:from-the-end", range(READ, blocks, 1, at, 0));
    io(host, "read:across-the-end", range(READ, blocks - 1, 2, at, 0));
    io(host, "read:overflow", range(READ, 0xffffffffffffffff, 8, at, 0));
    io(host, "write:across-the-end", range(WRITE, blocks - 7, 8, at, 0));
    io(host, "zeroes:across-the-end", range(ZEROES, blocks - 1, 2, 0, 0));
    io(host, "compare:across-the-end", range(COMPARE, blocks - 1, 2, at, 0));
    io(host, "compare:namespace-0", for_namespace(range(COMPARE, 0, 8, at, 0), 0));
    uint8_t *list = page(host, LIST);
    for (unsigned i = 0; i < PAGE / 8; i++)
        put(list, i * 8, host->bus[DATA + i % 8], 8);
    io(host, "read:above-mdts",
       range(READ, 0, (transfer_pages_max + 1) * 8, at, host->bus[LIST]));
}

static void bad_pointers(struct host *host)
{
    uint64_t at = host->bus[DATA];
    uint8_t *list = page(host, LIST);
    io(host, "read:prp1-odd", range(READ, 0, 8, at + 1, 0));
    io(host, "read:prp2-offset", range(READ, 0, 16, at, host->bus[DATA + 1] + 8));
    io(host, "read:list-offset", range(READ, 0, 32, at, host->bus[LIST] + 4));
    put(list, 0, host->bus[DATA + 1] + 8, 8);
    io(host, "read:list-entry-offset", range(READ, 0, 32, at, host->bus[LIST]));
    io(host, "read:nowhere", range(READ, 0, 8, NOWHERE, 0));
    io(host, "write:nowhere", range(WRITE, 64, 8, NOWHERE, 0));
    io(host, "read:list-nowhere", range(READ, 0, 32, at, NOWHERE));
}

/* Compare and Dataset Management. Source: NVM Command Set 1.0c, 3.2.1 and 3.2.3. */
static void bad_contents(struct host *host)
{
    uint64_t at = host->bus[DATA];
    uint8_t *data = page(host, DATA);
    for (unsigned i = 0; i < PAGE; i++)
        data[i] = (uint8_t)(i * 7 + i / 512);
    must(carry_out(host, &host->io, range(WRITE, 8, 8, at, 0)), "a write");
    io(host, "compare:equal", range(COMPARE, 8, 8, at, 0));
    data[PAGE - 1] ^= 1;
    io(host, "compare:last-bit", range(COMPARE, 8, 8, at, 0));
    io(host, "compare:odd", range(COMPARE, 8, 8, at + 1, 0));
    data[PAGE - 1] ^= 1;
    memset(page(host, DATA + 1), 0xee, PAGE);
    must(carry_out(host, &host->io, range(READ, 8, 8, host->bus[DATA + 1], 0)), "a read");
    if (memcmp(data, page(host, DATA + 1), PAGE))
        fail("what was written is not what is read");
    memset(data, 0, PAGE);
    put(data, 4, 8, 4);
    put(data, 8, blocks - 4, 8);
    io(host, "dsm:across-the-end", with(entry(DEALLOCATE, 1, at, 0), 11, 4));
    put(data, 8, 0xffffffffffffffff, 8);
    io(host, "dsm:overflow", with(entry(DEALLOCATE, 1, at, 0), 11, 4));
    io(host, "dsm:namespace-0", with(entry(DEALLOCATE, 0, at, 0), 11, 4));
    io(host, "dsm:odd", with(entry(DEALLOCATE, 1, at + 1, 0), 11, 4));
    put(data, 8, 8, 8);
    io(host, "dsm:good", with(entry(DEALLOCATE, 1, at, 0), 11, 4));
}

/* Asynchronous events of wrong doorbells. Sources: NVMe Base 2.0c, 5.2; PCIe Transport 1.0c, 3.1.2. */
static void events(struct host *host)
{
    struct ending ending;
    for (int i = 0; i < 4; i++)
        send(host, &host->admin, entry(0x0c, 0, 0, 0));
    admin(host, "event:fifth-request", entry(0x0c, 0, 0, 0));
    ring(host, 1, 0, DEPTH);
    ending = next(host, &host->admin, 2000);
    show("event:sq-tail-value", ending, 1);
    ring(host, 1, 0, host->io.tail);
    /* Masked until the error log is read. */
    ring(host, 9, 0, 1);
    ending = next(host, &host->admin, 200);
    show("event:masked", ending, 1);
    struct entry errors = with(entry(2, 0xffffffff, host->bus[DATA], 0), 10, 15u << 16 | 1);
    uint16_t log = send(host, &host->admin, errors);
    struct ending first = next(host, &host->admin, 2000);
    struct ending second = next(host, &host->admin, 2000);
    if (first.came && first.command != log) {
        struct ending swap = first;
        first = second;
        second = swap;
    }
    show("event:log-read", first, 0);
    show("event:no-such-doorbell", second, 1);
    must(carry_out(host, &host->admin, errors), "the error log");
    ring(host, 1, 1, DEPTH + 3);
    ending = next(host, &host->admin, 2000);
    show("event:cq-head-value", ending, 1);
    ring(host, 1, 1, host->io.head);
    /* A temperature event where the configuration asks for it, once a threshold is crossed. */
    must(carry_out(host, &host->admin, with(with(entry(9, 0, 0, 0), 10, 0x0b), 11, 2)), "events on");
    uint16_t set = send(host, &host->admin, with(with(entry(9, 0, 0, 0), 10, 4), 11, 100));
    first = next(host, &host->admin, 2000);
    second = next(host, &host->admin, 2000);
    show("event:temperature", first.command == set ? second : first, 1);
    struct entry health = with(entry(2, 0xffffffff, host->bus[DATA], 0), 10, 127u << 16 | 2);
    must(carry_out(host, &host->admin, health), "the health log");
    printf("identify temperature-warning %x\n", page(host, DATA)[0] & 2);
    /* The queues are as good as before. */
    must(carry_out(host, &host->io, range(READ, 0, 8, host->bus[DATA], 0)), "a read at the end");
}

static void table(struct host *host)
{
    enable(host);
    look(host);
    admin(host, "set-features:queues-ffff", with(with(entry(9, 0, 0, 0), 10, 7), 11, 0xffff));
    make_pair(host);
    bad_queues(host);
    bad_admin(host);
    bad_ranges(host);
    bad_pointers(host);
    bad_contents(host);
    events(host);
    printf("done\n");
    fflush(stdout);
}

/* As the first process of a guest: what it says goes out on the second serial port. */
static void become_init(void)
{
    mkdir("/proc", 0755);
    mkdir("/sys", 0755);
    mkdir("/dev", 0755);
    mount("proc", "/proc", "proc", 0, NULL);
    mount("sysfs", "/sys", "sysfs", 0, NULL);
    mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    int port = open("/dev/ttyS1", O_RDWR | O_NOCTTY);
    if (port >= 0) {
        dup2(port, 1);
        dup2(port, 2);
    }
}

static void end_guest(void)
{
    fflush(stdout);
    sync();
    reboot(RB_AUTOBOOT);
}

int main(int count, char **words)
{
    static struct host host;
    if (count == 5 && !strcmp(words[1], "files")) {
        reach_files(&host, words[2], words[3], strtoull(words[4], NULL, 0));
        table(&host);
        return 0;
    }
    if (getpid() != 1)
        fail("usage: table files BAR MEMORY BUS, or as a guest's init");
    become_init();
    atexit(end_guest);
    reach_pci(&host);
    table(&host);
    exit(0);
}
