//! Errors as C sees them: a code that is returned, and a text of the calling thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use sidecore::EngineError;

/// All is well.
pub const SIDECORE_OK: c_int = 0;
/// The call breaks a rule of this header.
pub const SIDECORE_MISUSE: c_int = 1;
/// This machine, GPU or storage cannot do it.
pub const SIDECORE_UNSUPPORTED: c_int = 2;
/// A limit was reached.
pub const SIDECORE_EXHAUSTED: c_int = 3;
/// The operating system refused.
pub const SIDECORE_OS: c_int = 4;
/// The GPU, or its driver, refused.
pub const SIDECORE_GPU: c_int = 5;
/// The storage refused.
pub const SIDECORE_STORAGE: c_int = 6;
/// It did not happen in time.
pub const SIDECORE_TIMED_OUT: c_int = 7;
/// The drive refused.
pub const SIDECORE_DRIVE: c_int = 8;
/// A defect of the library; what the call was about may be in any state.
pub const SIDECORE_PANIC: c_int = 9;

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: c_int,
    text: String,
}

impl Failure {
    pub fn misuse(text: impl Into<String>) -> Self {
        Self { code: SIDECORE_MISUSE, text: text.into() }
    }

    pub fn unsupported(text: impl Into<String>) -> Self {
        Self { code: SIDECORE_UNSUPPORTED, text: text.into() }
    }

    pub fn timed_out(text: impl Into<String>) -> Self {
        Self { code: SIDECORE_TIMED_OUT, text: text.into() }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self { code: c_int::from(error.code()), text: error.to_string() }
    }
}

impl From<gpu::GpuError> for Failure {
    fn from(error: gpu::GpuError) -> Self {
        let code = match error {
            gpu::GpuError::Exhausted { .. } => SIDECORE_EXHAUSTED,
            gpu::GpuError::Misuse(_) => SIDECORE_MISUSE,
            gpu::GpuError::Unavailable(_) => SIDECORE_UNSUPPORTED,
            _ => SIDECORE_GPU,
        };
        Self { code, text: error.to_string() }
    }
}

macro_rules! failures {
    ($($error:ty => $code:ident,)*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self { code: $code, text: error.to_string() }
            }
        }
    )*};
}

failures! {
    ctrl::ControllerError => SIDECORE_MISUSE,
    ctrl::ServerError => SIDECORE_OS,
    ctrl::TimingModelError => SIDECORE_MISUSE,
    driver::DriverError => SIDECORE_DRIVE,
    mem::MemError => SIDECORE_EXHAUSTED,
    storage::StorageError => SIDECORE_STORAGE,
    storage::faults::FaultScriptError => SIDECORE_MISUSE,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A text for C: zero bytes in it are left out.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).expect("zero bytes were left out")
}

fn told(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a text".to_owned())
}

/// Carries out a call: its code, with the text kept where it failed. No panic leaves it.
pub(crate) fn guard(act: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(act));
    let failure = match result {
        Ok(Ok(())) => return SIDECORE_OK,
        Ok(Err(failure)) => failure,
        Err(payload) => Failure { code: SIDECORE_PANIC, text: told(&*payload) },
    };
    LAST.with(|last| *last.borrow_mut() = c_text(&failure.text));
    failure.code
}

/// As `guard`, for functions that return nothing: the text is all that tells of a failure.
pub(crate) fn swallow(act: impl FnOnce() -> Result<(), Failure>) {
    let _code = guard(act);
}

pub(crate) fn last() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}
