//! The C++ twin packs and unpacks requests as Rust does. (Sizes and offsets are asserted by the
//! header itself, when this compiles it.)

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use sidecore_abi as abi;

use abi::ring::{Id, OP_CANCEL, OP_READ, Request, RequestEntry, TRANSFER_BYTES_MAX};

/// Fields of a request in the order of the C++ structure.
fn fields(r: &Request) -> [u64; 9] {
    [
        r.source_offset,
        r.buffer_offset,
        r.length.into(),
        r.source.bits().into(),
        r.buffer.bits().into(),
        r.record.into(),
        r.record_turn.into(),
        r.limit_ms.into(),
        r.opcode.into(),
    ]
}

/// A small generator; the constants are those of Knuth's MMIX.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state ^ *state >> 29
}

fn random(state: &mut u64) -> Request {
    // Any pattern of 256 bits is a packed request.
    let w = [next(state), next(state), next(state), next(state)];
    RequestEntry { w }.unpack()
}

fn compile() -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pack");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let status = Command::new(&compiler)
        .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1", "-DSIDECORE_SIMT", "-c"])
        .arg("-I")
        .arg(root.join("../../include"))
        .arg(root.join("tests/pack.cpp"))
        .arg("-o")
        .arg(program.with_extension("o"))
        .status()
        .unwrap_or_else(|e| panic!("{compiler}: {e}"));
    assert!(status.success(), "{compiler} compiles the twin");
    // The simulator is not linked: the linker is told not to mind what main never reaches.
    let status = Command::new(&compiler)
        .arg(program.with_extension("o"))
        .arg("-Wl,--unresolved-symbols=ignore-all")
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success(), "{compiler} links the twin");
    program
}

#[test]
fn both_languages_pack_alike() {
    let mut state = 0x5eed;
    let mut requests: Vec<(Request, u16)> = (0..2000u16).map(|n| (random(&mut state), n)).collect();
    let edge = Request {
        opcode: OP_READ,
        source: Id::new(0, 0),
        source_offset: 0,
        buffer: Id::new(Id::INDEX_MAX, 0xfff),
        buffer_offset: abi::ring::BUFFER_OFFSET_MAX,
        length: 1,
        record: 0xff_ffff,
        record_turn: 0xffff,
        limit_ms: 0,
    };
    requests.push((edge, 0xffff));
    requests.push((Request { length: TRANSFER_BYTES_MAX, opcode: OP_CANCEL, ..edge }, 0));
    let mut input = String::new();
    for (request, tag) in &requests {
        for field in fields(request) {
            write!(input, "{field} ").unwrap();
        }
        writeln!(input, "{tag}").unwrap();
    }
    let mut child =
        Command::new(compile()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), requests.len());
    for (line, (request, tag)) in text.lines().zip(&requests) {
        let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        let entry = RequestEntry::pack(request, *tag);
        assert_eq!(numbers[..4], entry.w, "{request:?}");
        assert_eq!(numbers[4..], fields(request), "{request:?}");
        assert_eq!(entry.unpack(), *request);
        assert_eq!(entry.tags(), (*tag, *tag));
    }
}
