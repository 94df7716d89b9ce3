//! The kernels and their headers, as the program carries them, compile for real GPUs; and come from the
//! cache the second time. Needs NVIDIA's run-time compiler, but no GPU.

use cuda::{Cache, CudaError};
use sidecore_kernels as kernels;

/// Any driver of that major version takes what the compiler makes.
const DRIVER: i32 = 13_000;

#[test]
fn embedded_kernels_compile_and_are_cached() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path());
    for kernel in [kernels::COPY, kernels::PROBE_READ] {
        let program = kernel.source.unwrap();
        let code = match cuda::compile(program, "sm_90", DRIVER, &cache) {
            Err(CudaError::Unavailable { what, why, .. }) => {
                println!("SKIPPED embedded_kernels_compile_and_are_cached: {what}: {why}");
                return;
            }
            code => code.unwrap(),
        };
        assert!(!code.cached && code.bytes().starts_with(b"\x7fELF"));
        let again = cuda::compile(program, "sm_90", DRIVER, &cache).unwrap();
        assert!(again.cached);
        assert_eq!(again.bytes(), code.bytes());
    }
    let wrong = gpu::Program {
        name: "wrong.cu",
        text: "#include <sidecore/ring.h>\nno;",
        headers: kernels::HEADERS,
    };
    match cuda::compile(&wrong, "sm_90", DRIVER, &cache) {
        Err(CudaError::Compile { program, log }) => {
            assert!(program == "wrong.cu" && log.contains("wrong.cu(2)"), "{log}");
        }
        other => panic!("{other:?}"),
    }
}
