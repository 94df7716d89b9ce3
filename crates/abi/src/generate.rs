//! Writes the C++ twin of everything in this crate: `include/sidecore/impl/abi__types.h`.
//!
//! A structure's fields are only named here; types, sizes and offsets are taken from the Rust
//! structure itself, and generating fails where the named fields do not cover it without a gap.

use std::fmt::Write;

use crate::{bench, queue, ring, status};

/// A type that has a C++ spelling.
trait Twin {
    /// Spelling of the type, or of the element where it is an array.
    const NAME: &'static str;
    /// Number of elements of an array.
    const LEN: Option<usize> = None;
}

macro_rules! spell {
    ($($type:ty => $name:literal),* $(,)?) => {
        $(impl Twin for $type { const NAME: &'static str = $name; })*
    };
}
spell!(u8 => "u8", u16 => "u16", u32 => "u32", u64 => "u64");

impl<T: Twin, const N: usize> Twin for [T; N] {
    const NAME: &'static str = T::NAME;
    const LEN: Option<usize> = Some(N);
}

struct Field {
    name: &'static str,
    type_name: &'static str,
    len: Option<usize>,
    offset: usize,
    bytes: usize,
}

struct Structure {
    name: &'static str,
    duty: &'static str,
    bytes: usize,
    align: usize,
    fields: Vec<Field>,
}

/// Describes a field; its type is inferred from the accessor.
fn field<S, T: Twin>(name: &'static str, offset: usize, _: impl Fn(&S) -> &T) -> Field {
    Field { name, type_name: T::NAME, len: T::LEN, offset, bytes: size_of::<T>() }
}

macro_rules! structures {
    ($($module:ident::$name:ident($duty:literal) { $($field:ident),* $(,)? })*) => {
        $(impl Twin for $module::$name { const NAME: &'static str = stringify!($name); })*

        fn structures() -> Vec<Structure> {
            vec![$(Structure {
                name: stringify!($name),
                duty: $duty,
                bytes: size_of::<$module::$name>(),
                align: align_of::<$module::$name>(),
                fields: vec![$(field(
                    stringify!($field),
                    std::mem::offset_of!($module::$name, $field),
                    |s: &$module::$name| &s.$field,
                )),*],
            }),*]
        }
    };
}

structures! {
    ring::RequestEntry("A request as it lies in the ring; crates/abi/src/ring.rs has the bits.") { w }
    ring::CompletionRecord("turn (16, lowest) | status (16) | detail (32).") { word }
    ring::RingControl("A ring's words in device memory, each on a line of its own.") {
        tail, pad0, fetched, pad1, state, pad2,
    }
    ring::RingView("All that a kernel needs to use a ring.") {
        magic, version, bytes, depth_log2, entries, control, records, turns, staging,
        staging_stride, record_count, read_route, write_route, limit_ms, reserved,
    }
    ring::BufferView("A registered buffer.") { address, bytes, id, reserved }
    ring::SourceView("An open source.") { bytes, address, id, block_bytes }
    queue::QueueState("What of a queue pair changes all the time, each hot word on its own line.") {
        in_ticket, pad0, tail, sq_doorbells, pad1, tail_lock, pad2, sq_head, pad3, cq_head,
        cq_doorbells, adopted, returned, reported, pad4, head_lock, pad5, state, pad6, inside, pad7,
        cid_next, pad8,
        fence_wanted, fence_done, fence_lock, fence_ios, drained, strays, pad9,
    }
    queue::CompletionWord("epoch (16, lowest) | status (16) | SQ head (16) | flags (16).") { word }
    queue::OwnerWord("owner (8, lowest) | phase (8) | flip (16) | low half of the head (32).") { word }
    queue::QueuePairView("All that a kernel needs to use a queue pair.") {
        magic, version, bytes, depth_log2, sq, cq, sq_doorbell, cq_doorbell, state, tail_marks,
        head_marks, cids, completions, owner, report, complaints, alarm, prp_lists, prp_lists_bus,
        cid_log2, nsid, block_bytes_log2, page_bytes_log2, transfer_bytes_max, limit_ms, flags,
        report_period,
    }
    queue::DmaBufferView("Memory that both lanes and drive reach.") { address, bus, bytes }
    bench::BenchIo("One planned I/O of the benchmark kernel.") { source_offset, opcode, generation }
    bench::BenchEdges("What the ends of one read must be.") { first, last }
    bench::BenchResult("How one I/O ended.") { latency_ns, status, flags, detail }
    bench::BenchTotals("What the lanes of one launch count together.") {
        next, completions_polled, doorbells, request_bytes, polls,
    }
    bench::BenchArgs("Arguments of the benchmark kernel.") {
        rings, plan, edges, results, totals, ios, source, buffer, io_bytes, ring_count, batch,
        flags, limit_ms, reserved,
    }
    bench::QueueBenchTotals("What the lanes of one launch over queue pairs count together.") {
        next, polled_by_gpu, polled_by_cpu, request_bytes, polls,
    }
    bench::FmaArgs("Arguments of the kernel that only computes.") { results, rounds, reserved }
    bench::QueueBenchArgs("Arguments of the benchmark kernels over queue pairs.") {
        queues, plan, edges, results, totals, ios, buffer, io_bytes, queue_count, batch, flags,
    }
    bench::QueueProbeArgs("Arguments of the kernels that probe a queue pair.") {
        queue, buffer, source_bytes, results, patience_ns, timeout_ns, rounds, bytes, batch, seed,
    }
    bench::ProbeArgs("Arguments of the kernels that probe a ring.") {
        ring, source, buffer, results, patience_ns, timeout_ns, rounds, bytes, shift, seed,
    }
    bench::ProbeResult("What a lane of a probing kernel saw.") {
        succeeded, failed, wrong_bytes, not_submitted, pending, busy, status, finished,
    }
}

/// Names and values of constants, and the C++ type that each has.
type Constant = (&'static str, &'static str, u64);

macro_rules! constants {
    ($module:ident: $($type:ident { $($name:ident),* $(,)? })*) => {
        vec![$($((stringify!($name), stringify!($type), u64::from($module::$name))),*),*]
    };
}

fn ring_constants() -> Vec<Constant> {
    constants!(ring:
        u32 { ABI_VERSION, RING_MAGIC }
        u8 { OP_READ, OP_WRITE, OP_FLUSH, OP_CANCEL }
        u32 {
            ROUTE_WINDOW, ROUTE_PULL, ROUTE_PUSH, ROUTE_BOUNCE, ROUTE_DIRECT, STATE_OPEN, STATE_DRAINING,
            STATE_CLOSED, TRANSFER_BYTES_MAX, DETAIL_LENT, DETAIL_UNSETTLED,
        }
        u64 { SOURCE_OFFSET_MAX, BUFFER_OFFSET_MAX }
        u32 { RECORDS_MAX }
        u16 { LIMIT_MS_MAX }
    )
}

fn queue_constants() -> Vec<Constant> {
    constants!(queue:
        u32 { QUEUE_MAGIC, QUEUE_VERSION, QUEUE_OPEN, QUEUE_QUIESCED, QUEUE_CLOSED }
        u8 { OWNER_CPU, OWNER_GPU, OWNER_RECALL }
        u16 { COMPLETION_DONE, COMPLETION_BY_GPU }
        u32 { QUEUE_SCAN, QUEUE_SECOND_READ, CID_FREE, CID_TAKEN, CID_RETIRED }
    )
}

fn bench_constants() -> Vec<Constant> {
    constants!(bench:
        u32 { BENCH_CHECK_EDGES, BENCH_ASLEEP, BENCH_BATCH_MAX }
        u16 { BENCH_EDGES_RIGHT, BENCH_SUBMITTED, BENCH_ALL_RIGHT }
    )
}

fn status_constants() -> Vec<Constant> {
    constants!(status:
        u16 {
            SUCCESS, VENDOR, SIDE_CORE_LOST, TIMED_OUT, CANCELLED, BAD_SOURCE, BAD_BUFFER,
            BUFFER_RANGE, SOURCE_RANGE, BAD_OPCODE, RIGHTS, STALE_ID, RING_CLOSED, BAD_LENGTH,
            BUFFER_POISONED, OS, RECORD_BUSY, PENDING, NOT_SUBMITTED, SHORT,
        }
    )
}

const TOP: &str = "\
/// The C++ twin of crates/abi. Generated by `cargo xtask abi`: do not edit.
// tidy: table
#pragma once

#include \"types.h\"

namespace sidecore {
namespace abi {

";

/// The text of `include/sidecore/impl/abi__types.h`.
///
/// # Panics
/// Where a structure has a field that this module does not name.
pub fn generate() -> String {
    let mut out = String::from(TOP);
    for constants in [ring_constants(), queue_constants(), bench_constants()] {
        write_constants(&mut out, &constants);
        out.push('\n');
    }
    for structure in structures() {
        write_structure(&mut out, &structure);
    }
    out.push_str("}  // namespace abi\n\n");
    out.push_str(
        "/// What a completion's status can be besides a drive's own.\nnamespace status {\n\n",
    );
    write_constants(&mut out, &status_constants());
    out.push_str("\n}  // namespace status\n}  // namespace sidecore\n");
    out
}

fn write_constants(out: &mut String, constants: &[Constant]) {
    for (name, type_name, value) in constants {
        let suffix = if *type_name == "u64" { "ull" } else { "u" };
        let _ = writeln!(out, "constexpr {type_name} {name} = {value:#x}{suffix};");
    }
}

fn write_structure(out: &mut String, structure: &Structure) {
    let Structure { name, duty, bytes, align, fields } = structure;
    let end = fields.iter().fold(0, |at, field| {
        assert_eq!(field.offset, at, "{name}: a field before {} is not named", field.name);
        at + field.bytes
    });
    assert_eq!(end, *bytes, "{name}: its last fields are not named");
    let _ = writeln!(out, "/// {duty}\nstruct alignas({align}) {name} {{");
    for field in fields {
        let len = field.len.map(|n| format!("[{n}]")).unwrap_or_default();
        let _ = writeln!(out, "  {} {}{len};", field.type_name, field.name);
    }
    let _ = writeln!(out, "}};\nstatic_assert(sizeof({name}) == {bytes}, \"size of {name}\");");
    for Field { name: field, offset, .. } in fields {
        let _ = writeln!(
            out,
            "static_assert(SIDECORE_OFFSETOF({name}, {field}) == {offset}, \"{field}\");"
        );
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::generate;

    #[test]
    fn the_committed_header_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include/sidecore/impl/abi__types.h");
        let committed = std::fs::read_to_string(path).unwrap();
        assert!(committed == generate(), "run `cargo xtask abi` and commit {path}");
    }
}
