// Forks where a test yields its thread for the first time: Rust has no fork that needs no promise.
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

int sched_yield(void) {
  static int done;
  if (getenv("FORK_AT_YIELD") && !__atomic_exchange_n(&done, 1, __ATOMIC_SEQ_CST)) fork();
  return 0;
}
