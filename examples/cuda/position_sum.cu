// Reads a file into GPU memory by a kernel's own requests: position_sum FILE.
//
//   nvcc -std=c++17 -arch=sm_90 -Iinclude position_sum.cu -Llib -lsidecore
//
// Without nvcc it runs on the simulated GPU, whose device memory is the process's own:
//
//   g++ -std=c++17 -x c++ -DSIDECORE_SIMT -DSIDECORE_SIMT_SHARED -Iinclude position_sum.cu -Llib -lsidecore
#include <sidecore.h>

#include <cstdio>
#include <cstdlib>

#include "position_sum_kernel.cu"

namespace {

constexpr unsigned BLOCKS = 8, THREADS = 128;
constexpr unsigned long long BLOCK_BYTES = 4096;

void check(int code, const char* call) {
  if (code == SIDECORE_OK) return;
  std::fprintf(stderr, "%s: %s\n", call, sidecore_last_error());
  std::exit(1);
}
#define CHECK(call) check(call, #call)

unsigned long long device_address(sidecore_memory* memory) {
  sidecore_memory_view view;
  CHECK(sidecore_memory_where(memory, &view));
  return view.device_address;
}

/// Starts the kernel and waits for it.
void launch(sidecore_gpu* gpu, const PositionSum& arguments) {
#ifdef __CUDACC__
  (void)gpu;
  position_sum<<<BLOCKS, THREADS>>>(arguments);
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) {
    std::fprintf(stderr, "the kernel: %s\n", cudaGetErrorString(error));
    std::exit(1);
  }
#else
  CHECK(sidecore_simulated_launch(gpu, position_sum, BLOCKS, THREADS, &arguments, sizeof arguments,
                                  60000));
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: position_sum FILE\n"), 2;
  sidecore_gpu* gpu;
  sidecore_engine* engine;
  sidecore_storage* file;
  sidecore_memory *buffer, *results;
  sidecore_ring* ring;
#ifdef __CUDACC__
  // The buffer is CUDA's own: sidecore finds the GPU by it, and takes it as it is.
  const unsigned long long bytes = BLOCKS * THREADS * BLOCK_BYTES;
  void* own = nullptr;
  if (cudaMalloc(&own, bytes) != cudaSuccess) return std::fprintf(stderr, "no device memory\n"), 1;
  const auto pointer = reinterpret_cast<unsigned long long>(own);
  CHECK(sidecore_gpu_open_of(pointer, &gpu));
  CHECK(sidecore_memory_adopt(gpu, pointer, bytes, &buffer));
  sidecore_ring_options options{};
  options.struct_bytes = sizeof options;
  options.read_route = SIDECORE_ROUTE_PULL;
#else
  CHECK(sidecore_gpu_open("simulated", &gpu));
  CHECK(sidecore_memory_allocate(gpu, SIDECORE_MEMORY_WINDOW, BLOCKS * THREADS * BLOCK_BYTES, &buffer));
  sidecore_ring_options options{};
  options.struct_bytes = sizeof options;
#endif
  CHECK(sidecore_memory_allocate(gpu, SIDECORE_MEMORY_DEVICE, 16, &results));
  CHECK(sidecore_engine_start(gpu, nullptr, &engine));
  CHECK(sidecore_storage_file(argv[1], &file));
  CHECK(sidecore_ring_create(engine, &options, &ring));
  PositionSum arguments{};
  arguments.block = BLOCK_BYTES;
  arguments.sum = reinterpret_cast<sidecore::u64*>(device_address(results));
  arguments.failures = arguments.sum + 1;
  CHECK(sidecore_ring_view(ring, &arguments.ring, sizeof arguments.ring));
  CHECK(sidecore_source_register(engine, file, SIDECORE_READ, &arguments.file, sizeof arguments.file,
                                 nullptr));
  CHECK(sidecore_buffer_register(engine, buffer, SIDECORE_READ, &arguments.buffer,
                                 sizeof arguments.buffer, nullptr));
  launch(gpu, arguments);
  unsigned long long found[2], requests;
  CHECK(sidecore_memory_load(results, 0, found, sizeof found));
  CHECK(sidecore_ring_count(ring, "requests", reinterpret_cast<uint64_t*>(&requests)));
  std::printf("%s, buffer: %s\n", sidecore_gpu_name(gpu), sidecore_memory_routes(buffer));
  std::printf("%llu bytes by %llu requests, %llu failures, sum by position %llu\n",
              static_cast<unsigned long long>(arguments.file.bytes), requests, found[1], found[0]);
  sidecore_ring_close(ring);
  sidecore_engine_stop(engine);
  sidecore_storage_close(file);
  sidecore_memory_free(buffer);
  sidecore_memory_free(results);
  sidecore_gpu_close(gpu);
  return found[1] == 0 ? 0 : 1;
}
