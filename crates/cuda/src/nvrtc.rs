//! Device code to machine code, at run time, from text that the program carries.
//!
//! The compiler is asked only where the cache has nothing: so a machine without it runs what it, or
//! another of the same user, has compiled before.
// UNSAFETY: loads a library and calls it.
#![expect(unsafe_code, reason = "loads NVIDIA's run-time compiler and calls it")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;

use libloading::Library;

use crate::cache::{self, Cache};
use crate::error::CudaError;
use crate::includes::by_whole_names;

/// Oldest compiler that knows 16-byte accesses (PTX ISA 8.3).
const VERSION_MIN: (i32, i32) = (12, 3);
/// Sonames, newest first.
const FILES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Where toolkits lie that the loader does not know.
const FOLDERS: [&str; 2] = ["/usr/local/cuda/lib64", "/opt/cuda/lib64"];
/// Raised when the same text shall be compiled anew.
const CACHE_VERSION: &str = "sidecore 1";

/// A header that the program carries.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Its name as in `#include`, from the include directory on.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// A unit of device code.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name in messages.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// Headers that it may include.
    pub headers: &'static [Header],
}

/// Machine code of a device.
#[derive(Clone, Debug)]
pub struct Code {
    bytes: Vec<u8>,
    /// Whether it came from the cache.
    pub cached: bool,
}

impl Code {
    /// The bytes of the ELF file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Compiles for an architecture (`sm_90`), for a driver of CUDA version `driver` (1000 x major + 10 x
/// minor).
///
/// # Errors
/// `Unavailable` where nothing is cached and the compiler is missing, too old, or newer than the
/// driver; `Compile`.
pub fn compile(
    program: &Program,
    architecture: &str,
    driver: i32,
    cache: &Cache,
) -> Result<Code, CudaError> {
    let major = (driver / 1000).to_string();
    let mut parts = vec![CACHE_VERSION, architecture, &major, program.name, program.text];
    parts.extend(program.headers.iter().flat_map(|header| [header.name, header.text]));
    let key = cache::key(&parts);
    if let Some(bytes) = cache.find(&key) {
        return Ok(Code { bytes, cached: true });
    }
    let compiler = Compiler::load(driver)?;
    let bytes = compiler.compile(program, architecture)?;
    cache.keep(&key, &bytes);
    Ok(Code { bytes, cached: false })
}

type Handle = *mut c_void;
type Status = c_int;

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        struct Api {
            $($field: unsafe extern "C" fn($($argument),*) -> Status,)*
            _library: Library,
        }
        impl Api {
            fn find(library: Library, file: &str) -> Result<Self, CudaError> {
                $(
                    // SAFETY: the type is that of nvrtc.h for this symbol; the pointer is used only
                    // while `_library` keeps the library loaded.
                    let $field = *unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> Status>(
                            concat!($symbol, "\0").as_bytes(),
                        )
                    }
                    .map_err(|_| CudaError::unavailable(
                        file,
                        concat!("it has no function ", $symbol),
                        "install NVRTC of CUDA 12.3 or newer",
                    ))?;
                )*
                Ok(Self { $($field,)* _library: library })
            }
        }
    };
}

functions! {
    version = "nvrtcVersion": fn(*mut c_int, *mut c_int);
    create = "nvrtcCreateProgram": fn(
        *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    );
    compile = "nvrtcCompileProgram": fn(Handle, c_int, *const *const c_char);
    code_bytes = "nvrtcGetCUBINSize": fn(Handle, *mut usize);
    code = "nvrtcGetCUBIN": fn(Handle, *mut c_char);
    log_bytes = "nvrtcGetProgramLogSize": fn(Handle, *mut usize);
    log = "nvrtcGetProgramLog": fn(Handle, *mut c_char);
    destroy = "nvrtcDestroyProgram": fn(*mut Handle);
}

/// The loaded compiler.
struct Compiler {
    api: Api,
}

/// Where the compiler may be: as the loader finds it, then toolkits in their usual places.
fn places() -> Vec<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"];
    let homes =
        homes.iter().filter_map(std::env::var_os).map(|home| PathBuf::from(home).join("lib64"));
    let folders: Vec<PathBuf> = homes.chain(FOLDERS.iter().map(PathBuf::from)).collect();
    let mut places: Vec<PathBuf> = FILES.iter().map(PathBuf::from).collect();
    for folder in folders {
        places.extend(FILES.iter().map(|file| folder.join(file)));
    }
    places
}

