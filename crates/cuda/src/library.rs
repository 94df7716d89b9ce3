//! The driver: found, checked and asked for its devices.
// UNSAFETY: loads a library and calls it.
#![expect(unsafe_code, reason = "loads NVIDIA's driver library and calls it")]

use std::ffi::c_int;
use std::sync::Arc;

use libloading::Library;

use crate::api::{Api, call};
use crate::error::CudaError;

/// Oldest driver that is used: CUDA 12.0. Older ones lack functions that are called.
const VERSION_MIN: i32 = 12_000;
/// The driver's library. Source: CUDA installation guides, soname of every Linux driver.
const FILE: &str = "libcuda.so.1";

/// The loaded driver.
#[derive(Clone, Debug)]
pub struct Driver {
    pub(crate) api: Arc<Api>,
    version: i32,
    devices: u32,
}

impl Driver {
    /// Loads the driver and starts it.
    ///
    /// # Errors
    /// `Unavailable` where it is missing, too old, has no device, or does not start.
    pub fn load() -> Result<Self, CudaError> {
        // SAFETY: initialisers of NVIDIA's library; it is meant to be loaded so.
        let library = unsafe { Library::new(FILE) }.map_err(|e| {
            let remedy = "install NVIDIA's driver, or in a container give it the GPU \
                          (--gpus all, capability compute)";
            CudaError::unavailable("NVIDIA's driver", first_line(&e.to_string()), remedy)
        })?;
        let version = version_of(&library)?;
        if version < VERSION_MIN {
            let why = format!("version {} is older than 12.0", dotted(version));
            let remedy = "install NVIDIA driver 525 or newer";
            return Err(CudaError::unavailable("NVIDIA's driver", why, remedy));
        }
        let api = Arc::new(Api::find(library, FILE)?);
        start(&api)?;
        let mut count: c_int = 0;
        call!(api, device_count(&raw mut count))?;
        let devices = u32::try_from(count).unwrap_or(0);
        if devices == 0 {
            let remedy = "check CUDA_VISIBLE_DEVICES and nvidia-smi -L";
            return Err(CudaError::unavailable("a GPU", "the driver finds none", remedy));
        }
        Ok(Self { api, version, devices })
    }

    /// CUDA version that the driver implements, as 1000 x major + 10 x minor.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Devices there are.
    pub fn devices(&self) -> u32 {
        self.devices
    }
}

/// The version, asked before any other function is looked for: an old driver lacks some.
fn version_of(library: &Library) -> Result<i32, CudaError> {
    let broken = |why: &str| {
        CudaError::unavailable(FILE, why, "reinstall NVIDIA's driver: this file is not one of it")
    };
    type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: the type is that of `cuDriverGetVersion` in cuda.h.
    let function = unsafe { library.get::<Version>(b"cuDriverGetVersion\0") }
        .map_err(|_| broken("it has no function cuDriverGetVersion"))?;
    let mut version = 0;
    // SAFETY: `version` is a place for one int; the library is loaded.
    let status = unsafe { function(&raw mut version) };
    if status == 0 { Ok(version) } else { Err(broken("it does not tell its version")) }
}

/// Starts the driver, and says what a failure means.
fn start(api: &Api) -> Result<(), CudaError> {
    // SAFETY: takes flags only, which must be 0.
    let status = unsafe { (api.init)(0) };
    let remedy = match status {
        0 => return Ok(()),
        100 => "check that the machine has an NVIDIA GPU and that /dev/nvidia0 is there",
        803 | 804 => {
            "the driver's library and kernel module differ: reboot, or install one version"
        }
        _ => "see dmesg and nvidia-smi for the driver's own complaint",
    };
    let why = api.error("cuInit", status).to_string();
    Err(CudaError::unavailable("NVIDIA's driver", why, remedy))
}

/// A version as people write it.
pub(crate) fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The first line of a message; loaders write whole paragraphs.
pub(crate) fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
