//! Fault scripts: what shall go wrong, how often, and where.
//!
//! A script is text, `KIND[:key=value[,key=value]...][;KIND...]`:
//!
//! | kind | what happens to the I/O |
//! | --- | --- |
//! | `error` | ends with an error status, moves nothing |
//! | `late` | ends `ms` milliseconds late |
//! | `lost` | is carried out, its completion never comes |
//! | `duplicate` | its completion comes twice |
//! | `flip` | one random bit of one random byte of its payload is flipped |
//! | `stuck` | it and all later ones of its queue never end |
//! | `reset` | everything in flight ends as aborted, it too |
//! | `torn` | a write: only a prefix lands, the status is a write fault |
//!
//! | key | meaning | default |
//! | --- | --- | --- |
//! | `n` | exactly so many I/Os, one in `every` | 1 where neither `rate` nor `offset` is given |
//! | `every` | spread of `n`: the K-th, 2K-th, ... eligible I/O | 7; 1 with `offset`, or without `n` |
//! | `rate` | each eligible I/O with this probability, 0..1 | |
//! | `offset`, `lba` | only I/Os that touch this byte, this block | |
//! | `after` | only I/Os after the first so many | 0 |
//! | `op` | only `read`, `write`, `flush` or `zeroes` | all that the kind makes sense for |
//! | `status` | `error`, `torn`: code type and code in hex, `2/81` | by the operation |
//! | `ms` | `late`: delay in milliseconds | 10 |
//! | `seed` | of the random choices | 1 |
//!
//! [`Injector`] decides for each I/O in turn, and counts. An I/O suffers at most one fault: the
//! first of the script that is due. A fault with `n` that had to stand back falls on the next
//! eligible I/O, so that the count stays exact. The same script and the same sequence of I/Os give
//! the same decisions.

mod injector;
mod script;

pub use injector::{Action, Injector, IoShape};
pub use script::{FaultKind, FaultScript, FaultScriptError};

#[cfg(test)]
mod tests;