impl Compiler {
    fn load(driver: i32) -> Result<Self, CudaError> {
        let mut why = String::new();
        for place in places() {
            // SAFETY: initialisers of NVIDIA's library; it is meant to be loaded so.
            match unsafe { Library::new(&place) } {
                Ok(library) => {
                    let api = Api::find(library, &place.display().to_string())?;
                    return Self::check(api, driver);
                }
                Err(error) if why.is_empty() => {
                    why = crate::library::first_line(&error.to_string());
                }
                Err(_) => {}
            }
        }
        let remedy = "install CUDA's run-time compiler (libnvrtc) and name its folder in \
                      LD_LIBRARY_PATH or CUDA_HOME";
        Err(CudaError::unavailable("NVRTC", why, remedy))
    }

    fn check(api: Api, driver: i32) -> Result<Self, CudaError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for one int each.
        let status = unsafe { (api.version)(&raw mut major, &raw mut minor) };
        let version = format!("it is version {major}.{minor}");
        if status != 0 || (major, minor) < VERSION_MIN {
            let remedy = "install NVRTC of CUDA 12.3 or newer";
            return Err(CudaError::unavailable("NVRTC", version, remedy));
        }
        if major > driver / 1000 {
            let why = format!("{version}, the driver is for {}", crate::library::dotted(driver));
            let remedy = "install a newer driver, or NVRTC of the driver's major version";
            return Err(CudaError::unavailable("NVRTC", why, remedy));
        }
        Ok(Self { api })
    }

    fn compile(&self, program: &Program, architecture: &str) -> Result<Vec<u8>, CudaError> {
        let refused = |log: String| CudaError::Compile { program: program.name.to_owned(), log };
        let text = |text: &str| CString::new(text).map_err(|e| refused(e.to_string()));
        let headers = program.headers;
        let whole = |name: &str, body: &str| text(&by_whole_names(name, body, headers));
        let source = whole(program.name, program.text)?;
        let name = text(program.name)?;
        let texts = headers.iter().map(|h| whole(h.name, h.text)).collect::<Result<Vec<_>, _>>()?;
        let names = headers.iter().map(|h| text(h.name)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (text_pointers, name_pointers) = (pointers(&texts), pointers(&names));
        let mut handle = std::ptr::null_mut();
        // SAFETY: all strings and both arrays live until the end of this function; the count is
        // that of both arrays.
        let status = unsafe {
            (self.api.create)(
                &raw mut handle,
                source.as_ptr(),
                name.as_ptr(),
                c_int::try_from(headers.len()).expect("a few headers"),
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        if status != 0 {
            return Err(refused(format!("nvrtcCreateProgram: {status}")));
        }
        let unit = Unit { api: &self.api, handle };
        let options = [text(&format!("--gpu-architecture={architecture}"))?, text("--std=c++17")?];
        let option_pointers = pointers(&options);
        let count = c_int::try_from(option_pointers.len()).expect("two options");
        // SAFETY: `options` and its strings live; the program is alive in `unit`.
        let status = unsafe { (self.api.compile)(unit.handle, count, option_pointers.as_ptr()) };
        if status == 0 { unit.code().map_err(refused) } else { Err(refused(unit.log())) }
    }
}

/// A program under compilation.
struct Unit<'a> {
    api: &'a Api,
    handle: Handle,
}

impl Unit<'_> {
    fn code(&self) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program is alive; a place for one size.
        let status = unsafe { (self.api.code_bytes)(self.handle, &raw mut bytes) };
        if status != 0 || bytes == 0 {
            return Err(format!("nvrtcGetCUBINSize: {status}"));
        }
        let mut code = vec![0_u8; bytes];
        // SAFETY: as many bytes as the compiler asked for.
        let status = unsafe { (self.api.code)(self.handle, code.as_mut_ptr().cast()) };
        if status == 0 { Ok(code) } else { Err(format!("nvrtcGetCUBIN: {status}")) }
    }

    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: the program is alive; a place for one size.
        let status = unsafe { (self.api.log_bytes)(self.handle, &raw mut bytes) };
        if status != 0 || bytes == 0 {
            return "the compiler says nothing".to_owned();
        }
        let mut log = vec![0_u8; bytes];
        // SAFETY: as many bytes as the compiler asked for.
        let status = unsafe { (self.api.log)(self.handle, log.as_mut_ptr().cast()) };
        let text = String::from_utf8_lossy(&log);
        if status == 0 { text.trim_end_matches('\0').to_owned() } else { format!("error {status}") }
    }
}

impl Drop for Unit<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is alive and not used any more.
        let _status = unsafe { (self.api.destroy)(&raw mut self.handle) };
    }
}
