/// The simulator's one thread-local: which lane this OS thread runs now, and how.
///
/// Device code reads it without a call; Rust cannot define a C thread-local, so it lies here.
#include "sidecore/impl/arch.h"

__thread sidecore_simt_thread_state sidecore_simt_thread;

/// Where this OS thread's copy lies.
extern "C" sidecore_simt_thread_state* sidecore_simt_thread_address() {
  return &sidecore_simt_thread;
}
