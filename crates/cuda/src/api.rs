//! The functions of the driver API that are used, found by name when the library is loaded.
//!
//! Source: CUDA Driver API 13.0, `cuda.h`; names with `_v2` are what that header maps the plain ones to.
// UNSAFETY: foreign functions, found by name.
#![expect(unsafe_code, reason = "symbols of a library that is loaded at run time")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::error::CudaError;

/// A result of the driver; 0 is success.
pub type Status = c_int;
/// Still running. Source: `CUDA_ERROR_NOT_READY`.
pub const NOT_READY: Status = 600;

/// A context, stream, event, module, function or external memory of the driver.
pub type Opaque = *mut c_void;

/// A function of the host that a stream calls. Source: `CUhostFn`.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// How memory of another library is imported. Source: `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[repr(C)]
pub struct ExternalMemory {
    /// 1 is an opaque file descriptor.
    pub kind: c_int,
    /// The descriptor, in a union of 16 bytes.
    pub handle: ExternalHandle,
    pub bytes: u64,
    /// 0: not a dedicated allocation.
    pub flags: c_uint,
    pub reserved: [c_uint; 16],
}

/// The union of handles; only the descriptor is used.
#[repr(C, align(8))]
pub struct ExternalHandle {
    pub fd: c_int,
    pub rest: [c_int; 3],
}

/// A range of imported memory. Source: `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[repr(C)]
pub struct ExternalBuffer {
    pub offset: u64,
    pub bytes: u64,
    pub flags: c_uint,
    pub reserved: [c_uint; 16],
}

const _: () = assert!(size_of::<ExternalMemory>() == 104 && size_of::<ExternalBuffer>() == 88);

/// How the copies of a batch may be carried out. Source: `CUmemcpyAttributes` of CUDA 12.8.
#[repr(C)]
pub struct CopyAttributes {
    /// 1: their sources are read in the order of the stream.
    pub source_order: c_int,
    /// Kinds and numbers of places; nothing for memory that does not migrate.
    pub hints: [c_int; 4],
    pub flags: c_uint,
}

/// Several copies by one call. Source: `cuMemcpyBatchAsync_v2` of CUDA 13.0.
pub type CopyBatch = unsafe extern "C" fn(
    *const u64,
    *const u64,
    *const usize,
    usize,
    *const CopyAttributes,
    *const usize,
    usize,
    Opaque,
) -> Status;

const COPY_BATCH: &CStr = c"cuMemcpyBatchAsync_v2";

const _: () = assert!(size_of::<CopyAttributes>() == 24);

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        /// The functions, as long as the library is loaded.
        #[derive(Debug)]
        pub struct Api {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> Status,)*
            /// Younger than the others, so that not every driver has it.
            pub copy_batch: Option<CopyBatch>,
            /// Keeps the functions where they are.
            _library: Library,
        }

        impl Api {
            /// Finds every function.
            pub fn find(library: Library, file: &str) -> Result<Self, CudaError> {
                $(
                    // SAFETY: the type is that of the header for this symbol; the pointer is used
                    // only while `_library` keeps the library loaded.
                    let $field = *unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> Status>(
                            concat!($symbol, "\0").as_bytes(),
                        )
                    }
                    .map_err(|_| CudaError::unavailable(
                        file,
                        concat!("it has no function ", $symbol),
                        "install NVIDIA driver 525 or newer",
                    ))?;
                )*
                // SAFETY: as above; the type is that of CUDA 13's header for this symbol.
                let copy_batch = unsafe { library.get::<CopyBatch>(COPY_BATCH.to_bytes_with_nul()) };
                let copy_batch = copy_batch.ok().map(|found| *found);
                Ok(Self { $($field,)* copy_batch, _library: library })
            }
        }
    };
}

