//! NVIDIA's driver and run-time compiler, loaded when the program runs, and the window.
//!
//! One outside world behind one crate: the driver API (`libcuda.so.1`), the run-time compiler (NVRTC),
//! and Vulkan, which makes device memory that the CPU can store to (`window`). None of them is
//! needed to build, or to start: whatever is missing or too old is an [`CudaError::Unavailable`] that
//! says what to do. Nothing here panics because a library is absent.
//!
//! | part | duty |
//! | --- | --- |
//! | [`Driver`] | the library, its version, its devices |
//! | [`Device`] | one device: its context, what it is, and its memory |
//! | [`compile`] | device code to machine code, through a cache on disk named by content |
//! | [`Pointer`] | what the driver knows of memory that somebody else allocated |
//! | [`Window`] | device memory with a CPU mapping, and why there is none |
//! | [`Streams`] | copies and fills on streams of their own |
//! | [`CopyQueue`] | copies of one user that go on by themselves, with marks between them |
//! | [`Gates`] | places in the order of somebody else's stream |
//! | [`Function`] | a loaded kernel, and its launches |
//!
//! It knows nothing of kernels' meaning, of rings or of storage.
//!
//! Memory that is handed out keeps its device's context, and is given back with its last clone.
//!
//! Sources: CUDA Driver API 13.0; NVRTC 13.0; Vulkan 1.1 with `VK_KHR_external_memory_fd`.

mod api;
mod cache;
mod copy_queue;
mod device;
mod error;
mod event;
mod function;
mod gate;
mod includes;
mod library;
mod memory;
mod nvrtc;
mod pointer;
mod streams;
mod window;

pub use cache::Cache;
pub use copy_queue::CopyQueue;
pub use device::{Device, Facts, WriteOrdering};
pub use error::CudaError;
pub use function::{Function, Running, Shape};
pub use gate::{Gate, Gates};
pub use library::Driver;
pub use memory::{DeviceBlock, HostBlock, Registration, allocate_lasting};
pub use nvrtc::{Code, Header, Program, compile};
pub use pointer::{Pointer, PointerKind};
pub use streams::{HostRange, Streams};
pub use window::{Window, WindowMemory};
