// A driver without a device: memory is the host's, each stream is a thread that does one thing after the
// other. Good enough to show in which order copies, gates and events end; built as libcuda.so.1 by the tests.
//
// FAKE_NO_STREAM_WAITS=1    streams cannot wait for words (CUDA_ERROR_NOT_SUPPORTED)
// FAKE_NO_BATCHES=1         several copies by one call are refused
// FAKE_NO_PINNED=1          pinned memory is refused
// FAKE_DEVICE_BYTES=N       device memory there is
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace {
constexpr int INVALID = 1, OUT_OF_MEMORY = 2, NOT_READY = 600, NOT_SUPPORTED = 801;

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  uint64_t submitted = 0, done = 0;
  bool stopped = false;
  std::thread thread{[this] { serve(); }};

  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return stopped || !work.empty(); });
      if (work.empty()) return;
      auto next = std::move(work.front());
      work.pop_front();
      lock.unlock();
      next();
      lock.lock();
      ++done;
      changed.notify_all();
    }
  }
  uint64_t submit(std::function<void()> next) {
    std::lock_guard lock(mutex);
    work.push_back(std::move(next));
    changed.notify_all();
    return ++submitted;
  }
  void wait(uint64_t until) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= until; });
  }
  bool passed(uint64_t until) {
    std::lock_guard lock(mutex);
    return done >= until;
  }
  ~Stream() {
    {
      std::lock_guard lock(mutex);
      stopped = true;
      changed.notify_all();
    }
    thread.join();
  }
};

struct Event {
  Stream* stream = nullptr;
  uint64_t at = 0;
};

std::atomic<int> waiting{0};