functions! {
    init = "cuInit": fn(c_uint);
    error_name = "cuGetErrorName": fn(Status, *mut *const c_char);
    device_count = "cuDeviceGetCount": fn(*mut c_int);
    device_get = "cuDeviceGet": fn(*mut c_int, c_int);
    device_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int);
    device_uuid = "cuDeviceGetUuid_v2": fn(*mut [u8; 16], c_int);
    device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int);
    context_retain = "cuDevicePrimaryCtxRetain": fn(*mut Opaque, c_int);
    context_release = "cuDevicePrimaryCtxRelease_v2": fn(c_int);
    context_set = "cuCtxSetCurrent": fn(Opaque);
    context_push = "cuCtxPushCurrent_v2": fn(Opaque);
    context_id = "cuCtxGetId": fn(Opaque, *mut u64);
    context_pop = "cuCtxPopCurrent_v2": fn(*mut Opaque);
    memory_free_and_total = "cuMemGetInfo_v2": fn(*mut usize, *mut usize);
    memory_allocate = "cuMemAlloc_v2": fn(*mut u64, usize);
    memory_free = "cuMemFree_v2": fn(u64);
    host_allocate = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost": fn(*mut c_void);
    host_register = "cuMemHostRegister_v2": fn(*mut c_void, usize, c_uint);
    host_unregister = "cuMemHostUnregister": fn(*mut c_void);
    pointer_attribute = "cuPointerGetAttribute": fn(*mut c_void, c_int, u64);
    copy = "cuMemcpyAsync": fn(u64, u64, usize, Opaque);
    fill = "cuMemsetD8Async": fn(u64, u8, usize, Opaque);
    stream_create = "cuStreamCreate": fn(*mut Opaque, c_uint);
    stream_destroy = "cuStreamDestroy_v2": fn(Opaque);
    stream_synchronize = "cuStreamSynchronize": fn(Opaque);
    stream_query = "cuStreamQuery": fn(Opaque);
    stream_write_value = "cuStreamWriteValue32_v2": fn(Opaque, u64, u32, c_uint);
    stream_wait_value = "cuStreamWaitValue32_v2": fn(Opaque, u64, u32, c_uint);
    stream_call = "cuLaunchHostFunc": fn(Opaque, HostFunction, *mut c_void);
    event_create = "cuEventCreate": fn(*mut Opaque, c_uint);
    event_destroy = "cuEventDestroy_v2": fn(Opaque);
    event_record = "cuEventRecord": fn(Opaque, Opaque);
    event_query = "cuEventQuery": fn(Opaque);
    event_synchronize = "cuEventSynchronize": fn(Opaque);
    event_elapsed = "cuEventElapsedTime": fn(*mut f32, Opaque, Opaque);
    module_load = "cuModuleLoadData": fn(*mut Opaque, *const c_void);
    module_unload = "cuModuleUnload": fn(Opaque);
    module_function = "cuModuleGetFunction": fn(*mut Opaque, Opaque, *const c_char);
    function_attribute = "cuFuncGetAttribute": fn(*mut c_int, c_int, Opaque);
    occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor": fn(*mut c_int, Opaque, c_int, usize);
    launch = "cuLaunchKernel": fn(
        Opaque, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Opaque, *mut *mut c_void,
        *mut *mut c_void
    );
    external_import = "cuImportExternalMemory": fn(*mut Opaque, *const ExternalMemory);
    external_map = "cuExternalMemoryGetMappedBuffer": fn(*mut u64, Opaque, *const ExternalBuffer);
    external_destroy = "cuDestroyExternalMemory": fn(Opaque);
}

impl Api {
    /// Turns a result into an error that names the call.
    pub fn check(&self, call: &'static str, status: Status) -> Result<(), CudaError> {
        if status == 0 { Ok(()) } else { Err(self.error(call, status)) }
    }

    /// The error of a result that is not success.
    pub fn error(&self, call: &'static str, code: Status) -> CudaError {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: `text` is a place for one pointer, which the driver sets to a constant of its own.
        let known = unsafe { (self.error_name)(code, &raw mut text) } == 0 && !text.is_null();
        let name = if known {
            // SAFETY: not null, and a constant C string of the driver by its documentation.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        } else {
            "an error that the driver has no name for".to_owned()
        };
        CudaError::Call { call, code, name }
    }
}

/// Calls a function of the driver; one unsafe operation at one place.
macro_rules! call {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let api = &*$api;
        // SAFETY: the arguments are of the header's types, handles are alive as long as their
        // owners (which the caller borrows), and pointers point to places of the caller's frame.
        let status = unsafe { (api.$function)($($argument),*) };
        api.check(stringify!($function), status)
    }};
}
pub(crate) use call;
