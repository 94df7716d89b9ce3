// Two ways to a controller: shared files, and a PCI device in a guest; see host.h.
#include "host.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Registers, and doorbells of 256 queue pairs. */
enum { BAR_BYTES = 0x2000 };

static void *map_shared(const char *path, size_t bytes)
{
    int file = open(path, O_RDWR | O_SYNC);
    if (file < 0)
        fail(path);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED)
        fail(path);
    close(file);
    return at;
}

void reach_files(struct host *host, const char *bar, const char *memory, uint64_t bus)
{
    host->registers = map_shared(bar, BAR_BYTES);
    host->memory = map_shared(memory, (size_t)PAGES * PAGE);
    for (unsigned i = 0; i < PAGES; i++)
        host->bus[i] = bus + (uint64_t)i * PAGE;
}

/* Finds the device of class 01.08.02, an NVMe controller: the path of one of its files. */
static const char *device_file(const char *name)
{
    static char path[300];
    const char *devices = "/sys/bus/pci/devices";
    DIR *folder = opendir(devices);
    if (!folder)
        fail(devices);
    for (struct dirent *found; (found = readdir(folder));) {
        char text[16] = "";
        snprintf(path, sizeof path, "%s/%s/class", devices, found->d_name);
        int file = open(path, O_RDONLY);
        if (file < 0)
            continue;
        ssize_t got = read(file, text, sizeof text - 1);
        close(file);
        if (got > 0 && !strncmp(text, "0x010802", 8)) {
            snprintf(path, sizeof path, "%s/%s/%s", devices, found->d_name, name);
            closedir(folder);
            return path;
        }
    }
    fail("no NVMe controller on the PCI bus");
}

/* The physical address of a page that is locked in memory. */
static uint64_t physical(const uint8_t *at)
{
    uint64_t word = 0;
    int file = open("/proc/self/pagemap", O_RDONLY);
    off_t offset = (off_t)((uintptr_t)at / PAGE * sizeof word);
    if (file < 0 || pread(file, &word, sizeof word, offset) != (ssize_t)sizeof word)
        fail("/proc/self/pagemap");
    close(file);
    uint64_t frame = word & ((1ull << 55) - 1);
    if (!(word >> 63) || !frame)
        fail("a page has no frame");
    return frame * PAGE;
}

void reach_pci(struct host *host)
{
    /* Memory space and bus master, in the command register. */
    uint8_t command[2];
    int config = open(device_file("config"), O_RDWR);
    if (config < 0 || pread(config, command, 2, 4) != 2)
        fail("PCI configuration space");
    command[0] |= 0x06;
    if (pwrite(config, command, 2, 4) != 2)
        fail("PCI command register");
    close(config);
    host->registers = map_shared(device_file("resource0"), BAR_BYTES);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED | MAP_POPULATE;
    host->memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (host->memory == MAP_FAILED)
        fail("no locked memory");
    memset(host->memory, 0xff, (size_t)PAGES * PAGE);
    for (unsigned i = 0; i < PAGES; i++)
        host->bus[i] = physical(page(host, i));
}