// A driver may let allocations wait until the device is idle. While a stream waits for a word, that is for
// ever, if whoever would store the word is the one that allocates.
void wait_until_idle(const char* what) {
  for (int tries = 0; waiting.load() > 0; ++tries) {
    if (tries > 2000) {
      std::fprintf(stderr, "deadlock: %s while a stream waits\n", what);
      std::abort();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::mutex memory_mutex;
std::map<uint64_t, size_t> allocations;
size_t device_bytes_used = 0;

bool flag(const char* name) { return std::getenv(name) != nullptr; }
size_t device_bytes() {
  const char* text = std::getenv("FAKE_DEVICE_BYTES");
  return text ? std::strtoull(text, nullptr, 10) : size_t{1} << 33;
}

Stream& null_stream() {
  static auto* stream = new Stream;  // never ends: the process may end while others use it
  return *stream;
}
Stream& of(void* handle) { return handle ? *static_cast<Stream*>(handle) : null_stream(); }

void* make(size_t bytes) {
  void* memory = nullptr;
  return posix_memalign(&memory, 4096, bytes) ? nullptr : memory;
}
void note(void* memory, size_t bytes) {
  std::lock_guard lock(memory_mutex);
  allocations[reinterpret_cast<uint64_t>(memory)] = bytes;
}
bool inside(uint64_t address, size_t bytes) {
  std::lock_guard lock(memory_mutex);
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return false;
  --found;
  return address + bytes <= found->first + found->second;
}
std::atomic<int> batches{0};
thread_local void* current = nullptr;
int context;
}  // namespace

extern "C" {
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuInit(unsigned) { return 0; }
int cuGetErrorName(int error, const char** name) {
  *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_FAKE";
  return 0;
}
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int bytes, int) { return std::strncpy(name, "Fake GPU", bytes), 0; }
int cuDeviceGetUuid_v2(unsigned char* uuid, int) { return std::memset(uuid, 7, 16), 0; }
int cuDeviceGetAttribute(int* value, int which, int) {
  *value = which == 75 ? 9 : which == 76 ? 0 : which == 118 ? 100 : 1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** place, int) { return *place = &context, 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(void* handle) { return current = handle, 0; }
int cuCtxPushCurrent_v2(void* handle) { return current = handle, 0; }
int cuCtxPopCurrent_v2(void** place) { return *place = current, 0; }
int cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = *total = device_bytes(), 0; }
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  {
    std::lock_guard lock(memory_mutex);
    if (device_bytes_used + bytes > device_bytes()) return OUT_OF_MEMORY;
    device_bytes_used += bytes;
  }
  void* memory = make(bytes);
  if (!memory) return OUT_OF_MEMORY;
  note(memory, bytes);
  return *address = reinterpret_cast<uint64_t>(memory), 0;
}
int cuMemFree_v2(uint64_t address) {
  std::lock_guard lock(memory_mutex);
  auto found = allocations.find(address);
  if (found == allocations.end()) return INVALID;
  device_bytes_used -= found->second;
  allocations.erase(found);
  return std::free(reinterpret_cast<void*>(address)), 0;
}
int cuMemHostAlloc(void** place, size_t bytes, unsigned) {
  wait_until_idle("cuMemHostAlloc");
  if (flag("FAKE_NO_PINNED")) return OUT_OF_MEMORY;
  *place = make(bytes);
  return *place ? 0 : OUT_OF_MEMORY;
}
int cuMemFreeHost(void* memory) { return std::free(memory), 0; }
int cuMemHostRegister_v2(void*, size_t, unsigned) {
  wait_until_idle("cuMemHostRegister");
  return flag("FAKE_NO_PINNED") ? OUT_OF_MEMORY : 0;
}
int cuMemHostUnregister(void*) { return 0; }
int cuPointerGetAttribute(void* place, int which, uint64_t address) {
  std::lock_guard lock(memory_mutex);
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return INVALID;
  --found;
  if (address >= found->first + found->second) return INVALID;
  if (which == 11) return *static_cast<uint64_t*>(place) = found->first, 0;
  if (which == 12) return *static_cast<size_t*>(place) = found->second, 0;
  return *static_cast<int*>(place) = 0, 0;
}
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  of(stream).submit([=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
  return 0;
}
int cuMemcpyBatchAsync_v2(const uint64_t* to, const uint64_t* from, const size_t* bytes, size_t count,
                          const int* attributes, const size_t* first, size_t sets, void* stream) {
  if (flag("FAKE_NO_BATCHES")) return NOT_SUPPORTED;
  if (sets != 1 || *first != 0 || *attributes != 1 || !stream) return INVALID;
  for (size_t i = 0; i < count; ++i) {
    if (!inside(to[i], bytes[i])) return INVALID;
    cuMemcpyAsync(to[i], from[i], bytes[i], stream);
  }
  if (batches++ == 0) std::printf("copies in batches\n"), std::fflush(stdout);
  return 0;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void* stream) {
  return of(stream).submit([=] { std::memset(reinterpret_cast<void*>(to), value, bytes); }), 0;
}
int cuStreamCreate(void** place, unsigned) { return *place = new Stream, 0; }
int cuStreamDestroy_v2(void* stream) { return delete static_cast<Stream*>(stream), 0; }
int cuStreamSynchronize(void* stream) {
  auto& one = of(stream);
  return one.wait(one.submit([] {})), 0;
}
int cuStreamQuery(void*) { return NOT_READY; }
int cuStreamWriteValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned) {
  if (flag("FAKE_NO_STREAM_WAITS")) return NOT_SUPPORTED;
  of(stream).submit([=] {
    reinterpret_cast<std::atomic<uint32_t>*>(address)->store(value, std::memory_order_release);
  });
  return 0;
}
int cuStreamWaitValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned) {
  if (flag("FAKE_NO_STREAM_WAITS")) return NOT_SUPPORTED;
  ++waiting;
  of(stream).submit([=] {
    auto* word = reinterpret_cast<std::atomic<uint32_t>*>(address);
    while (static_cast<int32_t>(word->load(std::memory_order_acquire) - value) < 0)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    --waiting;
  });
  return 0;
}
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  return of(stream).submit([=] { function(argument); }), 0;
}
int cuEventCreate(void** place, unsigned) { return *place = new Event, 0; }
int cuEventDestroy_v2(void* event) { return delete static_cast<Event*>(event), 0; }
int cuEventRecord(void* event, void* stream) {
  auto* one = static_cast<Event*>(event);
  one->stream = &of(stream);
  return one->at = one->stream->submit([] {}), 0;
}
int cuEventQuery(void* event) {
  auto* one = static_cast<Event*>(event);
  return !one->stream || one->stream->passed(one->at) ? 0 : NOT_READY;
}
int cuEventSynchronize(void* event) {
  auto* one = static_cast<Event*>(event);
  if (one->stream) one->stream->wait(one->at);
  return 0;
}
#define REFUSED(name) \
  int name() { return INVALID; }
REFUSED(cuEventElapsedTime) REFUSED(cuModuleLoadData) REFUSED(cuModuleUnload) REFUSED(cuModuleGetFunction)
REFUSED(cuFuncGetAttribute) REFUSED(cuLaunchKernel) REFUSED(cuImportExternalMemory)
REFUSED(cuExternalMemoryGetMappedBuffer) REFUSED(cuDestroyExternalMemory)
}
