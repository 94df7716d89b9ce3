// A Vulkan loader and driver that are not quite ones. Structures are written by their offsets in the 64-bit
// ABI of Vulkan 1.1.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#ifndef HEAP
#define HEAP (1ul << 34)
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef UUID
#define UUID 7
#endif
#ifndef VISIBLE
#define VISIBLE 7  // DEVICE_LOCAL, HOST_VISIBLE, HOST_COHERENT
#endif

typedef unsigned long u64;
typedef unsigned u32;
static int made;

// No driver: VK_ERROR_INCOMPATIBLE_DRIVER.
static int create_instance(void* info, void* allocator, void** instance) {
  (void)info, (void)allocator;
#ifdef NO_ICD
  return -9;
#endif
  return *instance = &made, 0;
}
static int enumerate_devices(void* instance, u32* count, void** devices) {
  (void)instance;
  if (devices && *count >= DEVICES && DEVICES > 0) devices[0] = &made;
  return *count = DEVICES, 0;
}
static void device_properties(void* device, char* properties) {
  (void)device;
  memset(*(char**)(properties + 8) + 16, UUID, 16);
}
static void memory_properties(void* device, char* memory) {
  (void)device;
  *(u32*)memory = 2;
  *(u32*)(memory + 4) = 1, *(u32*)(memory + 8) = 0;
  *(u32*)(memory + 12) = VISIBLE, *(u32*)(memory + 16) = 1;
  *(u32*)(memory + 260) = 2;
  *(u64*)(memory + 264) = 1ul << 37, *(u64*)(memory + 280) = HEAP;
}
static int create_device(void* physical, void* info, void* allocator, void** device) {
  (void)physical, (void)info, (void)allocator;
  return *device = &made, 0;
}
static int allocate(void* device, char* info, void* allocator, void** memory) {
  (void)device, (void)allocator;
  return *memory = aligned_alloc(4096, *(u64*)(info + 16)), 0;
}
static int map(void* device, void* memory, u64 offset, u64 bytes, u32 flags, void** at) {
  (void)device, (void)offset, (void)bytes, (void)flags;
  return *at = memory, 0;
}
static int descriptor(void* device, void* info, int* fd) {
  (void)device, (void)info;
  return *fd = open("/dev/null", O_RDONLY), 0;
}
static void nothing(void) {}

typedef void (*function)(void);
static function find(const char* name) {
  static const struct { const char* name; function function; } known[] = {
      {"vkCreateInstance", (function)create_instance},
      {"vkEnumeratePhysicalDevices", (function)enumerate_devices},
      {"vkGetPhysicalDeviceProperties2", (function)device_properties},
      {"vkGetPhysicalDeviceMemoryProperties", (function)memory_properties},
      {"vkCreateDevice", (function)create_device},
      {"vkAllocateMemory", (function)allocate},
      {"vkMapMemory", (function)map},
      {"vkGetMemoryFdKHR", (function)descriptor},
      {"vkUnmapMemory", nothing},
      {"vkFreeMemory", nothing},
      {"vkDestroyDevice", nothing},
      {"vkDestroyInstance", nothing},
  };
  for (unsigned i = 0; i < sizeof known / sizeof *known; ++i) {
    if (strcmp(known[i].name, name) == 0) return known[i].function;
  }
  return 0;
}
static function device_function(void* device, const char* name) { return (void)device, find(name); }
function vkGetInstanceProcAddr(void* instance, const char* name) {
  (void)instance;
  if (strcmp(name, "vkGetDeviceProcAddr") == 0) return (function)device_function;
  return find(name);
}
