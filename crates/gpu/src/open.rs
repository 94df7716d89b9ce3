//! Which GPU to use: a real one where there is one, else the simulated one, and why.

use std::str::FromStr;
use std::sync::Arc;

use crate::{CudaGpu, CudaOptions, Gpu, GpuError, Kernel, SimulatedGpu, SimulatedOptions};

/// Which GPU is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// The first real one, else the simulated one.
    #[default]
    Auto,
    /// The simulated one.
    Simulated,
    /// A real one, by the driver's count; nothing else will do.
    Index(u32),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "simulated" => Ok(Self::Simulated),
            text => text
                .parse()
                .map(Self::Index)
                .map_err(|_| format!("'{text}' is neither auto, simulated nor a GPU's number")),
        }
    }
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => write!(f, "auto"),
            Self::Simulated => write!(f, "simulated"),
            Self::Index(index) => write!(f, "{index}"),
        }
    }
}

/// A GPU, and why it is not a real one where that was not asked for.
pub struct Opened {
    /// The GPU.
    pub gpu: Arc<dyn Gpu>,
    /// Why no real GPU is used, with the remedy.
    pub why_simulated: Option<String>,
}

/// Opens a GPU and prepares `kernels` on it: a real one that cannot run them is as good as none.
///
/// # Errors
/// [`GpuError::Unavailable`] where a real one was named and cannot be had; [`GpuError::Kernel`] where
/// a kernel does not compile.
pub fn open(choice: Choice, kernels: &[Kernel]) -> Result<Opened, GpuError> {
    open_with(choice, kernels, true)
}

/// As [`open`]; without `window` the CPU maps none of its memory, as where there is no way to.
///
/// # Errors
/// As [`open`].
pub fn open_with(choice: Choice, kernels: &[Kernel], window: bool) -> Result<Opened, GpuError> {
    let simulated = |why_simulated| {
        let window_bytes = if window { u64::MAX } else { 0 };
        let options = SimulatedOptions { window_bytes, ..SimulatedOptions::default() };
        let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(options));
        Ok(Opened { gpu, why_simulated })
    };
    let index = match choice {
        Choice::Auto => 0,
        Choice::Index(index) => index,
        Choice::Simulated => return simulated(None),
    };
    match open_real(index, kernels, window) {
        Ok(gpu) => Ok(Opened { gpu: Arc::new(gpu), why_simulated: None }),
        Err(GpuError::Unavailable(why)) if choice == Choice::Auto => simulated(Some(why)),
        Err(error) => Err(error),
    }
}

fn open_real(index: u32, kernels: &[Kernel], window: bool) -> Result<CudaGpu, GpuError> {
    let gpu = CudaGpu::open(CudaOptions { index, window })?;
    kernels.iter().try_for_each(|kernel| gpu.prepare(kernel))?;
    Ok(gpu)
}
